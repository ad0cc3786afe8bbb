//! Classes of faults that other network devices had: see docs/known-faults.md.
use vmlan_ram::Slice;

use super::finish::run;
use super::packet::Packet;
use crate::{Batch, Gso, HEAD, Headers, Offload, Offloads, Reason};

const BAD: Option<Reason> = Some(Reason::BadOffload);
const HEADER: Option<Reason> = Some(Reason::BadHeader);

/// The reason this frame is refused for, if it is.
fn refused(bytes: &[u8], offload: Offload) -> Option<Reason> {
    let result = run(bytes, &[100], offload, Offloads::NONE);
    let checked = offload.check(&bytes[..bytes.len().min(HEAD)], bytes.len());
    assert_eq!(checked.err(), result.as_ref().err().copied());
    result.err()
}

fn changed(packet: &Packet, at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = packet.unfinished();
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

#[test]
fn no_header_and_no_segment_size() {
    let packet = Packet::default();
    let offload = Offload { gso_size: 0, hdr_len: 0, ..packet.offload(1000) };
    assert_eq!(refused(&packet.unfinished(), offload), BAD);
}

#[test]
fn segmentation_without_an_ip_header() {
    let packet = Packet::default();
    for ethertype in [[0u8, 0], [0, 0x40], [0x08, 0x06], [0x88, 0xcc], [0x81, 0], [0xff, 0xff]] {
        let bytes = changed(&packet, 12, &ethertype);
        assert!(refused(&bytes, packet.offload(1000)).is_some(), "{ethertype:?}");
    }
    for version in [0, 0x44, 0x55, 0x65, 0xf5, 0x40] {
        assert!(refused(&changed(&packet, 14, &[version]), packet.offload(1000)).is_some());
    }
    assert_eq!(refused(&[0; 14], packet.offload(1000)), BAD);
}

#[test]
fn a_short_fragment_with_an_sctp_checksum_to_do() {
    let packet = Packet { tcp: false, payload: vec![], ..Packet::default() };
    let mut bytes = changed(&packet, 23, &[132]);
    let offload = Offload { csum_offset: 8, ..packet.offload(0) };
    assert_eq!(refused(&bytes, offload), BAD, "12 bytes of SCTP header in 8");
    bytes[20] = 0x20;
    assert_eq!(refused(&bytes, packet.offload(0)), BAD);
    bytes[20..22].copy_from_slice(&[0, 1]);
    assert_eq!(refused(&bytes, packet.offload(0)), BAD);
}

#[test]
fn headers_longer_than_the_snapshot() {
    let packet = Packet { v6: true, ip_options: 7, tags: 2, ..Packet::default() };
    assert!(packet.l4() + 18 > HEAD);
    assert_eq!(refused(&packet.unfinished(), packet.offload(1000)), BAD);
    // The checksum field lies inside, the options do not.
    let packet = Packet { ip_options: 3, tcp_options: 10, ..packet };
    assert!(packet.header_len() > HEAD && packet.l4() + 18 <= HEAD);
    assert_eq!(refused(&packet.unfinished(), packet.offload(1000)), HEADER);
    assert_eq!(refused(&packet.unfinished(), packet.offload(0)), None);
}

#[test]
fn header_lengths_beyond_the_frame_leak_nothing() {
    const CANARY: u8 = 0xa5;
    let packet = Packet { payload: vec![], tcp_options: 0, ..Packet::default() };
    for ihl in 0x40..=0x4f {
        for data_offset in 0..=15 {
            for gso_size in [0, 48] {
                let mut bytes = changed(&packet, 14, &[ihl]);
                bytes[46] = data_offset << 4;
                let len = bytes.len();
                bytes.extend([CANARY; 4096]);
                let frame = &bytes[..len];
                let Ok(out) = run(frame, &[20], packet.offload(gso_size), Offloads::NONE) else {
                    continue;
                };
                // The checksums themselves might hold the byte, so compare lengths too.
                assert!(out.len() == 1 && out[0].0.len() == len);
                assert!(!out[0].0[50..].contains(&CANARY) && !out[0].0[..24].contains(&CANARY));
            }
        }
    }
}

#[test]
fn the_claimed_header_length_is_ignored() {
    let packet = Packet::default();
    for hdr_len in [0, 1, 11, 12, 13, 53, 55, 127, 128, 129, 0x7fff, 0xffff] {
        let offload = Offload { hdr_len, ..packet.offload(1000) };
        let checked = offload.check(&packet.unfinished()[..HEAD], 4066).unwrap();
        assert_eq!(usize::from(checked.hdr_len), packet.header_len());
        let got = run(&packet.unfinished(), &[100], offload, Offloads::NONE).unwrap();
        assert!(got.iter().map(|g| &g.0).eq(&packet.segments(1000)));
    }
}

#[test]
fn the_checksum_field_outside_its_header() {
    let packet = Packet::default();
    for csum_offset in [0, 1, 11, 12, 13, 15, 17, 18, 93, 94, 0x7fff, 0xffff] {
        for gso_size in [0, 1000] {
            let offload = Offload { csum_offset, ..packet.offload(gso_size) };
            assert_eq!(refused(&packet.unfinished(), offload), BAD, "{csum_offset}");
        }
    }
}

#[test]
fn ip_header_length_unchecked() {
    let packet = Packet::default();
    for ihl in 0x40..0x45 {
        let bytes = changed(&packet, 14, &[ihl]);
        assert_eq!(refused(&bytes, packet.offload(1000)), BAD);
        assert_eq!(refused(&bytes, packet.offload(0)), BAD);
    }
}

#[test]
fn lengths_in_the_packet_beyond_the_frame() {
    let packet = Packet { tcp: false, ..Packet::default() };
    for len in [1u16, 19, 20, 27, 4029, 0xffff] {
        let bytes = changed(&packet, 16, &len.to_be_bytes());
        assert_eq!(refused(&bytes, packet.offload(1000)), HEADER, "{len}");
        // A checksum goes to the frame's end, whatever the packet says.
        assert_eq!(
            run(&bytes, &[100], packet.offload(0), Offloads::NONE).unwrap()[0].0.len(),
            bytes.len()
        );
    }
}

#[test]
fn no_payload_and_tiny_segments() {
    let packet = Packet { payload: vec![], ..Packet::default() };
    assert_eq!(
        run(&packet.unfinished(), &[9], packet.offload(48), Offloads::NONE).unwrap().len(),
        1
    );
    let packet = Packet::default();
    for size in [1, 2, 7] {
        assert_eq!(refused(&packet.unfinished(), packet.offload(size)), BAD);
    }
    // What is left of an MSS of 48 with timestamps, and with all options.
    for size in [8, 36, 48] {
        assert_eq!(refused(&packet.unfinished(), packet.offload(size)), None);
    }
    for (size, segments, result) in [(36, 1366, None), (36, 1367, BAD), (8, 1367, BAD)] {
        let packet = Packet { payload: vec![1; segments * size], ..Packet::default() };
        assert_eq!(refused(&packet.unfinished(), packet.offload(size)), result, "{segments}");
    }
    let udp = Packet { tcp: false, payload: vec![1; 129], ..packet };
    assert_eq!(refused(&udp.unfinished(), udp.offload(1)), BAD, "129 segments");
    let udp = Packet { payload: vec![1; 128], ..udp };
    assert_eq!(run(&udp.unfinished(), &[9], udp.offload(1), Offloads::NONE).unwrap().len(), 128);
}

#[test]
fn more_tags_than_expected() {
    let packet = Packet { tags: 2, ..Packet::default() };
    let mut bytes = packet.unfinished();
    for n in 1..40 {
        bytes.splice(12..12, [0x81, 0, 0, 1]);
        let start = packet.offload(0).csum_start + 4 * n;
        for gso_size in [0, 1000] {
            let offload = Offload { csum_start: start, ..packet.offload(gso_size) };
            assert_eq!(refused(&bytes, offload), BAD);
        }
    }
}

#[test]
fn csum_start_beyond_packet() {
    let packet = Packet { payload: vec![1; 6], tcp_options: 0, ..Packet::default() };
    for csum_start in [43, 44, 45, 59, 60, 61, 127, 128, 0x7fff, 0xfffe, 0xffff] {
        for gso_size in [0, 48] {
            let offload = Offload { csum_start, ..packet.offload(gso_size) };
            assert_eq!(refused(&packet.unfinished(), offload), BAD, "{csum_start}");
        }
    }
}

#[test]
fn a_checksum_over_addresses() {
    // Stored over them, it would change who the frame is from after that was looked at.
    let packet = Packet { tcp: false, ..Packet::default() };
    for (csum_start, csum_offset) in (0..34).flat_map(|a| (0..40).map(move |b| (a, b))) {
        let offload = Offload { csum_start, csum_offset, ..packet.offload(0) };
        assert_eq!(refused(&packet.unfinished(), offload), BAD, "{csum_start} {csum_offset}");
    }
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let offload = Offload { csum_start: 14, csum_offset: 14, ..packet.offload(0) };
    assert_eq!(refused(&arp, offload), BAD);
    arp[12..14].copy_from_slice(&[0x80, 0x35]);
    assert_eq!(refused(&arp, offload), BAD);
    // IEEE 802.2 behind a length: the sum would make SNAP of it, with ARP inside.
    for length in [0u16, 46, 0x5ff] {
        arp[12..14].copy_from_slice(&length.to_be_bytes());
        assert_eq!(refused(&arp, Offload { csum_offset: 0, ..offload }), BAD, "{length}");
    }
    // An unknown protocol may be summed, behind its EtherType.
    arp[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(refused(&arp, offload), None);
    assert_eq!(refused(&arp, Offload { csum_start: 13, ..offload }), BAD);
}

#[test]
fn gso_size_zero() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let packet = Packet { v6, tcp, ..Packet::default() };
        let offload = Offload { gso_size: 0, ..packet.offload(1000) };
        assert_eq!(refused(&packet.unfinished(), offload), BAD);
    }
}

