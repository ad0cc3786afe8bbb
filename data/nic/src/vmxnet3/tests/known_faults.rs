//! Faults that other models of this device had, and what a hostile guest may try: nothing panics,
//! nothing outside the guest's memory is touched, and the next driver finds a device that works.

use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::Offload;

use super::guest::*;

/// A driver that behaves starts the device again, and frames move.
fn works_again(guest: &mut Guest) {
    guest.command(RESET);
    guest.start(Setup::default());
    guest.send(0, &frame(MAC, 64));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.sent(), Some(0));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert_eq!(guest.take().unwrap().0.len(), 60);
}

/// CVE-2013-4544: numbers of queues unchecked. CVE-2016-6888: their product with ring sizes.
#[test]
fn numbers_of_queues_that_cannot_be() {
    let mut guest = Guest::new();
    for (tx, rx) in [(0, 1), (1, 0), (9, 1), (1, 17), (255, 255)] {
        guest.write_shared();
        guest.put(SHARED + 0x3c, tx << 16 | rx << 24);
        assert_eq!(guest.command(ACTIVATE), 1, "{tx} {rx}");
    }
    // More than there are descriptors for.
    guest.write_shared();
    guest.put(SHARED + 0x3c, 8 << 16 | 8 << 24);
    assert_eq!(guest.command(ACTIVATE), 1);
    works_again(&mut guest);
}

/// CVE-2013-4544: interrupt indexes unchecked.
#[test]
fn interrupt_indexes_that_cannot_be() {
    let mut guest = Guest::new();
    for count in [0u32, 1, 25, 26, 255] {
        for index in [0u32, 24, 25, 31, 32, 200, 255] {
            guest.write_shared();
            guest.put(SHARED + 0x50, 1 | count << 8 | index << 16);
            guest.put(guest.tx_queue(0) + 0x48, index);
            guest.put(guest.rx_queue(0) + 0x48, index);
            assert_eq!(guest.command(ACTIVATE), 0);
            guest.send(0, &frame(MAC, 60));
            assert_eq!(guest.pull().len(), 1);
            assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
            guest.chip.set_link(false);
            guest.chip.set_link(true);
        }
    }
    assert!(guest.host.sent.lock().unwrap().iter().all(|vector| *vector < 25));
    works_again(&mut guest);
}

/// CVE-2021-20203: sizes of rings and the MTU unchecked at activation. Addresses that lie nowhere.
#[test]
fn rings_that_cannot_be() {
    let mut guest = Guest::new();
    let (tx, rx) = (0x2000, 0x2100);
    for size in [0, 1, 31, 33, 4097, 8224, 1 << 16, u32::MAX] {
        for place in [tx + 0x38, tx + 0x40, rx + 0x38, rx + 0x40] {
            guest.write_shared();
            guest.put(place, size);
            assert_eq!(guest.command(ACTIVATE), 1, "{place:x}: {size}");
        }
        guest.write_shared();
        guest.put(rx + 0x3c, size);
        assert_eq!(guest.command(ACTIVATE), u32::from(size != 0), "the second may be absent");
    }
    for high in [0u32, 1, u32::MAX] {
        for low in [0xffff_fff0u32, MEMORY as u32, MEMORY as u32 - 16] {
            for place in [tx + 0x10, tx + 0x20, rx + 0x10, rx + 0x18, rx + 0x20, SHARED + 0x28] {
                guest.write_shared();
                guest.put(place, low);
                guest.put(place + 4, high);
                assert_eq!(guest.command(ACTIVATE), 1, "{place:x}: {high:x} {low:x}");
            }
        }
    }
    for mtu in [0, 59, 9001, u32::MAX] {
        guest.write_shared();
        guest.put(SHARED + 0x38, mtu);
        assert_eq!(guest.command(ACTIVATE), 1);
    }
    guest.write_shared();
    guest.put(SHARED, 0xbabe_fee0);
    assert_eq!(guest.command(ACTIVATE), 1);
    for (low, high) in [(0xffff_fff0, 0), (0, u32::MAX), (MEMORY as u32 - 16, 0), (3, 0)] {
        guest.set(1, 0x10, low);
        guest.set(1, 0x18, high);
        assert_eq!(guest.command(ACTIVATE), 1);
        for n in 0..20 {
            let _ = (guest.command(0xcafe_0000 + n), guest.command(0xf00d_0000 + n));
        }
    }
    works_again(&mut guest);
}

/// CVE-2015-8567, CVE-2015-8568: repeated activation leaks. Here nothing is allocated that is not
/// replaced.
#[test]
fn activation_again_and_again() {
    let mut guest = Guest::new();
    for n in 0..2000 {
        assert_eq!(guest.command(ACTIVATE), 0);
        if n % 7 == 0 {
            guest.command(QUIESCE);
        }
    }
    works_again(&mut guest);
}

