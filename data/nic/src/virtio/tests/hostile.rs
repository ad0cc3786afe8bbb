//! What guests have done to other devices, as listed in `docs/known-faults.md`.

use vmlan_frame::{Gso, Reason};

use super::super::{Fault, NetRx, NetTx};
use super::guest::*;

fn tx(features: u64) -> Bench<NetTx> {
    Bench::<NetTx>::new(8, V1 | features)
}

fn rx(features: u64) -> Bench<NetRx> {
    Bench::<NetRx>::new(8, V1 | features)
}

/// The fault that descriptor 0 causes on the transmit side.
fn tx_fault(mut b: Bench<NetTx>) -> Option<Fault> {
    b.guest.post(0);
    assert_eq!(b.pull(&mut Bin::default()), 0);
    assert!(b.guest.used().is_empty());
    let fault = b.net.fault().map(|f| f.1);
    assert_eq!(b.counters.faults.get(), u64::from(fault.is_some()));
    assert_eq!(b.net.is_ready(), fault.is_none());
    assert_eq!(b.pull(&mut Bin::default()), 0, "stopped");
    fault
}

#[test]
fn zero_length_descriptor() {
    for addr in [BUFFERS, u64::MAX] {
        let mut b = tx(0);
        b.guest.desc(0, addr, 0, 0, 0);
        b.guest.post(0);
        b.guest.send(1, &frame(1, 60));
        assert_eq!(b.pulled(), [frame(1, 60)]);
        assert_eq!(b.guest.used(), [(0, 0), (1, 0)]);
        assert_eq!(b.counters.input.dropped(Reason::BadHeader), 1);
    }
    let mut b = rx(0);
    b.guest.offer(0, 0);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::Empty)));
}

#[test]
fn huge_descriptor_length() {
    let b = tx(0);
    b.guest.desc(0, BUFFERS, u32::MAX, 0, 0);
    assert_eq!(tx_fault(b), Some(Fault::BadAddress { addr: BUFFERS, len: u32::MAX }));
    let mut b = rx(0);
    let at = b.guest.offer(0, u32::MAX);
    assert_eq!(b.push(&[&frame(1, 60)]), 1, "what is needed of it is there");
    assert_eq!(b.guest.read(at + 12, 60), frame(1, 60));
}

#[test]
fn indirect_size_0() {
    for len in [0, 8, 15, 17, 16 * 32769, u32::MAX] {
        let b = tx(INDIRECT_DESC);
        b.guest.desc(0, 0x4_0000, len, INDIRECT, 0);
        assert_eq!(tx_fault(b), Some(Fault::IndirectSize(len)));
    }
}

#[test]
fn ring_outside_memory() {
    let mut b = tx(0);
    let good = b.guest.rings;
    for (i, gpa) in [MEMORY, MEMORY - 2, u64::MAX - 1, BORDER - 2].into_iter().enumerate() {
        let bad = super::super::Rings { avail: gpa, ..good };
        assert_eq!(b.net.start(1, bad), Err(Fault::BadRing(gpa)), "{i}");
    }
    for size in [0, 3, 32769, 65535] {
        let bad = super::super::Rings { size, ..good };
        assert_eq!(b.net.start(1, bad), Err(Fault::BadSize(size)));
    }
    let odd = super::super::Rings { desc: 8, ..good };
    assert_eq!(b.net.start(1, odd), Err(Fault::BadRing(8)));
    assert_eq!(b.net.start(128, good), Err(Fault::NoSuchQueue(128)));
    assert!(!b.net.is_started(1) && b.net.is_started(0));
}

#[test]
fn buffer_that_leaves_its_region() {
    for (addr, len) in
        [(MEMORY - 10, 72), (MEMORY, 72), (u64::MAX - 10, 72), (BORDER - 1, 0x20_0000)]
    {
        let b = tx(0);
        b.guest.desc(0, addr, len, 0, 0);
        assert_eq!(tx_fault(b), Some(Fault::BadAddress { addr, len }));
        let mut b = rx(0);
        b.guest.desc(0, addr, len.min(72), WRITE, 0);
        b.guest.post(0);
        if addr > BORDER {
            assert_eq!(b.push(&[&frame(1, 60)]), 0);
            assert!(matches!(b.net.fault(), Some((0, Fault::BadAddress { .. }))));
        }
    }
}

