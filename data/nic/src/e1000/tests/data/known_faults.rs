//! What broke the emulated NICs of others, as far as this chip can be asked for it: a test for each
//! class of fault. `docs/known-faults.md` says who had it.

use std::os::fd::AsFd;

use vmlan_frame::{Offload, Reason};

use super::guest::*;
use super::tx::{Context, unfinished};
use crate::chip::Fault;

/// Descriptors one pull may visit: its budget, and one frame.
const VISITS: u32 = 4096 + 128;
const LPE: u32 = 1 << 5;
const ON: u32 = 2 | 1 << 15;
/// Where QEMU's PCI bridge would put BAR0.
const BAR0: u64 = 0xfebc_0000;

fn refused(guest: &mut Guest, descriptors: &[(u64, u64)], reason: Reason) {
    let before = guest.chip.counters().input.dropped(reason);
    guest.post(descriptors);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.chip.counters().input.dropped(reason), before + 1, "{reason:?}");
    assert_eq!(guest.get(TD + HEAD), guest.tx_tail, "the ring goes on");
    guest.send(7, &frame([2; 6], 80));
    assert_eq!(guest.pull().len(), 1);
}

/// A frame for segmentation, whose context was tampered with.
fn segment(context: impl Fn(&mut Context), options: u64, reason: Reason) {
    for v6 in [false, true] {
        let mut guest = Guest::new();
        guest.set(CTRL, SLU | VME);
        let packet = tcp(v6, 5000);
        let at = guest.fill(0, &unfinished(&packet, true));
        let mut c = Context::of(&packet, 1000);
        context(&mut c);
        let data = (at, packet.len() as u64 | DATA | TSE | LAST | IXSM | TXSM | options);
        refused(&mut guest, &[c.descriptor(), data], reason);
        assert_eq!(guest.statistic("TSCTFC"), 1);
    }
}

#[test]
fn legacy_descriptors_amid_segmentation() {
    let mut guest = Guest::new();
    let packet = tcp(false, 5000);
    let at = guest.fill(0, &unfinished(&packet, true));
    let context = Context::of(&packet, 1000).descriptor();
    let first = (at, 4000 | DATA | TSE | IFCS | TXSM);
    let legacy = (at + 4000, (packet.len() as u64 - 4000) | LAST);
    refused(&mut guest, &[context, first, legacy], Reason::BadDescriptor);
    // And so much that the sum would not fit the chip's packet buffer.
    let mut long = vec![context];
    long.extend([(at, 0xffff | DATA | TSE | IFCS | TXSM); 20]);
    long.push((at, 0xffff | DATA | TSE | LAST | TXSM));
    refused(&mut guest, &long, Reason::TooLong);
}

#[test]
fn a_frame_longer_than_the_buffers_with_sbp() {
    for rctl in [ON | 4, ON | 4 | 3 << 16, ON | 4 | LPE | 3 << 16] {
        let guest = Guest::new();
        guest.write(RX_BUFFERS, &[0xee; 64 * 2048]);
        guest.set(RCTL, rctl);
        guest.arrive_plain(&[&frame(MAC, 9000)]);
        let size = if rctl & 3 << 16 == 0 { 2048 } else { 256 };
        for i in 0..64u64 {
            let behind = guest.read(RX_BUFFERS + 2048 * i + size, 2048 - size as usize);
            assert!(behind.iter().all(|b| *b == 0xee));
        }
    }
}

#[test]
fn the_fcs_stays_in_the_buffer() {
    for (len, rctl) in [(1020, 1 << 16), (1024, 1 << 16), (1021, 1 << 16), (60, 0)] {
        let guest = Guest::new();
        guest.set(RCTL, ON | rctl);
        let size = if rctl == 0 { 2048 } else { 1024 };
        guest.write(RX_BUFFERS, &[0xee; 8192]);
        // The last buffer of memory: one byte more would be outside.
        guest.rx_desc(0, RX_BUFFERS);
        guest.rx_desc(1, MEMORY - size);
        assert_eq!(guest.arrive_plain(&[&frame(MAC, len), &frame(MAC, len)]), 2);
        let used = guest.received(0).0.min(size as usize);
        assert_eq!(guest.read(RX_BUFFERS + used as u64, 32), [0xee; 32]);
    }
}