/// CVE-2015-8745: IMR is read.
#[test]
fn every_register_may_be_read() {
    let guest = Guest::cold(0);
    for bar in 0..3 {
        for at in (0..0x1000).step_by(4) {
            let _ = guest.get(bar, at);
        }
    }
}

/// CVE-2016-6833: deactivated while frames are under way. They are held, and gone.
#[test]
fn deactivated_while_frames_are_held() {
    let mut guest = Guest::new();
    (0..4).for_each(|n| guest.send(n, &frame(MAC, 60)));
    let mut take = Take { hold: vec![0, 1, 2, 3], ..Take::default() };
    guest.pull_to(&mut take);
    guest.command(QUIESCE);
    let before = guest.read(0, 0x10_0000);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.read(0, 0x10_0000), before);
    works_again(&mut guest);
}

/// CVE-2016-6834: a fragment of length 0 with segmentation. Here 0 means 16384.
#[test]
fn fragments_of_no_length() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &unfinished(&packet(true, 4000)));
    guest.give(&[(at, 66 | 1000 << 18, 66 | 3 << 10), (at + 66, 0, EOP | CQ)]);
    guest.give(&[(at, 1000 << 18, 66 | 3 << 10 | EOP | CQ)]);
    guest.give(&[(at, 0, EOP | CQ)]);
    let frames = guest.pull();
    assert_eq!(frames.last().unwrap().bytes.len(), 16_384);
    assert_eq!([guest.sent(), guest.sent(), guest.sent()], [Some(1), Some(2), Some(3)]);
}

/// CVE-2016-6835: headers longer than the buffer, or the frame. CVE-2021-3416, and others: offsets
/// and segments that cannot be.
#[test]
fn offloads_that_cannot_be() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &unfinished(&packet(true, 2000)));
    let len = 2066;
    let mut sent = 0;
    for headers in [0, 1, 13, 14, 34, 66, 127, 128, 255, 256, 1023] {
        for place in [0, 1, 34, 47, 50, 126, 127, 128, 255, 1000, 16_383] {
            for mode in 0..4 {
                guest.give(&[(at, len | place << 18, EOP | CQ | headers | mode << 10)]);
                for frame in guest.pull() {
                    finish(&frame);
                }
                assert!(guest.sent().is_some(), "each is completed, sent or not");
                sent += 1;
            }
        }
    }
    assert_eq!(sent, 484);
    // The mode of version 4.
    let before = guest.dropped();
    guest.give(&[(at, len, EOP | CQ | 1 << 10)]);
    assert!(guest.pull().is_empty());
    assert_eq!(guest.dropped(), before + 1);
    // A type that there is not.
    guest.give(&[(at, len | 1 << 16, EOP | CQ)]);
    assert!(guest.pull().is_empty());
    works_again(&mut guest);
}

/// CVE-2016-6836: completions with bytes that nobody has written.
#[test]
fn completions_are_written_whole() {
    let mut guest = Guest::new();
    guest.write(TX_DONE, &[0x5a; 16]);
    guest.write(RX_DONE, &[0x5a; 16]);
    guest.send(0, &frame(MAC, 60));
    guest.pull();
    guest.arrive_plain(&[&frame(MAC, 60)]);
    let words = |at| [0, 4, 8, 12].map(|i| guest.word(at + i));
    assert_eq!(words(TX_DONE), [0, 0, 0, 1 << 31]);
    assert_eq!(words(RX_DONE), [3 << 14 | 1 << 30, 0, 60, 0x8300_0000]);
}

/// CVE-2020-16092: a fragment that is not in memory. CVE-2021-3416: one in the device itself.
#[test]
fn fragments_that_are_nowhere() {
    let mut guest = Guest::new();
    for address in [MEMORY, MEMORY - 8, u64::MAX, u64::MAX - 59, 0xfeb0_0000] {
        guest.give(&[(address, 60, EOP | CQ)]);
        assert!(guest.pull().is_empty());
        assert!(guest.sent().is_some());
        // A frame in two parts, of which one is nowhere.
        let at = guest.fill(0, &frame(MAC, 60));
        guest.give(&[(at, 60, 0), (address, 60, EOP | CQ)]);
        assert!(guest.pull().is_empty());
        assert!(guest.sent().is_some());
        // Buffers to receive into: given back empty, and the next frame finds another.
        let desc = RX_RING + 16 * u64::from(guest.queues[0].rx_done.index % SIZE);
        guest.write(desc, &address.to_le_bytes());
        assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
        let done = guest.words_of_next_done();
        assert_eq!((done[0] >> 14 & 3, done[2] & 0x3fff), (3, 0), "skipped");
    }
    works_again(&mut guest);
}