#[test]
fn header_spans_descriptors() {
    let mut b = tx(0);
    b.guest.write(BUFFERS, &[0; 12]);
    b.guest.write(BUFFERS + 12, &frame(1, 60));
    for (i, (off, len)) in (0u16..).zip([(0, 1u32), (1, 4), (5, 6), (11, 61)]) {
        b.guest.desc(i, BUFFERS + off, len, if i < 3 { NEXT } else { 0 }, i + 1);
    }
    b.guest.post(0);
    assert_eq!(b.pulled(), [frame(1, 60)]);
    for len in [1, 11, 12] {
        let mut b = tx(0);
        b.guest.desc(0, BUFFERS, len, 0, 0);
        b.guest.post(0);
        assert!(b.pulled().is_empty());
        assert_eq!(b.guest.used(), [(0, 0)]);
        assert_eq!(b.counters.drops().map(|d| d.1).sum::<u64>(), 1);
    }
}

#[test]
fn checksum_beyond_the_frame() {
    let mut b = tx(1);
    for (i, start) in (0u16..).zip([59u16, 60, 127, 0xffff]) {
        let mut header = [0u8; 12];
        header[0] = 1;
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8] = 16;
        b.guest.send(i, &frame(1, 60));
        b.guest.write(BUFFERS + 0x1000 * u64::from(i), &header);
    }
    assert!(b.pulled().is_empty());
    assert_eq!(b.guest.used().len(), 4);
    assert_eq!(b.counters.input.dropped(Reason::BadOffload), 4);
}

#[test]
fn runt_rx_descriptors() {
    for len in [1, 5, 11] {
        let mut b = rx(0);
        b.guest.offer(0, len);
        assert_eq!(b.push(&[&frame(1, 60)]), 1, "dropped");
        assert_eq!(b.counters.output.dropped(Reason::TooLong), 1);
        assert!(b.guest.used().is_empty(), "and the buffer kept");
    }
    let mut b = rx(MRG);
    let at: Vec<u64> = (0..8).map(|i| b.guest.offer(i, 10)).collect();
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    let used = b.guest.used();
    assert_eq!(used.iter().map(|u| u.1).sum::<u32>(), 72);
    let bytes: Vec<u8> =
        at.iter().zip(&used).flat_map(|(a, u)| b.guest.read(*a, u.1 as usize)).collect();
    assert_eq!((bytes[10], &bytes[12..]), (8, &frame(1, 60)[..]));
}

#[test]
fn indirect_length_read_once() {
    // A table that claims one entry: its NEXT leads out of it, whatever the memory behind holds.
    let b = tx(INDIRECT_DESC);
    b.guest.desc(0, 0x4_0000, 16, INDIRECT, 0);
    b.guest.write(0x4_0000, &Guest::descriptor(BUFFERS, 72, NEXT, 1));
    b.guest.write(0x4_0010, &Guest::descriptor(BUFFERS, 72, 0, 0));
    assert_eq!(tx_fault(b), Some(Fault::Endless));
    let b = tx(INDIRECT_DESC);
    b.guest.desc(0, 0x4_0000, 32, INDIRECT, 0);
    b.guest.write(0x4_0000, &Guest::descriptor(BUFFERS, 72, NEXT, 2));
    assert_eq!(tx_fault(b), Some(Fault::OutOfTable(2)));
    let b = tx(INDIRECT_DESC);
    b.guest.desc(0, MEMORY - 8, 16, INDIRECT, 0);
    assert_eq!(tx_fault(b), Some(Fault::BadAddress { addr: MEMORY - 8, len: 16 }));
}

#[test]
fn gso_size_0() {
    let mut b = tx(1 | 1 << 11);
    b.guest.send(0, &frame(1, 60));
    b.guest.write(BUFFERS, &[1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]);
    assert!(b.pulled().is_empty());
    assert_eq!(b.counters.input.dropped(Reason::BadOffload), 1);
}