#[test]
fn segmentation_without_headers_or_mss() {
    segment(|c| (c.hdrlen, c.mss) = (0, 0), 0, Reason::BadOffload);
    segment(|c| c.mss = 0, 0, Reason::BadOffload);
    segment(|c| (c.paylen, c.hdrlen) = (c.paylen + c.hdrlen, 0), 0, Reason::BadHeader);
}

#[test]
fn heads_and_tails_outside_the_ring() {
    let mut guest = Guest::new();
    for (register, value) in
        [(HEAD, SIZE), (HEAD, 0xffff), (TAIL, SIZE), (TAIL, 0xffff), (TAIL, u32::MAX)]
    {
        guest.send(0, &frame([2; 6], 60));
        guest.set(TD + register, value);
        guest.set(RD + register, value);
        assert!(guest.pull().is_empty());
        assert!(matches!(guest.chip.fault(), Some(Fault::BadIndex { .. })));
        assert!(!guest.chip.arm(), "nothing to stay awake for");
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
        assert_eq!(guest.chip.room(), 0);
        // The guest corrects it, and all is well.
        guest.start();
        guest.send(0, &frame([2; 6], 60));
        assert_eq!(guest.pull().len(), 1);
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
        assert_eq!(guest.chip.fault(), None);
    }
}

#[test]
fn null_receive_buffers() {
    let guest = Guest::new();
    (0..10).for_each(|i| guest.rx_desc(i, 0));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert!((0..10).all(|i| guest.received(i) == (0, 1, 0, 0)));
    assert_eq!(guest.received(10).0, 64);
    // A ring of nothing else is used up, and is then full.
    let guest = Guest::new();
    (0..SIZE).for_each(|i| guest.rx_desc(i, 0));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
    assert_eq!(guest.get(RD + HEAD), SIZE - 1);
    // Amid a frame of several buffers.
    let guest = Guest::new();
    guest.set(RCTL, ON | 3 << 16);
    guest.rx_desc(1, 0);
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 600), &frame(MAC, 60)]), 2);
    assert_eq!(guest.chip.counters().output.dropped(Reason::BadDescriptor), 1);
    assert!((0..3).all(|i| guest.received(i) == (0, 7, 0x80, 0)), "RXE, no data");
    assert_eq!(guest.received(3).0, 64);
}

#[test]
fn rings_without_progress_cost_a_bounded_pass() {
    let packet = tcp(false, 100);
    let context = Context::of(&packet, 0).descriptor();
    let patterns = [
        context,
        (0, LAST),
        (TX_BUFFERS, DATA | LAST),
        (TX_BUFFERS, DATA | TSE | IFCS),
        (0, 0),
        (TX_BUFFERS, 1),
        (TX_BUFFERS, DEXT | 7 << 20),
        (u64::MAX, 0xf_ffff | DATA | LAST),
        (TX_BUFFERS, 13 | LAST),
    ];
    // The largest ring, all alike.
    let size = 65_528;
    for (first, second) in patterns {
        let mut guest = Guest::new();
        let ring = 0x10_0000;
        for i in 0..u64::from(size) {
            guest.write(ring + 16 * i, &first.to_le_bytes());
            guest.write(ring + 16 * i + 8, &second.to_le_bytes());
        }
        guest.ring(TD, ring, size);
        guest.set(TD + TAIL, size - 1);
        let mut passes = 0;
        while guest.get(TD + HEAD) != size - 1 {
            let before = guest.get(TD + HEAD);
            assert!(guest.pull().is_empty());
            let moved = guest.get(TD + HEAD) - before;
            assert!(moved > 0 && moved <= VISITS, "{moved} for {second:#x}");
            passes += 1;
        }
        assert!(passes >= 15);
        assert!(!guest.chip.arm());
    }
}

