//! What guests may do to a packed ring, as listed in `docs/known-faults.md`: a fault of that port
//! only, counted once, or nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::{Batch, Reason, Sink};

use super::*;
use crate::virtio::{Budget, Fault, Features};

/// The fault that a pull meets.
fn fault(b: &mut Bench<NetTx, PackedGuest>) -> Option<Fault> {
    b.pull(&mut Bin::default());
    let fault = b.net.fault().map(|f| f.1);
    assert_eq!(b.counters.faults.get(), u64::from(fault.is_some()));
    assert_eq!(b.net.is_ready(), fault.is_none());
    assert_eq!(b.pull(&mut Bin::default()), 0, "stopped");
    fault
}

#[test]
fn packed_list_longer_than_the_ring() {
    for size in [1, 4, 7, 32768] {
        let mut b = tx(size, 0);
        for slot in 0..size {
            b.guest.set(slot, BUFFERS, 72, 0, AVAIL | NEXT);
        }
        assert_eq!(fault(&mut b), Some(Fault::Endless));
    }
    // One that would reach what is with us already.
    let mut b = tx(4, 0);
    b.guest.send(0, &frame(1, 60));
    let mut bin = Bin { hold: vec![1], ..Bin::default() };
    b.pull(&mut bin);
    for slot in 1..4 {
        b.guest.set(slot, BUFFERS, 72, 1, AVAIL | NEXT);
    }
    assert_eq!(fault(&mut b), Some(Fault::Endless));
}

#[test]
fn packed_id_out_of_range() {
    for id in [8, 9, 0x7fff, 0x8000, 0xffff] {
        let mut b = tx(8, 0);
        b.guest.set(0, BUFFERS, 72, id, AVAIL);
        assert_eq!(fault(&mut b), Some(Fault::BufferId(id)));
        // The last descriptor of a list has its id.
        let mut b = tx(8, 0);
        b.guest.set(1, BUFFERS, 72, id, AVAIL);
        b.guest.set(0, BUFFERS, 72, 0, AVAIL | NEXT);
        assert_eq!(fault(&mut b), Some(Fault::BufferId(id)));
        let mut b = rx(8, 0);
        b.guest.set(0, BUFFERS, 2000, id, AVAIL | WRITE);
        assert_eq!(b.push(&[&frame(1, 60)]), 0);
        assert_eq!(b.net.fault(), Some((0, Fault::BufferId(id))));
    }
}

#[test]
fn packed_id_twice() {
    let mut b = tx(8, 0);
    b.guest.send(3, &frame(1, 60));
    b.guest.send(3, &frame(2, 60));
    assert_eq!(fault(&mut b), Some(Fault::BufferIdTwice(3)));
    // While it is held; but not once it was given back.
    let mut b = tx(8, 0);
    b.guest.send(3, &frame(1, 60));
    b.pull(&mut Bin { hold: vec![1], ..Bin::default() });
    assert_eq!(b.pull(&mut Bin::default()), 1);
    b.guest.used();
    b.guest.send(3, &frame(1, 60));
    assert_eq!(b.pull(&mut Bin { hold: vec![1], ..Bin::default() }), 0);
    b.guest.send(3, &frame(2, 60));
    assert_eq!(fault(&mut b), Some(Fault::BufferIdTwice(3)));
}

/// Rewrites the ring while frames are lent.
struct Rewriter<'g>(&'g PackedGuest, usize);

impl Sink for Rewriter<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        self.1 += batch.len();
        for slot in 0..self.0.rings.size {
            self.0.set(slot, u64::MAX, u32::MAX, 0xffff, NEXT | USED);
        }
    }
}