#[test]
fn one_byte_rx_buffers() {
    let mut b = Bench::<NetRx>::new(4096, V1 | MRG);
    for i in 0..4096 {
        b.guest.offer(i & 0x7f, 1);
    }
    let long = frame(1, 60);
    let dealt = b.push(&vec![&long[..]; 256]);
    assert!(dealt * 72 <= 4096 + 72, "a push does bounded work: {dealt}");
    assert_eq!(b.guest.used().len(), dealt * 72);
    let too_long = frame(1, 1514);
    assert!(b.push(&vec![&too_long[..]; 256]) <= 16, "also when it drops");
    assert!(b.net.fault().is_none());
}

#[test]
fn circular_chain() {
    let b = tx(0);
    b.guest.desc(0, BUFFERS, 10, NEXT, 1);
    b.guest.desc(1, BUFFERS, 10, NEXT, 0);
    assert_eq!(tx_fault(b), Some(Fault::Endless));
    let b = tx(INDIRECT_DESC);
    b.guest.desc(0, 0x4_0000, 64, INDIRECT, 0);
    b.guest.write(0x4_0000, &Guest::descriptor(BUFFERS, 10, NEXT, 0));
    assert_eq!(tx_fault(b), Some(Fault::Endless));
    let mut b = rx(0);
    b.guest.desc(0, BUFFERS, 1, WRITE | NEXT, 0);
    b.guest.post(0);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::Endless)));
    // Longer than the pieces a frame may have: dropped before the circle is proven.
    let mut b = Bench::<NetTx>::new(1024, V1);
    for i in 0..256 {
        b.guest.desc(i, BUFFERS, 10, NEXT, i);
        b.guest.post(i);
    }
    let mut pulls = 0;
    while b.guest.used_idx() < 256 {
        b.pulled();
        pulls += 1;
    }
    assert_eq!(b.counters.input.dropped(Reason::TooLong), 256);
    assert!(pulls >= 8, "a pull does bounded work");
}

#[test]
fn avail_jump() {
    for idx in [9, 100, 0x8000, 0xffff] {
        let mut b = tx(0);
        b.guest.set_avail(idx);
        assert_eq!(b.pull(&mut Bin::default()), 0);
        assert_eq!(b.net.fault(), Some((0, Fault::AvailJump { avail: idx, next: 0 })));
        let mut b = rx(0);
        b.guest.set_avail(idx);
        assert_eq!(b.push(&[&frame(1, 60)]), 0);
        assert_eq!(b.net.fault(), Some((0, Fault::AvailJump { avail: idx, next: 0 })));
        assert_eq!(b.counters.faults.get(), 1);
        b.guest.set_avail(0);
        b.net.start(0, b.guest.rings).unwrap();
        b.guest.offer(0, 200);
        assert_eq!(b.push(&[&frame(1, 60)]), 1, "started again");
    }
}

#[test]
fn avail_index_that_goes_back() {
    let mut b = tx(0);
    for i in 0..4 {
        b.guest.send(i, &frame(1, 60));
    }
    let mut bin = Bin { hold: vec![1], ..Bin::default() };
    b.pull(&mut bin);
    b.guest.set_avail(2);
    assert_eq!(b.pull(&mut bin), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::AvailJump { avail: 2, next: 4 })));
}

#[test]
fn frame_larger_than_every_buffer() {
    for features in [0, MRG] {
        let mut b = rx(features);
        for i in 0..8 {
            b.guest.offer(i, 100);
        }
        assert_eq!(b.push(&[&frame(1, 1000), &frame(2, 60)]), 2);
        assert_eq!(b.counters.output.dropped(Reason::TooLong), 1);
        assert_eq!(b.guest.used(), [(0, 72)], "the buffer served the next frame");
    }
}