/// Behind a frame that is held nothing piles up that would be written back in one pass.
#[test]
fn descriptors_behind_a_held_frame() {
    let mut guest = Guest::new();
    let (ring, size) = (0x10_0000, 65_528);
    let context = Context::of(&tcp(false, 100), 0).descriptor();
    for i in 0..u64::from(size) {
        guest.write(ring + 16 * i, &context.0.to_le_bytes());
        guest.write(ring + 16 * i + 8, &(context.1 | RS).to_le_bytes());
    }
    let at = guest.fill(0, &frame([2; 6], 60));
    guest.write(ring, &at.to_le_bytes());
    guest.write(ring + 8, &(60 | LAST).to_le_bytes());
    guest.ring(TD, ring, size);
    guest.set(TD + TAIL, size - 1);
    for _ in 0..20 {
        guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
        assert_eq!(guest.get(TD + HEAD), 0);
    }
    assert!(!guest.chip.arm(), "it is the held frame that is waited for");
    assert_eq!(guest.pull().len(), 1);
    assert!(guest.get(TD + HEAD) <= 3 * VISITS, "{}", guest.get(TD + HEAD));
    assert!(guest.chip.arm());
}

#[test]
fn frames_in_registers() {
    let mut guest = Guest::new();
    for at in [BAR0, BAR0 + 0x3818, MEMORY, MEMORY - 1, u64::MAX, u64::MAX - 59] {
        refused(&mut guest, &[(at, 60 | LAST)], Reason::BadDescriptor);
        let ok = guest.fill(0, &[1; 60]);
        refused(&mut guest, &[(ok, 60), (at, 60 | LAST)], Reason::BadDescriptor);
    }
}

#[test]
fn buffers_in_registers_and_in_the_ring_itself() {
    for at in [BAR0, BAR0 + 0x2818, MEMORY, MEMORY - 1, u64::MAX - 8] {
        let guest = Guest::new();
        guest.rx_desc(0, at);
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60), &frame(MAC, 61)]), 2);
        assert_eq!(guest.chip.counters().output.dropped(Reason::BadDescriptor), 1);
        assert_eq!((guest.received(0), guest.received(1).0), ((0, 7, 0x80, 0), 65));
    }
    // Frames written over descriptors: garbage for that guest, and an end.
    let mut guest = Guest::new();
    (0..SIZE).for_each(|i| guest.rx_desc(i, RX_RING));
    let frames = vec![frame(MAC, 1000); 40];
    let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    for _ in 0..5 {
        guest.arrive_plain(&refs);
    }
    guest.start();
    assert_eq!(guest.arrive_plain(&refs), 40);
}

#[test]
fn loopback_of_short_frames_is_no_recursion() {
    for lbm in [1, 3] {
        let mut guest = Guest::new();
        guest.set(RCTL, ON | lbm << 6);
        // One buffer for both directions: what is received is what is sent.
        for round in 0..100u64 {
            let len = 14 + round as usize % 60;
            guest.send(0, &frame(MAC, len));
            assert!(guest.pull().is_empty());
            let index = round as u32 % SIZE;
            assert_eq!(guest.received(index).0, len.max(60) + 4);
            guest.rx_desc((index + 1) % SIZE, TX_BUFFERS);
            guest.set(RD + TAIL, index);
        }
        assert_eq!(guest.statistic("GPRC"), 100);
    }
}

