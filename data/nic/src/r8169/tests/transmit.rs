//! Transmit: what comes out, byte by byte.

use vmlan_frame::{Gso, Reason};

use super::guest::*;

#[test]
fn frames_come_out_and_are_written_back() {
    let mut guest = Guest::new();
    for round in 0..10u64 {
        let frames: Vec<_> = (0..40).map(|i| frame([2; 6], 60 + 31 * i + round as usize)).collect();
        let first = guest.tx;
        for (n, frame) in frames.iter().enumerate() {
            guest.send(n as u64, frame);
        }
        let lent = guest.pull();
        assert_eq!(lent.len(), 40);
        for (lent, frame) in lent.iter().zip(&frames) {
            assert_eq!(lent.bytes, *frame);
        }
        for i in (first..first + 40).map(|i| i % SIZE) {
            let eor = if i == SIZE - 1 { EOR } else { 0 };
            assert_eq!(guest.tx_opts(i) & (OWN | EOR | FS | LS), eor | FS | LS);
        }
    }
    assert_eq!(guest.statistic("TxOk"), 400);
}

#[test]
fn short_frames_are_padded_and_fragments_joined() {
    let mut guest = Guest::new();
    let whole = frame([2; 6], 900);
    let at = guest.fill(0, &whole);
    guest.give(&[
        (FS | 14, 0, at),
        (1, 0, at + 14),
        (0, 0, at),
        (600, 0, at + 15),
        (LS | 285, 0, at + 615),
        (FS | LS | 20, 0, at),
    ]);
    let lent = guest.pull();
    assert_eq!(lent[0].bytes, whole);
    assert_eq!((lent[1].bytes.len(), &lent[1].bytes[20..]), (60, &[0; 40][..]));
    // Without its end it waits.
    guest.give(&[(FS | 100, 0, at)]);
    assert!(guest.pull().is_empty());
    assert!(!guest.chip.arm());
    guest.give(&[(LS | 800, 0, at + 100)]);
    assert!(guest.chip.arm());
    assert_eq!(guest.pull()[0].bytes, whole);
}

#[test]
fn the_high_queue_is_served_first() {
    let mut guest = Guest::new();
    guest.set64(THPDS, HIGH_RING);
    (0..3).for_each(|n| guest.send(n, &frame([2; 6], 100 + n as usize)));
    for n in 0..2u32 {
        let at = guest.fill(u64::from(8 + n), &frame([2; 6], 200 + n as usize));
        let eor = if n == 1 { EOR } else { 0 };
        guest.tx_desc(HIGH_RING, n, OWN | FS | LS | eor | (200 + n), 0, at);
    }
    guest.set8(TPPOLL, HPQ);
    let mut take = Take::default();
    assert_eq!(guest.chip.pull(&mut guest.batch, 1, &mut take), 1);
    assert_eq!(guest.chip.pull(&mut guest.batch, 3, &mut take), 3);
    assert_eq!(guest.chip.pull(&mut guest.batch, 256, &mut take), 1);
    let lens: Vec<_> = take.frames.iter().map(|f| f.bytes.len()).collect();
    assert_eq!(lens, [200, 201, 100, 101, 102]);
    assert_eq!(guest.word(HIGH_RING + 16), EOR | FS | LS | 201);
    // Either alone keeps the worker awake.
    assert!(!guest.chip.arm());
    guest.tx_desc(HIGH_RING, 0, OWN | FS | LS | 60, 0, TX_BUFFERS);
    assert!(guest.chip.arm());
    assert_eq!(guest.pull().len(), 1);
    guest.send(0, &frame([2; 6], 100));
    assert!(guest.chip.arm());
}

/// TAGC: the tag's bytes stand in opts2 in the order of the wire.
#[test]
fn tags_are_inserted() {
    let mut guest = Guest::new();
    let plain = frame([2; 6], 60);
    let at = guest.fill(0, &plain);
    guest.give(&[(FS | LS | 60, TAGC | 0x23a1, at), (FS | LS | 60, 0x23a1, at)]);
    let lent = guest.pull();
    let mut want = plain.clone();
    want.splice(12..12, [0x81, 0, 0xa1, 0x23]);
    assert_eq!((&lent[0].bytes, &lent[1].bytes), (&want, &plain));
}

/// The chip finds headers itself, and what stands where the sums go counts for nothing.
#[test]
fn checksums_are_left_to_the_receiver_or_computed() {
    for (tcp, vlan, split) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
        let mut guest = Guest::new();
        let want = packet(tcp, 1001);
        let at = guest.fill(0, &unfinished(&want));
        let command = IPCS | if tcp { TCPCS } else { UDPCS };
        let opts2 = if vlan { TAGC | 0x0500 } else { 0 };
        let len = want.len() as u32;
        if split {
            guest.give(&[
                (FS | command | 20, opts2, at),
                (LS | command | (len - 20), opts2, at + 20),
            ]);
        } else {
            guest.give(&[(FS | LS | command | len, opts2, at)]);
        }
        let lent = guest.pull().remove(0);
        assert!(lent.offload.needs_csum, "the receiver's, or egress'");
        let mut got = finish(&lent).remove(0);
        if vlan {
            assert_eq!(got.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 5]);
        }
        assert_eq!(got, want);
    }
}

