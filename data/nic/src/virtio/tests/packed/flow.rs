//! Frames through packed rings, and who is told.

use vmlan_ram::DirtyLog;

use super::*;
use crate::virtio::{Features, Inflight};

#[test]
fn frames_pass_in_order_lap_after_lap() {
    // A ring need not be a power of two.
    for size in [1, 3, 5, 8] {
        let mut b = tx(size, 0);
        for round in 0..40u8 {
            for id in 0..size {
                b.guest.send(id, &frame(round, 60 + usize::from(id)));
            }
            let want: Vec<_> = (0..size).map(|id| frame(round, 60 + usize::from(id))).collect();
            assert_eq!(b.pulled(), want);
            let want: Vec<_> = (0..size).map(|id| (u32::from(id), 0)).collect();
            assert_eq!(b.guest.used(), want);
            assert_eq!(b.rings(), 1, "no suppression");
        }
        assert_eq!(b.net.stop(0), b.guest.seen.base());
    }
}

#[test]
fn lists_and_tables_are_one_frame() {
    let mut b = tx(8, INDIRECT_DESC);
    for round in 0..20u8 {
        let f = frame(round, 300);
        b.guest.write(place(0), &[0; 12]);
        b.guest.write(place(1), &f);
        let pieces = [(place(0), 12, 0), (place(1), 100, 0), (place(1) + 100, 200, 0)];
        b.guest.post(5, &pieces);
        // Flags beside WRITE are reserved in a table, and so is the id.
        let table: Vec<u8> = [(place(0), 12u32, NEXT), (place(1), 300, AVAIL)]
            .iter()
            .flat_map(|(addr, len, flags)| Guest::descriptor(*addr, *len, 77, *flags))
            .collect();
        b.guest.write(place(2), &table);
        b.guest.post(2, &[(place(2), 32, INDIRECT)]);
        b.guest.post(1, &[(place(0), 12, 0), (place(1), 300, 0)]);
        assert_eq!(b.pulled(), vec![f; 3]);
        assert_eq!(b.guest.used(), [(5, 0), (2, 0), (1, 0)]);
    }
}

#[test]
fn held_frames_are_given_back_in_order() {
    let mut b = tx(8, 0);
    for (id, tag) in (0..).zip([1, 2, 3, 4]) {
        b.guest.send(id, &frame(tag, 60));
    }
    let mut bin = Bin { hold: vec![2], ..Bin::default() };
    assert_eq!(b.pull(&mut bin), 3);
    assert_eq!(b.guest.used(), [(0, 0)]);
    b.guest.send(4, &frame(5, 60));
    assert_eq!(b.pull(&mut bin), 1, "what came meanwhile");
    assert!(b.guest.used().is_empty());
    assert_eq!(b.pulled(), [frame(2, 60)]);
    assert_eq!(b.guest.used(), [(1, 0), (2, 0), (3, 0), (4, 0)]);
}

#[test]
fn mergeable_buffers_are_joined() {
    let mut b = rx(6, MRG);
    for round in 0..10 {
        let at: Vec<u64> = (0..4).map(|id| b.guest.offer(id, 1000)).collect();
        let f = frame(1, 2500);
        assert_eq!(b.push(&[&f, &frame(2, 60)]), 2, "{round}");
        assert_eq!(b.guest.used(), [(0, 1000), (1, 1000), (2, 512), (3, 72)]);
        assert_eq!(b.guest.read(at[0] + 10, 2), [3, 0]);
        let parts =
            [b.guest.read(at[0] + 12, 988), b.guest.read(at[1], 1000), b.guest.read(at[2], 512)];
        assert_eq!(parts.concat(), f);
    }
}

/// Used descriptors show at once, so none may be written before its frame is.
#[test]
fn one_push_uses_more_buffers_than_heads_are_kept() {
    let mut b = rx(4096, MRG);
    for k in 0..1500 {
        b.guest.post(k, &[(place(k % 64), 64, WRITE)]);
    }
    let frames = vec![frame(7, 1500); 20];
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(b.push(&frames), 20);
    assert_eq!(b.guest.used().len(), 20 * 1512usize.div_ceil(64));
}

#[test]
fn room_is_what_is_posted() {
    let mut b = rx(16, MRG);
    assert_eq!(b.net.room(1), 0);
    assert!(!b.net.want_room());
    b.guest.offer(0, 1000);
    assert!(b.net.want_room());
    assert_eq!(b.push(&[&frame(1, 1500)]), 0, "one of two");
    assert!(!b.net.want_room(), "one is there, but was too little");
    b.guest.offer(1, 1000);
    assert_eq!(b.net.room(1), 2);
    assert_eq!(b.push(&[&frame(1, 1500)]), 1);
    assert_eq!(b.guest.used(), [(0, 1000), (1, 512)]);
}

#[test]
fn doorbells_follow_arm_and_disarm() {
    for (features, wish) in [(0, 0), (EVENT, 2)] {
        let mut b = tx(8, features);
        let at = |at: At| if wish == 2 { at.word() } else { 0 };
        assert_eq!(b.guest.device_event(), (at(At(0, true)), wish), "armed from the start");
        b.net.disarm();
        assert_eq!(b.guest.device_event(), (0, 1));
        for id in 0..7 {
            b.guest.send(id, &frame(0, 60));
        }
        assert!(b.net.arm(), "look again");
        b.pulled();
        assert!(!b.net.arm());
        assert_eq!(b.guest.device_event(), (at(At(7, true)), wish));
        b.guest.used();
        b.guest.send(0, &frame(0, 60));
        b.pulled();
        assert!(!b.net.arm());
        assert_eq!(b.guest.device_event(), (at(At(0, false)), wish), "in the next lap");
    }
    let b = rx(8, EVENT);
    assert_eq!(b.guest.device_event(), (0, 1), "not for buffers");
}