#[test]
fn frames_shorter_than_an_ethernet_header() {
    let mut batch = Batch::new();
    for len in 0..14 {
        let pieces = [Slice::from_bytes(&[0; 14][..len])];
        assert_eq!(batch.add(&pieces, Offload::NONE), Err(Reason::Runt));
    }
    assert!(batch.is_empty());
}

#[test]
fn ip_length_shorter_than_its_headers() {
    let packet = Packet::default();
    for len in 0..u16::try_from(packet.header_len() - packet.l3()).unwrap() {
        let bytes = changed(&packet, 16, &len.to_be_bytes());
        assert!(!Headers::parse(&bytes[..HEAD], bytes.len()).parsed, "{len}");
        if len > 0 {
            assert_eq!(refused(&bytes, packet.offload(1000)), HEADER);
        }
    }
    let packet = Packet { tcp: false, ..packet };
    for len in 0..8u8 {
        let bytes = changed(&packet, 38, &[0, len]);
        assert!(!Headers::parse(&bytes[..HEAD], bytes.len()).parsed, "UDP {len}");
    }
    // One byte more than the packet has, with padding behind it.
    let bytes = [&changed(&packet, 38, &4009u16.to_be_bytes())[..], &[0; 9]].concat();
    assert!(!Headers::parse(&bytes[..HEAD], bytes.len()).parsed, "UDP beyond its packet");
}