/// Chains without an end, of 17, 129 and all descriptors.
#[test]
fn chains_without_an_end() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame(MAC, 60));
    guest.give(&[(at, 60, 0); 17]);
    assert!(guest.pull().is_empty() && !guest.chip.arm());
    guest.give(&[(at, 60, EOP | CQ)]);
    assert_eq!(guest.pull()[0].bytes.len(), 18 * 60);
    assert_eq!(guest.sent(), Some(17));
    works_again(&mut guest);
    // All that the ring has: dropped, up to the next end.
    guest.give(&[(at, 60, 0); SIZE as usize - 1]);
    guest.pull();
    assert!(!guest.chip.arm());
    guest.give(&[(at, 60, EOP | CQ)]);
    guest.pull();
    guest.send(0, &frame(MAC, 64));
    assert_eq!(guest.pull().len(), 1);
    works_again(&mut guest);
}

/// The largest ring, each descriptor ours and none the last: work is bounded, whatever it costs.
#[test]
fn a_ring_of_4096_without_an_end() {
    let mut guest = Guest::new();
    guest.write_shared();
    let ring = 0x20_0000u64;
    for n in 0..4096 {
        guest.write(ring + 16 * n, &(TX_BUFFERS).to_le_bytes());
        guest.put(ring + 16 * n + 8, 60 | 1 << 14);
    }
    guest.put(guest.tx_queue(0) + 0x10, ring as u32);
    guest.put(guest.tx_queue(0) + 0x38, 4096);
    assert_eq!(guest.command(ACTIVATE), 0);
    for _ in 0..100 {
        assert!(guest.pull().is_empty());
    }
    assert!(guest.dropped() >= 1);
    assert!(!guest.chip.arm(), "it sleeps");
    works_again(&mut guest);
}

/// DriverShared and the queues' descriptors change after they were read: nothing looks again.
#[test]
fn what_was_read_is_not_read_again() {
    let mut guest = Guest::new();
    guest.write(SHARED, &[0xff; 0x2d0]);
    guest.write(QUEUES, &[0xff; 512]);
    guest.send(0, &frame(MAC, 60));
    assert_eq!(guest.pull().len(), 1);
    assert_eq!(guest.sent(), Some(0));
    assert_eq!(guest.arrive_plain(&[&frame(MAC, 60)]), 1);
    assert!(guest.take().is_some());
    // What is read again is bounded.
    for what in 3..10 {
        guest.command(0xcafe_0000 + what);
    }
    guest.chip.set_link(false);
    guest.command(GET_STATS);
    guest.chip.set_link(true);
    works_again(&mut guest);
}

/// Generation bits that lie: of descriptors that were never filled, or taken back, or flipped while
/// frames are under way. What is taken is bounded by the ring, and the device is none the worse.
#[test]
fn generations_that_lie() {
    let mut guest = Guest::new();
    let at = guest.fill(0, &frame(MAC, 60));
    for round in 0..20u32 {
        for n in 0..SIZE {
            let place = TX_RING + 16 * u64::from(n);
            guest.write(place, &at.to_le_bytes());
            guest.put(place + 12, EOP | CQ);
            guest.put(place + 8, 60 | (round & 1 | n & round & 1) << 14);
            guest.put(RX_RING + 16 * u64::from(n) + 8, ROOM | (round >> 1 & 1) << 31);
        }
        let mut take = Take { hold: vec![3], ..Take::default() };
        guest.pull_to(&mut take);
        assert!(take.frames.len() < SIZE as usize);
        guest.write(TX_RING, &[0; 16 * SIZE as usize]);
        assert!(guest.pull().len() < SIZE as usize);
        let frames = vec![frame(MAC, 60); 200];
        let list: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert!(guest.arrive_plain(&list) < SIZE as usize);
    }
    works_again(&mut guest);
}

/// Rings that overlap each other, DriverShared, and themselves.
#[test]
fn rings_over_rings() {
    let mut guest = Guest::new();
    let places = [SHARED, QUEUES, TX_RING, TX_DONE, RX_RING, RX_DONE];
    let at = guest.fill(0, &frame(MAC, 60));
    for over in places {
        for ring in [guest.tx_queue(0) + 0x10, guest.tx_queue(0) + 0x20, guest.rx_queue(0) + 0x20] {
            guest.write_shared();
            guest.put(ring, over as u32);
            guest.command(ACTIVATE);
            for _ in 0..70 {
                guest.give(&[(at, 60, EOP | CQ)]);
                guest.pull();
                guest.arrive_plain(&[&frame(MAC, 60)]);
            }
        }
    }
    works_again(&mut guest);
}