/// FreeBSD and OpenBSD ask for it with every IPv4 packet. Of what is behind the header nothing is
/// changed, whatever is asked for.
#[test]
fn the_header_sum_of_later_fragments() {
    for options in [0, 4, 40] {
        let want = later_fragment(options);
        for command in [IPCS, IPCS | UDPCS, IPCS | TCPCS] {
            for tag in [0, TAGC | 0x0500] {
                let mut guest = Guest::new();
                let mut sent = want.clone();
                sent[24..26].fill(if tag == 0 { 0 } else { 0x11 });
                let at = guest.fill(0, &sent);
                guest.give(&[(FS | LS | command | sent.len() as u32, tag, at)]);
                let mut got = finish(&guest.pull().remove(0)).remove(0);
                if tag != 0 {
                    assert_eq!(got.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 5]);
                }
                assert_eq!(got, want);
            }
        }
    }
}

#[test]
fn checksums_of_what_has_none_are_not_computed() {
    let mut guest = Guest::new();
    // No IP; IPv6; TCP asked for where there is UDP.
    let odd = frame([2; 6], 100);
    let mut v6 = packet(true, 100);
    (v6[12], v6[13]) = (0x86, 0xdd);
    let mut udp = packet(false, 100);
    udp[40..42].fill(0x22);
    for bytes in [odd, v6, udp] {
        let at = guest.fill(0, &bytes);
        guest.give(&[(FS | LS | TCPCS | bytes.len() as u32, 0, at)]);
        let lent = guest.pull().remove(0);
        assert_eq!(finish(&lent), [bytes]);
    }
    assert_eq!(guest.dropped(), 0);
    // Padding behind a packet is not part of the sum.
    let want = packet(true, 2);
    let mut padded = unfinished(&want);
    padded.resize(200, 0xaa);
    let at = guest.fill(0, &padded);
    guest.give(&[(FS | LS | IPCS | TCPCS | 200, 0, at)]);
    let got = finish(&guest.pull().remove(0)).remove(0);
    assert_eq!(got[..want.len()], want);
}

/// LGSEN: segments must be those that the whole packet, cut by hand, gives.
#[test]
fn large_send() {
    for (vlan, payload, parts) in [(false, 4_000, 1), (true, 4_000, 3), (false, 60_000, 20)] {
        let mut guest = Guest::new();
        let whole = packet(true, payload);
        let left = unfinished(&whole);
        let at = guest.fill(0, &left);
        let mss = 1000u32;
        let command = LGSEN | mss << 16;
        let opts2 = if vlan { TAGC | 0x0900 } else { 0 };
        let each = left.len().div_ceil(parts);
        let mut descriptors = vec![];
        for from in (0..left.len()).step_by(each) {
            let n = (left.len() - from).min(each);
            let ends = if from == 0 { FS } else { 0 } | if from + n == left.len() { LS } else { 0 };
            descriptors.push((ends | command | n as u32, opts2, at + from as u64));
        }
        guest.give(&descriptors);
        let lent = guest.pull().remove(0);
        assert_eq!((lent.offload.gso, lent.offload.gso_size), (Gso::Tcp4, 1000));
        let segments = finish(&lent);
        assert_eq!(segments.len(), payload.div_ceil(1000));
        for (k, segment) in segments.iter().enumerate() {
            let mut segment = segment.clone();
            if vlan {
                assert_eq!(segment.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 9]);
            }
            let part = &whole[66..][k * 1000..][..(payload - k * 1000).min(1000)];
            assert_eq!(&segment[66..], part);
            assert_eq!((sum(&segment[14..34]), upper_sum(&segment)), (0xffff, 0xffff));
            let sequence = u32::from_be_bytes(segment[38..42].try_into().unwrap());
            assert_eq!(sequence as usize, 1000 + k * 1000);
        }
        assert_eq!(guest.statistic("TxOk"), segments.len() as u64);
    }
}

#[test]
fn large_send_of_what_fits_one_segment() {
    let mut guest = Guest::new();
    let whole = packet(true, 900);
    let at = guest.fill(0, &unfinished(&whole));
    guest.give(&[(FS | LS | LGSEN | 1000 << 16 | whole.len() as u32, 0, at)]);
    let lent = guest.pull().remove(0);
    assert_eq!(lent.offload.gso, Gso::None);
    assert_eq!(finish(&lent), [whole]);
}

#[test]
fn jumbo_frames() {
    let mut guest = Guest::new();
    for len in [1515, 7000, 9014, 9018] {
        let frame = frame([2; 6], len);
        guest.send(0, &frame);
        assert_eq!(guest.pull()[0].bytes, frame);
    }
    let long: Vec<_> = [FS, 0, 0, 0, LS].map(|ends| (ends | 16_000, 0, TX_BUFFERS)).into();
    refused(&mut guest, &long, Reason::TooLong);
}