/// Once buffers came, their doorbells are not heard any more.
#[test]
fn the_wish_for_buffers_is_taken_back() {
    for (features, stated, after) in [(0, (0, 0), (0, 1)), (EVENT, (0x8000, 2), (0x8000, 2))] {
        let mut b = rx(16, features);
        assert_eq!(b.guest.device_event(), (0, 1));
        assert!(!b.net.want_room());
        assert_eq!(b.guest.device_event(), stated);
        assert_eq!(b.push(&[&frame(1, 60)]), 0);
        assert_eq!(b.guest.device_event(), stated);
        b.guest.offer(0, 2000);
        assert_eq!(b.push(&[&frame(1, 60)]), 1);
        assert_eq!(b.guest.device_event(), after, "an event passes by itself");
    }
}

/// Every place that a driver may name, in every ring of up to five, for every number of buffers
/// used: it is interrupted if that place is among them.
#[test]
fn interrupts_come_when_the_place_is_passed() {
    for size in 1..=5 {
        for (begin, n) in (0..2 * size).flat_map(|b| (1..=size).map(move |n| (b, n))) {
            for event in 0..2 * size {
                let mut b = tx(size, EVENT);
                for k in 0..=begin {
                    b.guest.send(k % size, &frame(0, 60));
                    b.pulled();
                    b.guest.used();
                }
                b.rings();
                let from = b.guest.seen;
                let event = At(event % size, event < size);
                b.guest.set_event(event.word(), 2);
                for id in 0..n {
                    b.guest.send(id, &frame(0, 60));
                }
                b.pulled();
                let passed = (0..n).any(|k| from.plus(k, size) == event);
                assert_eq!(b.rings(), usize::from(passed), "{size}: {from:?} + {n}, {event:?}");
            }
        }
    }
}

#[test]
fn interrupts_follow_flags() {
    let mut b = tx(8, 0);
    for (flags, want) in [(0, 1), (1, 0), (0, 1), (3, 1)] {
        b.guest.set_event(0, flags);
        b.guest.send(0, &frame(0, 60));
        b.pulled();
        b.guest.used();
        assert_eq!(b.rings(), want, "reserved flags are taken for any");
    }
}

#[test]
fn the_place_is_noted_in_the_inflight_region() {
    let mut b = tx(3, 0);
    let window = b.guest.raw().map.window(0x7000, 64, 8).unwrap();
    b.net.set_inflight(0, Some(Inflight { window, offset: 16 }));
    for (n, want) in [(1u8, [1, 0, 1, 0, 1, 1]), (1, [2, 0, 2, 0, 1, 1]), (2, [1, 0, 1, 0, 0, 0])] {
        for id in 0..n {
            b.guest.send(id.into(), &frame(0, 60));
        }
        b.pulled();
        b.guest.used();
        assert_eq!(b.guest.read(0x7010, 6), want, "used_idx twice, wrap counter twice");
    }
}

#[test]
fn writes_are_logged_for_migration() {
    let page = mapping(4096);
    let seen = vmlan_ram::Region::new(0, 4096, 0, 0, page.clone()).unwrap();
    let seen = vmlan_ram::Map::new(vec![seen], None).unwrap();
    let map = memory(Some(Arc::new(DirtyLog::new(page, 0, 4096).unwrap())));
    // The ring fills two pages; the event structures lie behind.
    let guest = PackedGuest::new(&map, 512);
    let rings = guest.rings;
    let mut b = Bench::<NetRx, _>::with(&map, guest, rings, PACKED);
    b.net.set_log(0, Some(0x7000));
    for id in 0..512 {
        b.guest.post(id, &[(place(id % 8), 100, WRITE)]);
    }
    let push = |b: &mut Bench<NetRx, PackedGuest>, n: usize| {
        let f = frame(1, 60);
        assert_eq!(b.push(&vec![&f[..]; n]), n);
        let bits = seen.slice(0, 64).unwrap().read_array::<64>().unwrap();
        (0..512usize).filter(|p| bits[p / 8] >> (p % 8) & 1 != 0).collect::<Vec<_>>()
    };
    assert_eq!(push(&mut b, 2), [0, 0x80, 0x81]);
    let dirty = push(&mut b, 255);
    assert_eq!(dirty[..3], [0, 1, 0x80], "the second page of the ring, with slot 256");
    assert!(!b.net.want_room() || b.net.room(1) > 0);
    let dirty = push(&mut b, 1);
    assert!(dirty.contains(&7), "our event structure, at its log address: {dirty:?}");
}

#[test]
fn a_new_map_keeps_the_place() {
    let mut b = tx(8, 0);
    b.guest.send(0, &frame(0, 60));
    b.pulled();
    let regions = b.guest.memory.regions().to_vec();
    let map = Arc::new(Map::new(regions, None).unwrap());
    let old = Arc::downgrade(&b.guest.memory);
    b.net.set_map(map.clone());
    b.guest.memory = map;
    assert!(old.upgrade().is_none(), "nothing refers to the old map");
    b.guest.send(1, &frame(1, 60));
    assert_eq!(b.pulled(), [frame(1, 60)]);
    b.net.set_features(Features(PACKED | EVENT));
    b.guest.send(2, &frame(2, 60));
    assert_eq!(b.pulled(), [frame(2, 60)]);
    b.net.set_map(Arc::default());
    assert!(b.net.fault().is_some() && !b.net.is_ready());
}