#[test]
fn packed_descriptors_are_read_once() {
    let mut b = tx(8, 0);
    b.guest.send(4, &frame(1, 60));
    b.guest.post(6, &[(place(4), 12, 0), (place(4) + 12, 60, 0)]);
    b.guest.send(5, &frame(2, 60));
    let guest = b.guest.clone();
    let mut sink = Rewriter(&guest, 0);
    b.net.pull(&mut b.batch, 256, &mut sink, &b.counters);
    assert_eq!(sink.1, 3);
    assert_eq!(b.guest.used(), [(4, 0), (6, 0), (5, 0)], "ids and places are those read first");
}

#[test]
fn packed_flags_flip_while_we_read() {
    let mut b = tx(16, INDIRECT_DESC);
    let (guest, stop) = (b.guest.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1u32;
            while !stop.load(Ordering::Relaxed) {
                n = n.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                let [a, b, c, d] = n.to_le_bytes();
                let flags = u16::from_le_bytes([a & 0x87, b & 0x80]);
                let slot = u16::from(c & 15);
                guest.set(slot, BUFFERS + u64::from(d), 72, slot, flags);
            }
        });
        let mut faults = 0;
        for _ in 0..3000 {
            b.net.pull(&mut b.batch, 256, &mut Bin::default(), &b.counters);
            if b.net.fault().is_some() {
                faults += 1;
                b.net.stop(0);
                b.net.start(0, b.guest.rings).or_else(|_| b.net.start(0, b.guest.rings)).unwrap();
            }
            b.net.arm();
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(b.counters.faults.get(), faults, "each once");
    });
}

/// A descriptor of another lap is none: whoever marks it so waits for ever, and nobody else does.
#[test]
fn packed_wrap_counter_lies() {
    let mut b = tx(4, 0);
    for flags in [0, USED, AVAIL | USED] {
        for slot in 0..4 {
            b.guest.set(slot, BUFFERS, 72, slot, flags);
        }
        assert_eq!(b.pull(&mut Bin::default()), 0);
        assert!(!b.net.arm() && b.net.fault().is_none());
    }
    // And a base that lies is not believed while the ring says something.
    let mut b = tx(4, 0);
    b.guest.send(0, &frame(1, 60));
    b.guest.send(1, &frame(2, 60));
    b.pull(&mut Bin { hold: vec![2], ..Bin::default() });
    assert_eq!(b.net.stop(0), At(1, true).base());
    for base in [0, 0x8000, 0x0001, 0x8003, 0xffff] {
        b.net.start(0, Rings { base, ..b.guest.rings }).unwrap();
        assert_eq!(b.net.stop(0), At(1, true).base(), "{base:#x}");
    }
}

/// A ring that nobody's place explains begins at the base, which must be inside.
#[test]
fn packed_base_beyond_the_ring() {
    let mut b = tx(8, 0);
    b.net.stop(0);
    for slot in 0..8 {
        b.guest.set_flags(slot, if slot % 2 == 0 { USED } else { 0 });
    }
    for base in [8, 0x7fff, 0x8008, 0xffff] {
        assert_eq!(b.net.start(0, Rings { base, ..b.guest.rings }), Err(Fault::Base(base)));
    }
    for at in [At(0, false), At(3, true), At(7, false)] {
        b.net.start(0, Rings { base: at.word(), ..b.guest.rings }).unwrap();
        assert_eq!(b.net.stop(0), at.base());
    }
}

#[test]
fn packed_event_structure_beyond_memory() {
    let mut b = tx(4, 0);
    let good = b.guest.rings;
    for gpa in [MEMORY, MEMORY - 2, u64::MAX - 1, BORDER - 2, 0x1002] {
        let bad = Rings { avail: gpa, ..good };
        assert_eq!(b.net.start(1, bad), Err(Fault::BadRing(gpa)));
        let bad = Rings { used: gpa, ..good };
        assert_eq!(b.net.start(1, bad), Err(Fault::BadRing(gpa)));
    }
    for size in [0, 32769, 65535] {
        let bad = Rings { size, ..good };
        assert_eq!(b.net.start(1, bad), Err(Fault::BadPackedSize(size)));
    }
}