#[test]
fn frames_of_too_many_pieces() {
    let mut guest = Guest::new();
    let size = 1024;
    let ring = 0x10_0000;
    guest.ring(TD, ring, size);
    // 1000 pieces, then their end, then a good frame.
    for i in 0..1001u64 {
        guest.write(ring + 16 * i, &TX_BUFFERS.to_le_bytes());
        let end = if i == 1000 { EOP } else { 0 };
        guest.write(ring + 16 * i + 8, &(0xffff | end | RS | IFCS).to_le_bytes());
    }
    guest.write(ring + 16 * 1001, &TX_BUFFERS.to_le_bytes());
    guest.write(ring + 16 * 1001 + 8, &(60 | LAST).to_le_bytes());
    guest.set(TD + TAIL, 500);
    assert!(guest.pull().is_empty());
    guest.set(TD + TAIL, 1002);
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.chip.counters().input.dropped(Reason::TooLong), 1);
    assert_eq!(guest.get(TD + HEAD), 1002);
    // A frame without end that fills a small ring does not stay there.
    let mut guest = Guest::new();
    guest.ring(TD, TX_RING, 8);
    (0..8).for_each(|i| guest.tx_desc(i, TX_BUFFERS, 100 | RS));
    guest.set(TD + TAIL, 7);
    assert!(guest.pull().is_empty());
    assert_eq!((guest.get(TD + HEAD), guest.dropped()), (7, 1));
}

#[test]
fn segmentation_of_what_is_no_ip_packet() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame([2; 6], 3000));
    let context = Context { paylen: 2934, ..Context::of(&tcp(false, 100), 1000) };
    let data = (at, 3000 | DATA | TSE | LAST | IXSM | TXSM);
    refused(&mut guest, &[context.descriptor(), data], Reason::BadHeader);
    // Nor is a fragment, or another protocol.
    for (place, value) in [(20, 0x20), (23, 132)] {
        let mut packet = unfinished(&tcp(false, 3000), true);
        packet[place] = value;
        let at = guest.fill(0, &packet);
        let context = Context::of(&tcp(false, 3000), 1000).descriptor();
        let data = (at, packet.len() as u64 | DATA | TSE | LAST | IXSM | TXSM);
        refused(&mut guest, &[context, data], Reason::BadHeader);
    }
}

#[test]
fn checksums_outside_the_frame() {
    let mut guest = Guest::new();
    let base = || Context { ip: (14, 24, 33), tu: (34, 50, 0), ..Context::of(&tcp(false, 0), 0) };
    let wrong: [fn(&mut Context); 8] = [
        |c| c.tu = (34, 255, 0),
        |c| c.tu = (34, 65, 0),
        |c| c.tu = (66, 50, 0),
        |c| c.tu = (34, 50, 5000),
        |c| c.tu = (34, 50, 20),
        |c| c.ip = (14, 255, 33),
        |c| c.ip = (14, 24, 0xffff),
        |c| c.ip = (60, 24, 33),
    ];
    for change in wrong {
        let mut context = base();
        change(&mut context);
        let at = guest.fill(0, &tcp(false, 0));
        let data = (at, 66 | DATA | LAST | IXSM | TXSM);
        refused(&mut guest, &[context.descriptor(), data], Reason::BadOffload);
    }
    for (css, cso) in [(66u64, 50u64), (34, 65), (255, 255), (0, 255)] {
        let legacy = (TX_BUFFERS, 66 | LAST | IC | cso << 16 | css << 40);
        refused(&mut guest, &[legacy], Reason::BadOffload);
    }
}

#[test]
fn impossible_header_and_payload_lengths() {
    segment(|c| c.paylen = 0, 0, Reason::BadOffload);
    segment(|c| c.paylen = 0xf_ffff, 0, Reason::BadOffload);
    segment(|c| c.paylen -= 1, 0, Reason::BadOffload);
    segment(|c| (c.hdrlen, c.paylen) = (255, c.paylen + c.hdrlen - 255), 0, Reason::BadHeader);
    segment(|c| (c.hdrlen, c.paylen) = (c.hdrlen - 1, 5001), 0, Reason::BadHeader);
    // VLAN insertion with headers shorter than two addresses.
    let short = |c: &mut Context| {
        (c.paylen, c.hdrlen) = (c.paylen + c.hdrlen - 8, 8);
    };
    segment(short, VLE | 5 << 48, Reason::BadHeader);
    segment(|c| c.ip.0 = 2, VLE | 5 << 48, Reason::BadOffload);
    segment(|c| c.tu = (0, 16, 0), 0, Reason::BadHeader);
    segment(|c| c.tucmd ^= 1, 0, Reason::BadHeader);
    segment(|c| c.tucmd ^= 2, 0, Reason::BadHeader);
    segment(|c| c.mss = 1, 0, Reason::BadOffload);
}