#[test]
fn indirect_descriptors_where_none_may_be() {
    let b = tx(0);
    b.guest.desc(0, 0x4_0000, 16, INDIRECT, 0);
    assert_eq!(tx_fault(b), Some(Fault::Indirect), "not negotiated");
    let b = tx(INDIRECT_DESC);
    b.guest.desc(0, 0x4_0000, 16, INDIRECT | NEXT, 1);
    assert_eq!(tx_fault(b), Some(Fault::Indirect), "with NEXT");
    for first in [0u64, 1] {
        let b = tx(INDIRECT_DESC);
        b.guest.desc(0, 0x4_0000, 32, INDIRECT, 0);
        b.guest.write(0x4_0000, &Guest::descriptor(BUFFERS, 10, NEXT, 1));
        let nested = Guest::descriptor(0x4_1000, 16, INDIRECT, 0);
        b.guest.write(0x4_0000 + 16 * first, &nested);
        assert_eq!(tx_fault(b), Some(Fault::Indirect), "nested");
    }
}

#[test]
fn heads_and_nexts_outside_the_table() {
    let mut b = tx(0);
    b.guest.post(8);
    b.pulled();
    assert_eq!(b.net.fault(), Some((0, Fault::OutOfTable(8))));
    let b = tx(0);
    b.guest.desc(0, BUFFERS, 12, NEXT, 0xffff);
    assert_eq!(tx_fault(b), Some(Fault::OutOfTable(0xffff)));
    let mut b = rx(0);
    b.guest.post(0xffff);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::OutOfTable(0xffff))));
}

#[test]
fn buffers_of_the_wrong_direction() {
    let b = tx(0);
    b.guest.desc(0, BUFFERS, 72, WRITE, 0);
    assert_eq!(tx_fault(b), Some(Fault::Direction));
    let mut b = rx(0);
    b.guest.desc(0, BUFFERS, 200, 0, 0);
    b.guest.post(0);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::Direction)));
}

#[test]
fn frames_before_a_fault_are_delivered_and_given_back() {
    let mut b = tx(0);
    b.guest.send(0, &frame(1, 60));
    b.guest.desc(1, BUFFERS, 72, WRITE, 0);
    b.guest.post(1);
    assert_eq!(b.pulled(), [frame(1, 60)]);
    assert_eq!(b.guest.used(), [(0, 0)]);
    assert_eq!(b.net.stop(0), 1);
    let mut b = rx(0);
    let at = b.guest.offer(0, 200);
    b.guest.post(99);
    assert_eq!(b.push(&[&frame(1, 60), &frame(2, 60)]), 1);
    assert_eq!(b.guest.read(at + 12, 60), frame(1, 60));
    assert_eq!(b.guest.used(), [(0, 72)]);
    assert!(b.net.fault().is_some());
}

#[test]
fn only_negotiated_offloads_are_believed() {
    let csum = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    let cases: [(u64, [u8; 12], bool); 8] = [
        (1, csum, true),
        (0, csum, false),
        (1, [2, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], true),
        (1, [0, 1, 0, 0, 100, 0, 34, 0, 16, 0, 0, 0], false),
        (1, [1, 1, 0, 0, 100, 0, 34, 0, 16, 0, 0, 0], false),
        (1 | 1 << 12, [1, 3, 0, 0, 100, 0, 34, 0, 16, 0, 0, 0], false),
        (1 | 1 << 11, [1, 0x81, 0, 0, 100, 0, 34, 0, 16, 0, 0, 0], false),
        (1 | 1 << 13, [1, 0x80, 0, 0, 100, 0, 34, 0, 16, 0, 0, 0], false),
    ];
    for (i, (features, header, good)) in cases.into_iter().enumerate() {
        let mut b = tx(features);
        b.guest.send(0, &frame(1, 60));
        b.guest.write(BUFFERS, &header);
        let mut bin = Bin::default();
        b.pull(&mut bin);
        assert_eq!(bin.frames.len() == 1, good, "case {i}");
        assert_eq!(b.counters.input.dropped(Reason::BadOffload) == 0, good, "case {i}");
        if good {
            let o = bin.offloads[0];
            assert_eq!((o.needs_csum, o.csum_valid, o.gso), (header[0] == 1, false, Gso::None));
        }
    }
}