/// Posts what must be dropped, and looks whether the ring goes on.
pub fn refused(guest: &mut Guest, descriptors: &[(u32, u32, u64)], reason: Reason) {
    let before = guest.chip.counters().input.dropped(reason);
    let first = guest.tx;
    guest.give(descriptors);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.chip.counters().input.dropped(reason), before + 1, "{reason:?}");
    for i in 0..descriptors.len() as u32 {
        assert_eq!(guest.tx_opts((first + i) % SIZE) & OWN, 0, "given back");
    }
    guest.send(7, &frame([2; 6], 80));
    assert_eq!(guest.pull().len(), 1);
}

/// TCR.CRC: the frame brings its FCS.
#[test]
fn frames_with_an_fcs_of_their_own() {
    let mut guest = Guest::new();
    guest.set32(TCR, 1 << 16);
    let mut long = frame([2; 6], 104);
    guest.send(0, &long);
    long.truncate(100);
    assert_eq!(guest.pull()[0].bytes, long);
}

#[test]
fn held_frames_are_lent_again_and_complete_in_order() {
    let mut guest = Guest::new();
    (0..4).for_each(|n| guest.send(n, &frame([2; 6], 100 + n as usize)));
    let mut take = Take { hold: vec![1, 3], ..Take::default() };
    assert_eq!(guest.pull_to(&mut take), 2);
    let owned = |guest: &Guest| (0..6).filter(|i| guest.tx_opts(*i) & OWN != 0).collect::<Vec<_>>();
    assert_eq!(owned(&guest), [1, 2, 3], "in order: 2 is done, and waits for 1");
    guest.send(4, &frame([2; 6], 104));
    let mut again = Take { hold: vec![0], ..Take::default() };
    assert_eq!(guest.pull_to(&mut again), 2);
    let lens: Vec<_> = again.frames.iter().map(|f| f.bytes.len()).collect();
    assert_eq!((lens, owned(&guest)), (vec![101, 103, 104], vec![1, 2, 3, 4]));
    assert!(!guest.chip.arm(), "held frames are waited for elsewhere");
    assert_eq!(guest.pull().len(), 1);
    assert!(owned(&guest).is_empty());
    assert_eq!(guest.statistic("TxOk"), 5);
}

#[test]
fn a_cable_pulled_out_stops_the_ring() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 100));
    guest.chip.set_link(false);
    assert!(guest.pull().is_empty());
    assert_ne!(guest.tx_opts(0) & OWN, 0);
    guest.chip.set_link(true);
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn turning_the_transmitter_off_and_on_begins_anew() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 100));
    assert_eq!(guest.pull().len(), 1);
    guest.set8(CR, RE);
    guest.set8(CR, RE | TE);
    guest.tx = 0;
    guest.send(0, &frame([2; 6], 100));
    assert_eq!(guest.pull().len(), 1);
    // Without bus master, it goes on where it was.
    guest.config_write(4, &[3]);
    guest.config_write(4, &[7]);
    guest.send(0, &frame([2; 6], 100));
    assert_eq!(guest.pull().len(), 1);
}

/// A boot loader's rings: one descriptor each.
#[test]
fn rings_of_one_descriptor() {
    let mut guest = Guest::new();
    guest.set8(CR, RST);
    guest.start();
    guest.tx_desc(TX_RING, 0, EOR, 0, 0);
    guest.tx_desc(RX_RING, 0, OWN | EOR | ROOM, 0, RX_BUFFERS);
    for n in 0..5usize {
        let sent = frame([2; 6], 60 + n);
        let at = guest.fill(0, &sent);
        guest.tx_desc(TX_RING, 0, OWN | EOR | FS | LS | sent.len() as u32, 0, at);
        guest.set8(TPPOLL, NPQ);
        assert_eq!(guest.pull()[0].bytes, sent);
        assert_eq!(guest.tx_opts(0) & (OWN | EOR), EOR);
        assert!(guest.pull().is_empty());
        let came = frame(MAC, 60 + n);
        assert_eq!(guest.arrive_plain(&[&came]), 1);
        assert_eq!(guest.arrive_plain(&[&came]), 0, "there is but one buffer");
        assert_eq!(
            guest.received(0).0 & (OWN | EOR | FS | LS | 0x3fff),
            EOR | FS | LS | (64 + n as u32)
        );
        guest.tx_desc(RX_RING, 0, OWN | EOR | ROOM, 0, RX_BUFFERS);
    }
}

/// One descriptor always stays out of reach, so such a frame never is whole: what comes behind it
/// must not wait for that.
#[test]
fn a_frame_as_long_as_its_ring_stops_nobody() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 60));
    guest.give(&[(FS | 20, 0, at), (20, 0, at), (20, 0, at)]);
    assert!(guest.pull().is_empty() && !guest.chip.arm(), "unfinished");
    guest.tx_desc(TX_RING, 3, OWN | EOR | LS | 20, 0, at);
    (0..4).for_each(|_| _ = guest.pull());
    assert_eq!((guest.tx_opts(3) & OWN, guest.dropped()), (0, 1));
    guest.tx = 0;
    guest.send(0, &frame([2; 6], 60));
    assert_eq!(guest.pull().len(), 1);
}