/// What fits one segment is lent as an ordinary frame, and must not be longer than one.
#[test]
fn a_segment_longer_than_any_frame() {
    let mut guest = Guest::new();
    for (behind, reason) in [(0, None), (6000, Some(Reason::TooLong))] {
        let mut packet = tcp(false, 60_000);
        packet.resize(packet.len() + behind, 0);
        let at = guest.fill(0, &unfinished(&packet, true));
        let context = Context::of(&packet, 0xffff).descriptor();
        let data = (at, packet.len() as u64 | DATA | TSE | LAST | IXSM | TXSM);
        match reason {
            Some(reason) => refused(&mut guest, &[context, data], reason),
            None => {
                guest.post(&[context, data]);
                assert_eq!(guest.pull()[0].bytes.len(), packet.len());
            }
        }
    }
}

/// Padding would be payload of the last segment.
#[test]
fn short_segmentation_is_not_padded() {
    let mut guest = Guest::new();
    let packet = udp(false, 2);
    let at = guest.fill(0, &unfinished(&packet, true));
    let data = (at, packet.len() as u64 | DATA | TSE | LAST | IXSM | TXSM);
    guest.post(&[Context::of(&packet, 1).descriptor(), data]);
    let lent = guest.pull().remove(0);
    assert_eq!(lent.bytes.len(), 44);
    assert_eq!(lent.offload.check(&lent.bytes, 44), Ok(lent.offload));
}

/// Buffers that cross regions cost a look-up for each, whether or not the frame is good.
#[test]
fn buffers_over_many_regions() {
    let map = memory(MEMORY);
    let mapping = |len| {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(len).unwrap();
        std::sync::Arc::new(vmlan_ram::Mapping::new(file.as_fd(), 0, len).unwrap())
    };
    let shared = mapping(4096);
    let mut regions = map.regions().to_vec();
    for i in 0..60 {
        let at = 0x1000_0000 + 4096 * i;
        regions.push(vmlan_ram::Region::new(at, 4096, at, 0, shared.clone()).unwrap());
    }
    let map = std::sync::Arc::new(vmlan_ram::Map::new(regions, None).unwrap());
    // The first ends outside; the second is longer than any frame.
    for (page, len, runs) in [(44, 65_540, 17), (0, 0xf_ffff, 0)] {
        let mut guest = Guest::new();
        guest.map = map.clone();
        drop(guest.chip.set_map(map.clone()));
        let (ring, size) = (0x10_0000, 1024);
        guest.ring(TD, ring, size);
        for i in 0..u64::from(size) {
            guest.write(ring + 16 * i, &(0x1000_0000u64 + 4096 * page).to_le_bytes());
            guest.write(ring + 16 * i + 8, &(len | DATA | TSE | LAST | TXSM).to_le_bytes());
        }
        guest.set(TD + TAIL, size - 1);
        assert!(guest.pull().is_empty());
        let moved = guest.get(TD + HEAD);
        assert!(moved > 0 && moved * (runs + 1) <= VISITS, "{moved} frames of {runs} runs");
    }
}

#[test]
fn multi_buffer_receive_at_every_length() {
    let guest = Guest::new();
    guest.set(RCTL, ON | LPE | 3 << 16);
    for len in 14..1100 {
        assert_eq!(guest.arrive_plain(&[&frame(MAC, len)]), 1);
        guest.set(RD + TAIL, (guest.get(RD + HEAD) + SIZE - 1) % SIZE);
    }
    assert_eq!(guest.statistic("GPRC"), 1100 - 14);
}