/// A ring of completions that is smaller than what it reports: it wraps by its own size.
#[test]
fn few_completions() {
    let mut guest = Guest::new();
    guest.write_shared();
    guest.put(guest.tx_queue(0) + 0x40, 32);
    assert_eq!(guest.command(ACTIVATE), 0);
    let behind = guest.read(TX_DONE + 16 * 32, 256);
    for n in 0..60 {
        guest.send(n % 8, &frame(MAC, 60));
    }
    assert_eq!(guest.pull().len(), 60);
    assert_eq!(guest.read(TX_DONE + 16 * 32, 256), behind);
    assert_eq!(guest.word(TX_DONE + 16 * 27), 59);
}

/// Tables of groups of any length, anywhere.
#[test]
fn tables_of_groups_of_any_length() {
    let mut guest = Guest::new();
    for (len, at) in [(0u32, 0u32), (6, 0xffff_fffa), (0xffff, 0), (7, 0x5000), (0xfffa, 0x70_0000)]
    {
        guest.put(SHARED + 0x7c, len);
        guest.put(SHARED + 0x80, at);
        guest.command(UPDATE_MAC_FILTERS);
        assert_eq!(guest.arrive_plain(&[&frame([1, 0, 0x5e, 0, 0, 9], 60)]), 1);
    }
    // Too many: all of them.
    assert!(guest.take().is_some());
}

/// Any command at any time.
#[test]
fn commands_in_any_order() {
    let mut guest = Guest::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..5000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let base = if random >> 20 & 1 == 0 { 0xcafe_0000 } else { 0xf00d_0000 };
        guest.command(base + (random >> 32 & 31) as u32);
        guest.send(random & 7, &frame(MAC, 60));
        guest.pull();
        guest.arrive_plain(&[&frame(MAC, 60)]);
    }
    works_again(&mut guest);
}

/// Of what panics Linux's driver: a second part of a frame in a head, a first part in a body, a
/// completion without length in the middle. Bodies and heads in any order give none of these.
#[test]
fn heads_and_bodies_in_any_order() {
    let mut guest = Guest::with(Setup { mtu: 9000, ..Setup::default() });
    let mut random = 88_172_645_463_325_252u64;
    let mut next = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) % n
    };
    for _ in 0..60 {
        guest.command(QUIESCE);
        guest.write_shared();
        guest.queues[0].rx = At::new(SIZE);
        for _ in 0..SIZE - 1 {
            let (body, len) = (next(2) == 0, [0, 1, 60, 200, 2048][next(5) as usize]);
            guest.post(0, body, len);
        }
        (0..next(60)).for_each(|_| guest.post_second(0, 300));
        assert_eq!(guest.command(ACTIVATE), 0);
        for _ in 0..20 {
            let len = [60, 100, 500, 3000][next(4) as usize];
            guest.arrive(&[(frame(MAC, len), Offload::NONE)]);
        }
        let mut open = false;
        while let Some(done) = guest.done_of(0) {
            let ring = if done.queue == 0 { RX_RING } else { RX_SECOND };
            let body = guest.word(ring + 16 * u64::from(done.index) + 8) >> 14 & 1 == 1;
            assert_eq!((done.sop, body), (!open, open), "a head begins, a body goes on");
            assert!(!done.bytes.is_empty() || done.sop && done.eop);
            open = !done.eop;
        }
        assert!(!open);
    }
}

/// Drivers free their buffers as soon as the write of QUIESCE has returned: from then on no byte of
/// their memory changes, whatever arrives meanwhile.
#[test]
fn nothing_is_written_after_quiescence() {
    let mut guest = Guest::new();
    for round in 0..40 {
        if round > 0 {
            guest.write_shared();
            assert_eq!(guest.command(ACTIVATE), 0);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (guest, over) = (&guest, &over);
            scope.spawn(|| {
                let long = frame(MAC, 1500);
                let list: Vec<&[u8]> = vec![&long; 32];
                while !over.load(Ordering::Relaxed) {
                    guest.arrive_plain(&list);
                    let _ = guest.chip.want_room();
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(200));
            guest.set(1, CMD, if round % 2 == 0 { QUIESCE } else { RESET });
            guest.write(RX_BUFFERS, &vec![0x5a; 0x2_0000]);
            let before = guest.read(0, MEMORY as usize);
            std::thread::sleep(std::time::Duration::from_micros(500));
            assert!(guest.read(0, MEMORY as usize) == before, "written after it returned");
            over.store(true, Ordering::Relaxed);
        });
        guest.set(1, 0x10, SHARED as u32);
    }
}
