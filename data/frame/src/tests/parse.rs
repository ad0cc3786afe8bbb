//! The parser, alone and against another one.
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::packet::{Packet, packets};
use crate::headers::{ICMPV6, TCP, UDP};
use crate::{HEAD, Headers, Network, flow_hash};

fn parse(bytes: &[u8]) -> Headers {
    Headers::parse(&bytes[..bytes.len().min(HEAD)], bytes.len())
}

/// Ethernet and IPv6 with these extension headers (kind, then bytes without the next-header field),
/// then `last`.
fn v6(extensions: &[(u8, &[u8])], last: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0]);
    bytes.push(extensions.first().map_or(last, |e| e.0));
    bytes.push(64);
    bytes.extend([0x20; 32]);
    for (i, (_, body)) in extensions.iter().enumerate() {
        bytes.push(extensions.get(i + 1).map_or(last, |e| e.0));
        bytes.extend(*body);
    }
    bytes.extend(rest);
    let payload = (bytes.len() - 54) as u16;
    bytes[18..20].copy_from_slice(&payload.to_be_bytes());
    bytes
}

proptest! {
    #[test]
    fn good_packets_are_parsed(packet in packets()) {
        prop_assume!(packet.header_len() <= HEAD);
        let h = parse(&packet.whole());
        prop_assert!(h.parsed && !h.fragment && !h.routing);
        prop_assert_eq!(usize::from(h.tags), packet.tags);
        let places = (packet.l3(), packet.l4(), packet.header_len());
        prop_assert_eq!((h.l3, h.l4, h.header_len), places);
        prop_assert_eq!(h.network, if packet.v6 { Network::Ipv6 } else { Network::Ipv4 });
        prop_assert_eq!(h.protocol, if packet.tcp { TCP } else { UDP });
        prop_assert_eq!(h.tci, [None, Some(5), Some(6)][packet.tags]);
    }

    /// What we call parsed, another parser accepts and finds at the same place.
    #[test]
    fn another_parser_agrees(
        packet in packets(),
        changes in prop::collection::vec((0..HEAD, any::<u8>()), 0..4),
        cut in 0..200usize,
    ) {
        let mut bytes = packet.whole();
        bytes.truncate(bytes.len().max(cut) - cut);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let h = parse(&bytes);
        if h.parsed && !h.fragment && (h.protocol == TCP || h.protocol == UDP) {
            let other = SlicedPacket::from_ethernet(&bytes).unwrap();
            let (protocol, payload) = match other.transport.unwrap() {
                TransportSlice::Tcp(tcp) => (TCP, tcp.payload()),
                TransportSlice::Udp(udp) => (UDP, udp.payload()),
                _ => (0, &[][..]),
            };
            let offset = payload.as_ptr() as usize - bytes.as_ptr() as usize;
            prop_assert_eq!((h.protocol, h.header_len), (protocol, offset));
            let (source, _) = h.addresses(&bytes).unwrap();
            match other.net.unwrap() {
                NetSlice::Ipv4(ip) => prop_assert_eq!(source, ip.header().source()),
                NetSlice::Ipv6(ip) => prop_assert_eq!(source, ip.header().source()),
                NetSlice::Arp(_) => unreachable!(),
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        len in 0..300usize,
    ) {
        let h = Headers::parse(&bytes, len);
        prop_assert!(h.header_len <= HEAD && h.l4 <= HEAD);
        let _ = flow_hash(&bytes, len);
    }
}

#[test]
fn every_truncation_is_unparsed() {
    let bytes = Packet { payload: vec![1; 20], tags: 2, ..Packet::default() }.whole();
    for len in 0..bytes.len() {
        assert!(!parse(&bytes[..len]).parsed, "{len}");
    }
    assert!(parse(&bytes).parsed);
    // Padding behind the packet is fine: short frames have it.
    assert!(parse(&[&bytes[..], &[0; 6]].concat()).parsed);
}

#[test]
fn extension_headers_are_walked() {
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    let pad = [0u8; 7];
    let bytes = v6(&[(0, &pad), (60, &pad), (60, &pad)], UDP, &udp);
    let h = parse(&bytes);
    assert!(h.parsed);
    assert_eq!((h.l4, h.protocol, h.header_len), (54 + 24, UDP, 54 + 32));
    // Hop-by-hop options anywhere else are hostile.
    assert!(!parse(&v6(&[(60, &pad), (0, &pad)], UDP, &udp)).parsed);
    assert_eq!(parse(&v6(&[(60, &pad), (0, &pad)], UDP, &udp)).l4, 0);
    assert!(parse(&v6(&[(43, &pad)], UDP, &udp)).routing);
    // One that says it is longer than the snapshot.
    let long = [40, 0, 0, 0, 0, 0, 0];
    let h = parse(&v6(&[(60, &long)], UDP, &udp));
    assert_eq!((h.parsed, h.l4, h.network), (false, 0, Network::Ipv6));
    // Located, not looked into.
    let h = parse(&v6(&[(60, &pad)], ICMPV6, &[135, 0, 0, 0]));
    assert_eq!((h.parsed, h.l4, h.header_len, h.protocol), (true, 62, 0, ICMPV6));
}

#[test]
fn fragments_show_ports_only_in_the_first() {
    let udp = [0, 1, 0, 2, 0, 100, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let h = parse(&v6(&[(44, &[0, 0, 1, 0, 0, 0, 1])], UDP, &udp));
    assert_eq!((h.fragment, h.parsed, h.l4), (true, true, 62));
    let h = parse(&v6(&[(44, &[0, 0, 9, 0, 0, 0, 1])], UDP, &udp));
    assert_eq!((h.fragment, h.parsed, h.l4, h.protocol), (true, false, 0, UDP));
    let mut bytes = Packet { tcp: false, ..Packet::default() }.whole();
    bytes[20] = 0x20;
    assert_eq!((parse(&bytes).fragment, parse(&bytes).l4), (true, 34));
    bytes[21] = 1;
    assert_eq!((parse(&bytes).fragment, parse(&bytes).l4, parse(&bytes).parsed), (true, 0, false));
}

#[test]
fn a_third_tag_stays_closed() {
    let mut bytes = Packet { tags: 2, ..Packet::default() }.whole();
    bytes.splice(12..12, [0x88, 0xa8, 0, 9]);
    let h = parse(&bytes);
    assert_eq!((h.tags, h.ethertype, h.network, h.parsed), (2, 0x8100, Network::Other, false));
    assert_eq!(h.tci, Some(9));
}

#[test]
fn flow_hash_is_symmetric_and_spreads() {
    let packet = Packet::default();
    let mut bytes = packet.whole();
    let there = flow_hash(&bytes[..HEAD], bytes.len());
    let (a, b): (Vec<u8>, Vec<u8>) = (bytes[26..30].to_vec(), bytes[30..34].to_vec());
    bytes[26..30].copy_from_slice(&b);
    bytes[30..34].copy_from_slice(&a);
    bytes[34..38].rotate_left(2);
    assert_eq!(flow_hash(&bytes[..HEAD], bytes.len()), there);
    let mut queues = [0; 8];
    for port in 0..8000u16 {
        bytes[34..36].copy_from_slice(&(40_000 + port).to_be_bytes());
        queues[flow_hash(&bytes[..HEAD], bytes.len()) as usize % 8] += 1;
    }
    assert!(queues.iter().all(|n| (800..1200).contains(n)), "{queues:?}");
    // Fragments of one packet stay together, whatever their first bytes are.
    bytes[20] = 0x20;
    let first = flow_hash(&bytes[..HEAD], bytes.len());
    bytes[21] = 7;
    bytes[34..38].fill(0x55);
    assert_eq!(flow_hash(&bytes[..HEAD], bytes.len()), first);
}