#[test]
fn packed_event_beyond_the_ring() {
    for off in [4, 5, 0x7fff] {
        for wrap in [0, 0x8000] {
            let mut b = tx(4, EVENT);
            b.guest.set_event(off | wrap, 2);
            b.guest.send(0, &frame(1, 60));
            assert_eq!(b.pulled(), [frame(1, 60)]);
            assert_eq!((b.guest.used().len(), b.rings()), (1, 1), "what was used is told");
            assert_eq!(fault(&mut b), Some(Fault::EventOffset(off)));
            let mut b = rx(4, EVENT);
            b.guest.set_event(off | wrap, 2);
            b.guest.offer(0, 100);
            b.guest.offer(1, 100);
            assert_eq!(b.push(&[&frame(1, 60)]), 1);
            b.push(&[&frame(1, 60)]);
            b.push(&[&frame(1, 60)]);
            assert_eq!(b.net.fault(), Some((0, Fault::EventOffset(off))));
        }
    }
}

/// Makes everything available again, as soon as it can.
struct Endless<'g>(&'g PackedGuest, usize);

impl Endless<'_> {
    fn mark(&self) {
        for slot in 0..self.0.rings.size {
            // Whichever lap the device is in, some of these are available.
            let flags = if self.1.is_multiple_of(2) { AVAIL } else { USED };
            self.0.set(slot, BUFFERS, 72, slot, flags);
        }
    }
}

impl Sink for Endless<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        assert!(batch.len() <= usize::from(self.0.rings.size));
        self.1 += 1;
        self.mark();
    }
}

#[test]
fn packed_avail_without_end() {
    let mut b = tx(8, 0);
    let guest = b.guest.clone();
    let mut sink = Endless(&guest, 0);
    sink.mark();
    for _ in 0..50 {
        assert!(b.net.pull(&mut b.batch, 256, &mut sink, &b.counters) <= 8, "a lap at most");
    }
    assert!(b.counters.faults.get() <= 1);
    // Lists of many descriptors: a pull visits 4,096 of them, and the last list.
    let mut b = tx(32768, 0);
    for id in 0..8 {
        let long = vec![(BUFFERS, 0, 0); 4000];
        b.guest.post(id, &long);
    }
    assert_eq!(b.pull(&mut Bin::default()), 1, "too long, and the budget is spent");
    assert_eq!(b.counters.input.dropped(Reason::TooLong), 1);
}

/// A spent budget stays spent, whatever there is to read. The first list may exceed it: somebody
/// who offers such buffers gets a frame in a push.
#[test]
fn packed_lists_cost_one_budget_a_push() {
    let frames = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| frame(n, 60));
    let pushed = |b: &mut Bench<NetRx, PackedGuest>, budget: &mut Budget| {
        b.push_within(budget, &frames.each_ref().map(Vec::as_slice))
    };
    // Descriptors of each list, and frames that a push deals with.
    for (count, dealt) in [(4096, 1), (4000, 1), (2048, 2), (1024, 4), (5, 8)] {
        let mut b = rx(32768, 0);
        let mut long = vec![(BUFFERS, 2, WRITE); count];
        long[0].1 = 100;
        (0..8).for_each(|id| b.guest.post(id, &long));
        let mut budget = Budget::default();
        assert_eq!(pushed(&mut b, &mut budget), dealt, "lists of {count}");
        assert_eq!(b.guest.used().len(), dealt);
        // Another part of the same push.
        if budget.is_spent() {
            assert_eq!(pushed(&mut b, &mut budget), 0, "lists of {count}");
            assert!(b.net.want_room(), "there is some: it looks again");
            assert_eq!(pushed(&mut b, &mut Budget::default()), dealt.min(8 - dealt));
        }
    }
}