#[test]
fn protocol_zero_is_no_wildcard() {
    let packet = Packet::default();
    let bytes = changed(&packet, 23, &[0]);
    let h = Headers::parse(&bytes[..HEAD], bytes.len());
    assert_eq!((h.parsed, h.protocol, h.header_len), (true, 0, 0));
    assert_eq!(refused(&bytes, packet.offload(1000)), HEADER);
}

#[test]
fn a_checksum_over_a_neighbour_discovery_message() {
    let packet = Packet { v6: true, ..Packet::default() };
    let bytes = changed(&packet, 20, &[58]);
    for csum_offset in 0..60 {
        let offload = Offload { csum_offset, ..packet.offload(0) };
        let expected = if csum_offset == 2 { None } else { BAD };
        assert_eq!(refused(&bytes, offload), expected);
    }
}

#[test]
fn bytes_missing_from_or_behind_the_packet() {
    let packet = Packet::default();
    let bytes = packet.unfinished();
    assert_eq!(refused(&bytes[..bytes.len() - 1], packet.offload(1000)), HEADER);
    assert_eq!(refused(&[&bytes[..], &[0]].concat(), packet.offload(1000)), HEADER);
}

#[test]
fn claims_that_do_not_fit_the_packet() {
    let packet = Packet::default();
    let good = packet.offload(1000);
    for gso in [Gso::Tcp6, Gso::Udp] {
        assert_eq!(refused(&packet.unfinished(), Offload { gso, ..good }), BAD);
    }
    assert_eq!(refused(&packet.unfinished(), Offload { needs_csum: false, ..good }), BAD);
    let udp = Packet { tcp: false, ..packet.clone() };
    assert_eq!(refused(&udp.unfinished(), Offload { ecn: true, ..udp.offload(1000) }), BAD);
    // Fragments cannot be segmented, nor can what a routing header sends elsewhere.
    for fragment in [[0x20u8, 0], [0, 1], [0x3f, 0xff]] {
        assert_eq!(refused(&changed(&packet, 20, &fragment), good), BAD);
    }
    let v6 = Packet { v6: true, ip_options: 1, ..packet };
    assert_eq!(refused(&changed(&v6, 20, &[43]), v6.offload(1000)), HEADER);
    assert_eq!(refused(&changed(&v6, 20, &[44]), v6.offload(1000)), BAD);
}

#[test]
fn claims_without_meaning_are_cleared() {
    let packet = Packet::default();
    let offload =
        Offload { needs_csum: false, csum_valid: true, gso: Gso::None, ..packet.offload(9) };
    let cleared = Offload { csum_valid: true, ..Offload::NONE };
    assert_eq!(offload.check(&packet.whole()[..HEAD], 4066), Ok(cleared));
    let bytes = packet.whole();
    let mut batch = Batch::new();
    batch.add(&[Slice::from_bytes(&bytes)], offload).unwrap();
    assert_eq!(batch.frame(0).unwrap().offload, cleared);
    let both = Offload { csum_valid: true, ..packet.offload(0) };
    assert!(!both.check(&packet.unfinished()[..HEAD], 4066).unwrap().csum_valid);
}

#[test]
fn the_inner_checksum_of_a_tunnel_may_be_left() {
    let packet = Packet { tcp: false, ..Packet::default() };
    let inner = Offload { csum_start: 42 + 8 + 14 + 20, csum_offset: 16, ..packet.offload(0) };
    assert_eq!(refused(&packet.unfinished(), inner), None);
    assert_eq!(refused(&packet.unfinished(), Offload { csum_start: 41, ..inner }), BAD);
}