/// A chain in an indirect table may have 32,768 descriptors without a byte: none of them uses up a
/// piece.
#[test]
fn chains_of_empty_buffers_are_not_followed_to_their_end() {
    const TABLE: u32 = 32768;
    for write in [0, WRITE] {
        let map = memory(None);
        let mut tx = Bench::<NetTx>::on(&map, 8, V1 | INDIRECT_DESC);
        let mut rx = Bench::<NetRx>::on(&map, 8, V1 | INDIRECT_DESC);
        let guest = if write == 0 { &mut tx.guest } else { &mut rx.guest };
        let mut table = Vec::new();
        for i in 1..TABLE {
            let next = u16::try_from(i).unwrap();
            table.extend(Guest::descriptor(u64::MAX, 0, NEXT | write, next));
        }
        table.extend(Guest::descriptor(BUFFERS, 100, NEXT, 0));
        guest.write(0x8_0000, &table);
        guest.desc(0, 0x8_0000, 16 * TABLE, INDIRECT, 0);
        guest.post(0);
        // The last descriptor breaks a rule, and whoever read it would say so.
        if write == 0 {
            assert_eq!(tx.pull(&mut Bin::default()), 1);
            assert_eq!(tx.counters.input.dropped(Reason::TooLong), 1);
            assert_eq!(tx.net.fault(), None);
        } else {
            assert_eq!(rx.push(&[&frame(1, 60)]), 1);
            assert_eq!(rx.counters.output.dropped(Reason::TooLong), 1);
            assert_eq!(rx.net.fault(), None);
        }
    }
}

/// The descriptors of one pull are bounded over all queues, and so are its bytes.
#[test]
fn more_queues_do_not_make_a_pull_longer() {
    let map = memory(None);
    let mut b = Bench::<NetTx>::on(&map, 256, V1 | INDIRECT_DESC);
    let mut guests = vec![];
    for i in 1..16u16 {
        let guest = Guest::new(&map, u64::from(i) * 0x4000, 256);
        b.net.start(i, guest.rings).unwrap();
        b.net.enable(i, true).unwrap();
        guests.push(guest);
    }
    let table: Vec<u8> = (1..=100)
        .flat_map(|i| Guest::descriptor(BUFFERS, 0, if i < 100 { NEXT } else { 0 }, i))
        .collect();
    b.guest.write(0x8_0000, &table);
    for guest in &mut guests {
        guest.desc(0, 0x8_0000, 1600, INDIRECT, 0);
        (0..200).for_each(|_| guest.post(0));
    }
    let n = b.net.pull(&mut b.batch, 10_000, &mut Bin::default(), &b.counters);
    assert!((40..=45).contains(&n), "{n} chains of 100 descriptors");
    assert_eq!(b.net.fault(), None);
}

/// Other ports wait while this one's frames are copied and cut.
#[test]
fn the_work_of_one_pull_is_bounded() {
    let gso = |size: u16| -> Vec<u8> {
        let mut header = vec![1, 1, 0, 0];
        header.extend([size.to_le_bytes(), [34, 0], [16, 0], [0, 0]].concat());
        let mut f = frame(2, 60_000);
        f[12..14].copy_from_slice(&[8, 0]);
        f[14..34].fill(0);
        f[14] = 0x45;
        f[16..18].copy_from_slice(&59_986u16.to_be_bytes());
        f[22..24].copy_from_slice(&[64, 6]);
        f[46] = 0x50;
        [header, f].concat()
    };
    for (size, most) in [(1448, 16), (48, 2)] {
        let mut b = Bench::<NetTx>::new(256, V1 | 1 | 1 << 11);
        b.guest.write(BUFFERS, &gso(size)[..12]);
        b.guest.write(BUFFERS + 12, &gso(size)[12..]);
        for i in 0..256u16 {
            // Two descriptors each, as Linux has it.
            let _ = i;
            b.guest.desc(0, BUFFERS, 12, NEXT, 1);
            b.guest.desc(1, BUFFERS + 12, 60_000, 0, 0);
            b.guest.post(0);
        }
        let n = b.pull(&mut Bin::default());
        assert_eq!(b.counters.drops().map(|d| d.1).sum::<u64>(), 0);
        assert!(n > 0 && n <= most, "{n} frames of 60,000 bytes in segments of {size}");
    }
}