/// A large frame in many buffers spends the budget of a push now and then, and all arrive.
#[test]
fn packed_mergeable_buffers_go_on_with_the_next_push() {
    let mut b = rx(32768, MRG);
    let large = frame(1, 60_000);
    let (frames, buffers) = (40, 240);
    for id in 0..frames * buffers {
        b.guest.post(id, &[(BUFFERS, 254, WRITE)]);
    }
    let list = vec![large.as_slice(); usize::from(frames)];
    let (mut at, mut pushes) = (0, 0);
    while at < list.len() {
        let dealt = b.push(&list[at..]);
        assert!(dealt > 0);
        (at, pushes) = (at + dealt, pushes + 1);
    }
    assert_eq!(pushes, 3, "17 frames of 237 buffers each in one");
    assert_eq!(b.guest.used().len(), 40 * 237);
}

#[test]
fn packed_indirect_tables() {
    // Not negotiated; empty or not whole; in a table; in a list.
    let post = |features: u64, list: &[Piece], table: &[u8]| {
        let mut b = tx(8, features);
        b.guest.write(0x4_0000, table);
        b.guest.post(0, list);
        fault(&mut b)
    };
    let table = Guest::descriptor(BUFFERS, 72, 0, 0);
    let one = [(0x4_0000, 16, INDIRECT)];
    assert_eq!(post(0, &one, &table), Some(Fault::Indirect));
    assert_eq!(post(INDIRECT_DESC, &one, &table), None);
    for len in [0, 8, 17, 16 * 32769, u32::MAX] {
        let list = [(0x4_0000, len, INDIRECT)];
        assert_eq!(post(INDIRECT_DESC, &list, &table), Some(Fault::IndirectSize(len)));
    }
    // Where split rings have the id, a table's descriptors have flags.
    let nested = [&BUFFERS.to_le_bytes()[..], &16u32.to_le_bytes(), &[0, 0, 4, 0]].concat();
    assert_eq!(post(INDIRECT_DESC, &one, &nested), Some(Fault::Indirect));
    for list in [[one[0], (BUFFERS, 72, 0)], [(BUFFERS, 72, 0), one[0]]] {
        assert_eq!(post(INDIRECT_DESC, &list, &table), Some(Fault::Indirect));
    }
    let beyond = [(MEMORY - 8, 16, INDIRECT)];
    let bad = Fault::BadAddress { addr: MEMORY - 8, len: 16 };
    assert_eq!(post(INDIRECT_DESC, &beyond, &table), Some(bad));
}

#[test]
fn packed_direction_and_length() {
    let mut b = tx(8, 0);
    b.guest.post(0, &[(BUFFERS, 72, WRITE)]);
    assert_eq!(fault(&mut b), Some(Fault::Direction));
    let mut b = rx(8, 0);
    b.guest.post(0, &[(BUFFERS, 72, 0)]);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::Direction)));
    let mut b = rx(8, 0);
    b.guest.offer(0, 0);
    assert_eq!(b.push(&[&frame(1, 60)]), 0);
    assert_eq!(b.net.fault(), Some((0, Fault::Empty)));
    let mut b = tx(8, 0);
    b.guest.post(0, &[(MEMORY - 10, 72, 0)]);
    assert_eq!(fault(&mut b), Some(Fault::BadAddress { addr: MEMORY - 10, len: 72 }));
    for len in [1, 5, 11] {
        let mut b = rx(8, 0);
        b.guest.offer(0, len);
        assert_eq!(b.push(&[&frame(1, 60)]), 1, "dropped");
        assert_eq!(b.counters.output.dropped(Reason::TooLong), 1);
        assert!(b.guest.used().is_empty(), "and the buffer kept");
    }
}

#[test]
fn a_layout_that_changes_needs_a_new_start() {
    let mut b = tx(8, 0);
    b.guest.send(0, &frame(1, 60));
    b.net.set_features(Features(V1));
    // The queue keeps its layout; attach refuses such features while a queue is started.
    assert_eq!(b.pulled(), [frame(1, 60)]);
}