#[test]
fn nothing_moves_after_a_reset() {
    let mut guest = Guest::new();
    guest.send(0, &frame([2; 6], 60));
    guest.pull_to(&mut Take { hold: vec![0], ..Take::default() });
    guest.set(CTRL, 1 << 26);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.chip.counters().output.dropped(Reason::LinkDown), 1);
    guest.start();
    assert!(guest.pull().is_empty(), "the held frame is gone with its ring");
    // The same without the memory.
    guest.send(0, &frame([2; 6], 60));
    drop(guest.chip.set_map(memory(0x1000)));
    assert!(guest.pull().is_empty());
    assert!(matches!(guest.chip.fault(), Some(Fault::BadRing { ring: "transmit", .. })));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
    let map = guest.map.clone();
    drop(guest.chip.set_map(map));
    assert_eq!(guest.pull().len(), 1);
}

#[test]
fn rings_that_are_not_all_memory() {
    let ends = [MEMORY - 16, MEMORY - 0x80, MEMORY, BAR0, u64::MAX - 15];
    for at in ends {
        let mut guest = Guest::new();
        guest.ring(TD, at, SIZE);
        guest.ring(RD, at, SIZE);
        guest.set(TD + TAIL, 3);
        guest.set(RD + TAIL, 3);
        assert!(guest.pull().is_empty());
        assert!(matches!(guest.chip.fault(), Some(Fault::BadRing { .. })), "{at:#x}");
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
        assert_eq!(guest.get(TD + HEAD), 0);
    }
}

#[test]
fn loopback_of_the_longest_frame() {
    let mut guest = Guest::new();
    guest.set(RCTL, ON | LPE | 1 << 6 | 3 << 16);
    let long = frame(MAC, 9238);
    guest.send(0, &long);
    guest.pull();
    let mut got = Vec::new();
    for i in 0..37 {
        let (n, ..) = guest.received(i);
        assert!(n <= 256);
        got.extend(guest.read(RX_BUFFERS + 2048 * u64::from(i), n));
    }
    assert_eq!(got[..9234], long[..9234]);
}

#[test]
fn rings_of_no_length() {
    let mut guest = Guest::new();
    for len in [0, 1, 127, 0xfff0_0000] {
        guest.set(TD + LEN, len);
        guest.set(RD + LEN, len);
        guest.set(TD + TAIL, 3);
        guest.set(RD + TAIL, 3);
        assert!(guest.pull().is_empty());
        assert!(!guest.chip.arm());
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 0);
        assert_eq!(guest.chip.room(), 0);
    }
}

#[test]
fn frames_shorter_than_their_headers() {
    let mut guest = Guest::new();
    for len in 1..14 {
        refused(&mut guest, &[(TX_BUFFERS, len | LAST)], Reason::Runt);
        let context = Context::of(&tcp(false, 10), 0).descriptor();
        let data = (TX_BUFFERS, len | DATA | LAST | IXSM | TXSM);
        refused(&mut guest, &[context, data], Reason::Runt);
    }
    for len in 1..=4 {
        refused(&mut guest, &[(TX_BUFFERS, len | EOP | RS)], Reason::Runt);
    }
}

#[test]
fn a_receive_claim_about_a_broken_header_is_harmless() {
    let guest = Guest::new();
    guest.set(RXCSUM, 0x300);
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    for len in 14..80 {
        let mut packet = tcp(false, 100);
        packet.truncate(len);
        guest.arrive(&[(packet.clone(), valid)]);
        packet.resize(len.max(15), 0);
        packet[14] = 0x4f;
        guest.arrive(&[(packet, valid)]);
        guest.set(RD + TAIL, (guest.get(RD + HEAD) + SIZE - 1) % SIZE);
    }
    assert_eq!(guest.dropped(), 0);
}
