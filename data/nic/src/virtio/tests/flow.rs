//! What works, when the guest keeps the rules.

use std::sync::Arc;

use vmlan_frame::{Gso, Offload, Reason};
use vmlan_ram::{DirtyLog, Lines};

use super::super::{Features, Inflight, NetRx, NetTx};
use super::guest::*;

#[test]
fn frames_are_lent_and_their_buffers_given_back_in_order() {
    let mut b = Bench::<NetTx>::new(8, V1);
    for i in 0..5 {
        b.guest.send(i, &frame(i.to_le_bytes()[0], 60 + 300 * usize::from(i)));
    }
    let got = b.pulled();
    assert_eq!(got, (0..5).map(|i| frame(i, 60 + 300 * usize::from(i))).collect::<Vec<_>>());
    assert_eq!(b.guest.used(), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(b.rings(), 1, "one interrupt for the batch");
    let seen = b.counters.input.frames.get();
    assert_eq!((seen, b.counters.input.batches.get(), b.counters.tx_interrupts.get()), (5, 1, 1));
    assert_eq!(b.counters.input.bytes.get(), 5 * 60 + 300 * 10);
    assert_eq!(b.pull(&mut Bin::default()), 0);
}

#[test]
fn rings_wrap() {
    let mut b = Bench::<NetTx>::new(4, V1);
    for round in 0..20_000u32 {
        for i in 0..3u16 {
            b.guest.desc(i, BUFFERS, 72, 0, 0);
            b.guest.post(i);
        }
        assert_eq!(b.pull(&mut Bin::default()), 3, "round {round}");
        assert_eq!(b.guest.used(), [(0, 0), (1, 0), (2, 0)]);
    }
    let mut b = Bench::<NetRx>::new(4, V1);
    for round in 0..20_000u32 {
        for i in [2, 1, 0] {
            b.guest.offer(i, 1526);
        }
        assert_eq!(b.push(&[&frame(1, 60), &frame(2, 61), &frame(3, 62)]), 3, "round {round}");
        assert_eq!(b.guest.used(), [(2, 72), (1, 73), (0, 74)]);
    }
}

#[test]
fn header_and_frame_may_lie_in_a_chain_or_a_table() {
    for indirect in [false, true] {
        let mut b = Bench::<NetTx>::new(8, V1 | INDIRECT_DESC);
        let f = frame(7, 500);
        b.guest.write(BUFFERS + 0x100, &f);
        let parts =
            [(BUFFERS, 12, 1u16), (BUFFERS + 0x100, 200, 2), (BUFFERS + 0x100 + 200, 300, 0)];
        for (i, (addr, len, next)) in (0u16..).zip(parts) {
            let flags = if i < 2 { NEXT } else { 0 };
            if indirect {
                let d = Guest::descriptor(addr, len, flags, next);
                b.guest.write(0x4_0000 + 16 * u64::from(i), &d);
            } else {
                b.guest.desc(i, addr, len, flags, next);
            }
        }
        if indirect {
            b.guest.desc(5, 0x4_0000, 48, INDIRECT, 0);
        }
        let head = if indirect { 5 } else { 0 };
        b.guest.post(head);
        assert_eq!(b.pulled(), [f]);
        assert_eq!(b.guest.used(), [(head.into(), 0)]);
    }
}

#[test]
fn the_legacy_header_has_ten_bytes() {
    let mut b = Bench::<NetTx>::new(8, 0);
    b.guest.write(BUFFERS + 10, &frame(9, 60));
    b.guest.desc(0, BUFFERS, 70, 0, 0);
    b.guest.post(0);
    assert_eq!(b.pulled(), [frame(9, 60)]);
    let mut b = Bench::<NetRx>::new(8, 0);
    let at = b.guest.offer(0, 200);
    assert_eq!(b.push(&[&frame(3, 60)]), 1);
    assert_eq!(b.guest.used(), [(0, 70)]);
    assert_eq!(b.guest.read(at + 10, 60), frame(3, 60));
}

#[test]
fn buffers_may_cross_regions() {
    let mut b = Bench::<NetTx>::new(8, V1);
    b.guest.write(BORDER - 30, &[0; 12]);
    b.guest.write(BORDER - 18, &frame(4, 300));
    b.guest.desc(0, BORDER - 30, 312, 0, 0);
    b.guest.post(0);
    assert_eq!(b.pulled(), [frame(4, 300)]);
    let mut b = Bench::<NetRx>::new(8, V1);
    for (i, before) in [(0u16, 5), (1, 12), (2, 20), (3, 200)] {
        b.guest.desc(i, BORDER - before, 400, WRITE, 0);
        b.guest.post(i);
        assert_eq!(b.push(&[&frame(5, 300)]), 1);
        assert_eq!(b.guest.used(), [(i.into(), 312)]);
        assert_eq!(b.guest.read(BORDER - before + 12, 300), frame(5, 300));
    }
}

#[test]
fn held_frames_are_lent_again_and_nothing_twice() {
    let mut b = Bench::<NetTx>::new(8, V1);
    for i in 0..6 {
        b.guest.send(i, &frame(i.to_le_bytes()[0], 60));
    }
    let mut bin = Bin { hold: vec![2, 4], ..Bin::default() };
    assert_eq!(b.pull(&mut bin), 4);
    assert_eq!(b.guest.used(), [(0, 0), (1, 0)], "in order, up to the first held one");
    assert!(!b.net.arm(), "held frames wait for their receiver, not for the worker");
    assert_eq!(b.pull(&mut bin), 0);
    b.guest.send(6, &frame(6, 60));
    assert!(b.net.arm(), "a new frame");
    bin.hold = vec![4];
    assert_eq!(b.pull(&mut bin), 2);
    assert_eq!(b.guest.used(), [(2, 0), (3, 0)]);
    bin.hold.clear();
    assert_eq!(b.pull(&mut bin), 1);
    assert_eq!(b.guest.used(), [(4, 0), (5, 0), (6, 0)]);
    let order: Vec<u8> = bin.frames.iter().map(|f| f[0]).collect();
    assert_eq!(order, [0, 1, 3, 5, 2, 6, 4]);
    assert_eq!(b.counters.input.frames.get(), 7);
}

#[test]
fn a_limit_is_kept_also_for_held_frames() {
    let mut b = Bench::<NetTx>::new(64, V1);
    for i in 0..40 {
        b.guest.send(i, &frame(1, 60));
    }
    let mut bin = Bin { hold: vec![1], ..Bin::default() };
    b.net.pull(&mut b.batch, 30, &mut bin, &b.counters);
    b.net.pull(&mut b.batch, 7, &mut bin, &b.counters);
    bin.hold.clear();
    assert_eq!(b.net.pull(&mut b.batch, 7, &mut bin, &b.counters), 7);
    assert_eq!(b.guest.used().len(), 7);
    assert!(b.net.arm(), "ten were never lent");
    assert_eq!(b.net.pull(&mut b.batch, 256, &mut bin, &b.counters), 33);
    assert_eq!((bin.frames.len(), b.guest.used().len()), (40, 33));
    assert!(!b.net.arm());
}

#[test]
fn more_frames_than_the_window_are_pulled_in_turns() {
    let mut b = Bench::<NetTx>::new(1024, V1);
    for i in 0..600 {
        b.guest.desc(i, BUFFERS, 72, 0, 0);
        b.guest.post(i);
    }
    let mut bin = Bin::default();
    assert_eq!(b.pull(&mut bin) + b.pull(&mut bin) + b.pull(&mut bin), 600);
    let used: Vec<u32> = b.guest.used().iter().map(|u| u.0).collect();
    assert_eq!(used, (0..600).collect::<Vec<_>>());
}

#[test]
fn queues_take_turns() {
    let mut b = Bench::<NetTx>::new(8, V1);
    let mut second = Guest::new(&b.guest.map, 0x1000, 8);
    b.net.start(1, second.rings).unwrap();
    b.guest.send(0, &frame(1, 60));
    second.send(1, &frame(2, 60));
    assert_eq!(b.pulled().len(), 1, "the second is not enabled");
    b.net.enable(1, true).unwrap();
    b.guest.send(0, &frame(1, 60));
    let mut first = Vec::new();
    for _ in 0..2 {
        let mut bin = Bin::default();
        assert_eq!(b.net.pull(&mut b.batch, 1, &mut bin, &b.counters), 1);
        first.push(bin.frames[0][0]);
    }
    first.sort_unstable();
    assert_eq!(first, [1, 2]);
}

#[test]
fn interrupts_follow_flags_and_event_indexes() {
    let mut b = Bench::<NetTx>::new(8, V1);
    b.guest.set_flags(1);
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    assert_eq!(b.rings(), 1, "the first after a start is always told");
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    assert_eq!(b.rings(), 0);
    let mut b = Bench::<NetTx>::new(8, V1 | EVENT);
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    b.rings();
    b.guest.set_used_event(2);
    for want in [0, 1, 0] {
        b.guest.send(0, &frame(0, 60));
        b.pulled();
        assert_eq!(b.rings(), want);
    }
}

#[test]
fn doorbells_follow_arm_and_disarm() {
    let mut b = Bench::<NetTx>::new(8, V1);
    assert_eq!(b.guest.used_flags(), 0, "armed from the start");
    b.net.disarm();
    assert_eq!(b.guest.used_flags(), 1);
    assert!(!b.net.arm());
    assert_eq!(b.guest.used_flags(), 0);
    let mut b = Bench::<NetTx>::new(8, V1 | EVENT);
    b.guest.send(0, &frame(0, 60));
    assert!(b.net.arm(), "look again");
    b.pulled();
    assert!(!b.net.arm());
    assert_eq!(b.guest.avail_event(), 1);
}

#[test]
fn received_frames_have_headers_and_lengths() {
    let mut b = Bench::<NetRx>::new(8, V1 | 2);
    let at: Vec<u64> = (0..3).map(|i| b.guest.offer(i, 2000)).collect();
    let frames = [frame(1, 60), frame(2, 1514), frame(3, 128)];
    let valid = Offload { csum_valid: true, ..Offload::NONE };
    assert_eq!(b.push_with(&[&frames[0], &frames[1], &frames[2]], valid), 3);
    assert_eq!(b.guest.used(), [(0, 72), (1, 1526), (2, 140)]);
    for (at, f) in at.iter().zip(&frames) {
        assert_eq!(b.guest.read(*at, 12), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(b.guest.read(*at + 12, f.len()), *f);
    }
    assert_eq!(b.counters.output.frames.get(), 3);
    assert_eq!(b.counters.output.bytes.get(), 60 + 1514 + 128);
    assert_eq!((b.counters.output.notifications.get(), b.rings()), (1, 1));
}

#[test]
fn offloads_reach_the_receiver() {
    let mut b = Bench::<NetRx>::new(8, V1 | 2 | 1 << 7);
    let at = b.guest.offer(0, 4000);
    let offload = Offload {
        needs_csum: true,
        gso: Gso::Tcp4,
        ecn: true,
        gso_size: 1448,
        hdr_len: 66,
        csum_start: 34,
        csum_offset: 16,
        csum_valid: false,
    };
    assert_eq!(b.push_with(&[&frame(1, 3000)], offload), 1);
    let want = [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 1, 0];
    assert_eq!(b.guest.read(at, 12), want);
}

#[test]
fn mergeable_buffers_are_joined() {
    let mut b = Bench::<NetRx>::new(16, V1 | MRG);
    let at: Vec<u64> = (0..4).map(|i| b.guest.offer(i, 1000)).collect();
    let f = frame(1, 2500);
    assert_eq!(b.push(&[&f, &frame(2, 60)]), 2);
    assert_eq!(b.guest.used(), [(0, 1000), (1, 1000), (2, 512), (3, 72)]);
    assert_eq!(b.guest.read(at[0] + 10, 2), [3, 0]);
    assert_eq!(b.guest.read(at[3] + 10, 2), [1, 0]);
    let parts =
        [b.guest.read(at[0] + 12, 988), b.guest.read(at[1], 1000), b.guest.read(at[2], 512)];
    assert_eq!(parts.concat(), f);
}

#[test]
fn a_frame_waits_until_enough_buffers_are_posted() {
    let mut b = Bench::<NetRx>::new(16, V1 | MRG);
    b.guest.offer(0, 1000);
    assert_eq!(b.push(&[&frame(2, 60), &frame(1, 60), &frame(3, 60)]), 1);
    assert!(!b.net.want_room());
    b.guest.offer(1, 1000);
    assert!(b.net.want_room());
    assert_eq!(b.push(&[&frame(1, 1500)]), 0, "one of two");
    assert!(!b.net.want_room(), "one is there, but was too little");
    b.guest.offer(2, 1000);
    assert_eq!(b.net.room(1), 2);
    assert_eq!(b.push(&[&frame(1, 1500)]), 1);
    assert_eq!(b.guest.used(), [(0, 72), (1, 1000), (2, 512)]);
}

/// Whoever wants room for more than there is waits for more, and not for what is there.
#[test]
fn a_look_that_finds_too_little_is_waited_for() {
    let mut b = Bench::<NetRx>::new(16, V1);
    (0..8).for_each(|i| _ = b.guest.offer(i, 2000));
    assert_eq!(b.net.room(8), 8);
    assert!(b.net.want_room());
    assert_eq!(b.net.room(10), 8);
    assert!(!b.net.want_room() && b.net.is_starved());
    (8..10).for_each(|i| _ = b.guest.offer(i, 2000));
    assert!(b.net.want_room());
    assert_eq!(b.net.room(10), 10);
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    assert!(!b.net.is_starved());
}

#[test]
fn room_is_that_of_the_queue_with_least() {
    let mut b = Bench::<NetRx>::new(16, V1);
    let mut second = Guest::new(&b.guest.map, 0x2000, 16);
    b.net.start(1, second.rings).unwrap();
    b.net.enable(1, true).unwrap();
    (0..8).for_each(|i| _ = b.guest.offer(i, 2000));
    assert_eq!(b.net.room(1), 0);
    assert!(!b.net.want_room(), "what the first queue has does not count");
    second.offer(8, 2000);
    assert!(b.net.want_room());
    assert_eq!(b.net.room(1), 1);
}

/// Once buffers came, their doorbells are not heard any more.
#[test]
fn the_wish_for_buffers_is_taken_back() {
    let mut b = Bench::<NetRx>::new(16, V1);
    (0..2).for_each(|i| _ = b.guest.offer(i, 2000));
    assert_eq!((b.guest.used_flags(), b.net.room(3)), (1, 2));
    assert!(!b.net.want_room());
    assert_eq!(b.guest.used_flags(), 0);
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    assert_eq!(b.guest.used_flags(), 0, "no doorbell can have come: whoever waits still does");
    b.guest.offer(2, 2000);
    assert_eq!(b.push(&[&frame(1, 60), &frame(2, 60), &frame(3, 60)]), 2);
    assert_eq!(b.guest.used_flags(), 0, "the last found no room");
    b.guest.offer(3, 2000);
    assert_eq!(b.push(&[&frame(3, 60)]), 1);
    assert_eq!(b.guest.used_flags(), 1);
    let mut b = Bench::<NetRx>::new(16, V1 | EVENT);
    assert!(!b.net.want_room());
    b.guest.offer(0, 2000);
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    assert_eq!((b.guest.used_flags(), b.guest.avail_event()), (0, 0), "an event passes by itself");
}

#[test]
fn a_chain_receives_header_and_frame_apart() {
    let mut b = Bench::<NetRx>::new(16, V1);
    b.guest.desc(3, BUFFERS, 12, WRITE | NEXT, 4);
    b.guest.desc(4, BUFFERS + 0x1000, 1514, WRITE, 0);
    b.guest.post(3);
    assert_eq!(b.push(&[&frame(1, 1514)]), 1);
    assert_eq!(b.guest.used(), [(3, 1526)]);
    assert_eq!(b.guest.read(BUFFERS + 0x1000, 1514), frame(1, 1514));
}

#[test]
fn flows_stay_on_their_queue() {
    let mut b = Bench::<NetRx>::new(64, V1);
    let mut second = Guest::new(&b.guest.map, 0x2000, 64);
    b.net.start(1, second.rings).unwrap();
    b.net.enable(1, true).unwrap();
    let mut at = Vec::new();
    for i in 0..32 {
        b.guest.offer(i, 200);
        at.push(second.offer(32 + i, 200));
    }
    let frames: Vec<Vec<u8>> = (0..30).map(|i| frame(i % 15, 60)).collect();
    let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(b.push(&refs), 30);
    let counts = [b.guest.used().len(), second.used().len()];
    assert_eq!(counts[0] + counts[1], 30);
    assert!(counts.iter().all(|n| *n > 0 && n % 2 == 0), "both frames of a flow: {counts:?}");
    let tags = at.iter().take(counts[1]).map(|a| b.guest.read(*a + 12, 1)[0]);
    let (early, late): (Vec<u8>, Vec<u8>) = {
        let tags: Vec<u8> = tags.collect();
        let (a, b) = tags.split_at(counts[1] / 2);
        (a.to_vec(), b.to_vec())
    };
    assert_eq!(early, late, "in order, each flow on one queue");
}

#[test]
fn a_killed_switch_goes_on_at_the_used_index() {
    let mut b = Bench::<NetTx>::new(8, V1);
    for i in 0..3 {
        b.guest.send(i, &frame(i.to_le_bytes()[0], 60));
    }
    b.pulled();
    b.guest.used();
    b.guest.send(3, &frame(3, 60));
    let bell = Arc::new(Bell::default());
    let mut again = NetTx::new();
    again.set_map(b.guest.map.clone());
    again.set_features(Features(V1));
    again.set_interrupt(0, Some(bell.clone())).unwrap();
    again.start(0, b.guest.rings).unwrap();
    again.enable(0, true).unwrap();
    assert_eq!(bell.0.load(std::sync::atomic::Ordering::Relaxed), 1, "told in case it was not");
    let mut bin = Bin::default();
    assert_eq!(again.pull(&mut b.batch, 256, &mut bin, &b.counters), 1);
    assert_eq!(b.guest.used(), [(3, 0)]);
    assert_eq!(again.stop(0), 4, "for GET_VRING_BASE");
    assert_eq!(again.stop(0), 0);
}

#[test]
fn a_new_map_keeps_the_indexes() {
    let mut b = Bench::<NetTx>::new(8, V1);
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    let regions = b.guest.map.regions().to_vec();
    let map = Arc::new(vmlan_ram::Map::new(regions, None).unwrap());
    let old = Arc::downgrade(&b.guest.map);
    b.net.set_map(map.clone());
    b.guest.map = map;
    assert!(old.upgrade().is_none(), "nothing refers to the old map");
    b.guest.send(1, &frame(1, 60));
    assert_eq!(b.pulled(), [frame(1, 60)]);
    b.net.set_map(Arc::default());
    assert!(b.net.fault().is_some() && !b.net.is_ready());
    assert_eq!(b.pull(&mut Bin::default()), 0);
}

#[test]
fn writes_are_logged_for_migration() {
    let log = Arc::new(DirtyLog::new(mapping(4096), 0, 4096).unwrap());
    let page = mapping(4096);
    let seen = vmlan_ram::Region::new(0, 4096, 0, 0, page.clone()).unwrap();
    let seen = vmlan_ram::Map::new(vec![seen], None).unwrap();
    drop(log);
    let log = Arc::new(DirtyLog::new(page, 0, 4096).unwrap());
    let mut b = Bench::<NetRx>::on(&memory(Some(log)), 8, V1);
    b.net.set_log(0, Some(0x7000));
    b.guest.offer(0, 4096);
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    let bits = seen.slice(0, 64).unwrap().read_array::<64>().unwrap();
    let dirty: Vec<usize> = (0..512).filter(|p| bits[p / 8] >> (p % 8) & 1 != 0).collect();
    assert_eq!(dirty, [7, 0x80], "the ring at its log address, the buffer at its own");
}

#[test]
fn the_used_index_is_noted_in_the_inflight_region() {
    let mut b = Bench::<NetTx>::new(8, V1);
    let window = b.guest.map.window(0x7000, 64, 8).unwrap();
    b.net.set_inflight(0, Some(Inflight { window, offset: 14 }));
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    assert_eq!(b.guest.read(0x700e, 2), [1, 0]);
}

#[test]
fn without_queues_frames_are_dropped_for_the_link() {
    let mut b = Bench::<NetRx>::new(8, V1);
    b.net.enable(0, false).unwrap();
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    assert_eq!(b.counters.output.dropped(Reason::LinkDown), 1);
}

/// Where the next frames go is noted, as far as it is known; a wrong address ends the list, and is
/// no fault before a frame needs it.
#[test]
fn the_next_push_is_prepared() {
    let lines = Lines::default();
    let mut b = Bench::<NetRx>::new(8, V1);
    b.net.note_next(&lines, 1);
    assert_eq!(lines.noted().count(), 8, "nothing is posted: the queue and the ring");
    (0..6).for_each(|i| _ = b.guest.offer(i, 2048));
    b.guest.desc(4, MEMORY - 1, 2048, WRITE, 0);
    assert_eq!(b.push(&[&frame(1, 60)]), 1);
    b.net.note_next(&lines, 2);
    let at = |i: u64| b.guest.map.slice(BUFFERS + 0x1000 * i, 1).unwrap().as_raw().0.addr();
    let noted: Vec<_> = lines.noted().skip(8).collect();
    assert_eq!(noted, [at(1), at(1) + 71, at(2), at(2) + 71], "for as many frames as came");
    b.net.note_next(&lines, 200);
    assert_eq!(lines.noted().count(), 8 + 2 * 3, "up to the wrong one");
    assert_eq!(b.net.fault(), None);
    b.net.enable(0, false).unwrap();
    b.net.note_next(&lines, 1);
    assert_eq!(lines.noted().count(), 0);
}
