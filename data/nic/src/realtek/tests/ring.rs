//! Rings without registers: where they end, and whose descriptors are whose.

use std::os::fd::AsFd;

use proptest::prelude::*;
use vmlan_ram::{Mapping, Region};

use super::*;
use crate::r8169::R8169;
use crate::ring::add;

const BASE: u64 = 0x1000;
const LEN: u64 = 0x1_0000;

struct Bench {
    map: Arc<Map>,
    ring: Ring<R8169>,
    place: Place,
}

fn memory(len: u64) -> Arc<Map> {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(len).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, len).unwrap());
    Arc::new(Map::new(vec![Region::new(0, len, 0, 0, mapping).unwrap()], None).unwrap())
}

impl Bench {
    fn new(base: u64) -> Self {
        let map = memory(LEN);
        let mut ring = Ring::new(Which::Receive);
        drop(ring.set_map(map.clone()));
        Self { map, ring, place: Place { base, rewinds: 0 } }
    }

    fn set(&self, index: u32, opts1: u32) {
        let at = self.place.base + 16 * u64::from(index);
        self.map.slice_mut(at, 4).unwrap().write(0, &opts1.to_le_bytes());
    }

    fn get(&self, index: u32) -> u32 {
        let at = self.place.base + 16 * u64::from(index);
        u32::from_le_bytes(self.map.slice(at, 4).unwrap().read_array().unwrap())
    }

    /// Head, tail, size.
    fn look(&mut self) -> (u32, u32, u32) {
        let look = self.ring.look_at(self.place).unwrap();
        (look.head, look.tail, look.size)
    }

    /// Gives back all that is known to be the chip's; returns how many.
    fn serve(&mut self) -> u32 {
        let (head, tail, size) = self.look();
        let mut at = head;
        while at != tail {
            assert_ne!(self.ring.opts1(at) & OWN, 0);
            self.ring.give(at, self.ring.eor(at).into());
            at = add(at, 1, size);
        }
        self.ring.publish(at);
        distance(head, tail, size)
    }
}

#[test]
fn it_ends_where_the_guest_says_and_one_stays_out_of_reach() {
    let mut bench = Bench::new(BASE);
    assert_eq!(bench.look(), (0, 0, 1024));
    (0..7).for_each(|i| bench.set(i, OWN));
    bench.set(7, OWN | EOR);
    assert_eq!(bench.look(), (0, 7, 8));
    assert!(!bench.ring.is_empty_at(7), "it is ours, but not yet");
    // The last one is looked at once there is room behind it.
    for _ in 0..5 {
        let n = bench.serve();
        assert!(n > 0);
        assert!(bench.look().2 == 8 || bench.look().2 == 1024);
        (0..8).filter(|i| bench.get(*i) & OWN == 0).for_each(|i| {
            bench.set(i, OWN | if i == 7 { EOR } else { 0 });
        });
    }
    assert_eq!(bench.look().2, 8);
    assert_eq!(bench.get(7) & EOR, EOR);
}

#[test]
fn as_linux_fills_a_transmit_ring() {
    let mut bench = Bench::new(BASE);
    // All of a descriptor is cleared when it is sent, EOR too.
    for n in 0..3000u32 {
        let i = n % 256;
        bench.set(i, OWN | if i == 255 { EOR } else { 0 });
        assert_eq!(bench.serve(), 1, "frame {n}");
        assert_eq!(bench.get(i) & OWN, 0);
        bench.set(i, 0);
    }
    // And in bursts.
    for n in 0..300u32 {
        let start = 3000 + n * 100;
        (start..start + 100).for_each(|n| {
            bench.set(n % 256, OWN | if n % 256 == 255 { EOR } else { 0 });
        });
        let mut served = 0;
        while served < 100 {
            let n = bench.serve();
            assert!(n > 0);
            served += n;
        }
        assert_eq!(served, 100);
    }
}

#[test]
fn a_single_descriptor_is_a_ring() {
    let mut bench = Bench::new(BASE);
    for _ in 0..5 {
        bench.set(0, OWN | EOR);
        assert_eq!((bench.serve(), bench.get(0)), (1, EOR));
        assert_eq!(bench.serve(), 0);
    }
    // It grows.
    bench.set(0, OWN);
    bench.set(1, OWN | EOR);
    assert_eq!(bench.serve() + bench.serve(), 2);
    bench.set(0, OWN);
    assert_eq!((bench.serve(), bench.look().2), (1, 2));
}

#[test]
fn the_largest_ring_needs_no_mark() {
    let mut bench = Bench::new(BASE);
    (0..1024).for_each(|i| bench.set(i, OWN));
    let served: Vec<u32> = (0..5).map(|_| bench.serve()).collect();
    assert_eq!(served, [256, 256, 256, 256, 0]);
    bench.set(0, OWN);
    assert_eq!((bench.look(), bench.serve()), ((0, 1, 1024), 1));
}

#[test]
fn an_end_is_seen_before_it_is_given_away() {
    let mut bench = Bench::new(BASE);
    (0..7).for_each(|i| bench.set(i, OWN));
    bench.set(7, EOR);
    assert_eq!(bench.look(), (0, 7, 8));
    assert_eq!((bench.serve(), bench.look()), (7, (7, 7, 8)));
    (7..9).for_each(|i| bench.set(i % 8, OWN | if i == 7 { EOR } else { 0 }));
    assert_eq!((bench.serve(), bench.look()), (2, (1, 1, 8)));
    // It was left there by somebody else: the ring is longer.
    let mut bench = Bench::new(BASE);
    (0..7).for_each(|i| bench.set(i, OWN));
    bench.set(7, EOR);
    assert_eq!(bench.look(), (0, 7, 8));
    (7..20).for_each(|i| bench.set(i, OWN));
    assert_eq!((bench.serve(), bench.look()), (7, (7, 20, 1024)));
    // The first descriptor alone says nothing.
    let mut bench = Bench::new(BASE);
    bench.set(0, EOR);
    assert_eq!(bench.look(), (0, 0, 1024));
}

#[test]
fn an_end_that_moves_is_followed_when_that_is_safe() {
    let mut bench = Bench::new(BASE);
    (0..8).for_each(|i| bench.set(i, OWN | if i == 7 { EOR } else { 0 }));
    assert_eq!((bench.serve(), bench.serve()), (7, 1));
    (0..6).for_each(|i| bench.set(i, OWN));
    assert_eq!(bench.serve(), 6);
    // Wrapped: 6, 7, 0, 1 are under way when the end moves to 2.
    (6..8).for_each(|i| bench.set(i, OWN | if i == 7 { EOR } else { 0 }));
    (0..2).for_each(|i| bench.set(i, OWN));
    bench.set(2, OWN | EOR);
    assert_eq!(bench.look(), (6, 2, 8));
    assert_eq!(bench.look(), (6, 2, 8), "not past 2");
    assert_eq!(bench.serve(), 4);
    assert_eq!(bench.look(), (2, 0, 3));
    assert_eq!(bench.serve(), 1);
    // And away again.
    (0..5).for_each(|i| bench.set(i, OWN));
    assert_eq!(bench.serve() + bench.serve(), 5);
    assert_eq!(bench.look().2, 1024);
}

#[test]
fn rewinds_and_other_places_begin_anew() {
    let mut bench = Bench::new(BASE);
    (0..4).for_each(|i| bench.set(i, OWN));
    assert_eq!(bench.serve(), 4);
    bench.place.rewinds += 1;
    bench.set(0, OWN);
    let look = bench.ring.look_at(bench.place).unwrap();
    assert!(look.moved && look.head == 0 && look.tail == 1);
    assert!(!bench.ring.look_at(bench.place).unwrap().moved);
    // Stopped: what was seen is seen again, from where it stands.
    assert_eq!(bench.serve(), 1);
    bench.set(1, OWN);
    bench.look();
    bench.ring.stop();
    bench.set(1, 0);
    let look = bench.ring.look_at(bench.place).unwrap();
    assert!(look.moved && (look.head, look.tail) == (1, 1));
    bench.place.base = 0x8000;
    assert_eq!(bench.look(), (0, 0, 1024));
    bench.place.base = 0;
    assert_eq!(bench.look().2, 0, "nowhere");
}

#[test]
fn a_ring_that_runs_out_of_memory_stops_there() {
    for base in [LEN - 0x100, LEN, u64::MAX - 0xff, 0xfebc_0000] {
        let mut bench = Bench::new(base);
        if base < LEN {
            (0..16).for_each(|i| bench.set(i, OWN));
            assert_eq!(bench.serve(), 16, "what there is");
        }
        let error = bench.ring.look_at(bench.place);
        assert!(matches!(error, Err(Fault::BadRing { ring: "receive", .. })), "{base:#x}");
        assert_eq!(bench.ring.fault(), error.err());
        bench.place = Place { base: BASE, rewinds: 1 };
        assert_eq!(bench.look(), (0, 0, 1024));
        assert_eq!(bench.ring.fault(), None);
    }
    // The last of all memory is a good place for a ring that ends there.
    let mut bench = Bench::new(LEN - 0x100);
    (0..16).for_each(|i| bench.set(i, OWN | if i == 15 { EOR } else { 0 }));
    assert_eq!((bench.serve(), bench.serve(), bench.serve()), (15, 1, 0));
}

#[test]
fn another_map_keeps_the_place() {
    let mut bench = Bench::new(BASE);
    (0..4).for_each(|i| bench.set(i, OWN));
    assert_eq!(bench.serve(), 4);
    drop(bench.ring.set_map(Arc::default()));
    assert!(bench.ring.look_at(bench.place).is_err());
    let map = bench.map.clone();
    drop(bench.ring.set_map(map));
    bench.set(4, OWN);
    let look = bench.ring.look_at(bench.place).unwrap();
    assert!(look.moved && (look.head, look.tail) == (4, 5));
}

proptest! {
    /// Whatever is in the descriptors and however it changes: indexes are within the ring, what was
    /// seen as ours stays so, and a look reads no more than it may.
    #[test]
    fn any_contents(
        steps in prop::collection::vec((0u32..40, 0u32..4, 0u32..8, any::<bool>()), 1..200),
    ) {
        let mut bench = Bench::new(BASE);
        let mut known = (0, 0, 1024);
        for (index, flags, serve, rewind) in steps {
            bench.set(index, flags << 30);
            if rewind && flags == 0 && index < 4 {
                bench.place.rewinds += 1;
            }
            let look = bench.ring.look_at(bench.place).unwrap();
            prop_assert!(look.head < look.size && look.tail < look.size && look.size >= 2);
            let posted = distance(look.head, look.tail, look.size);
            if !look.moved {
                prop_assert_eq!(look.head, known.0);
                let before = distance(known.0, known.1, known.2);
                prop_assert!(posted >= before && posted <= before + AHEAD);
                let tail = if known.1 < look.size { known.1 } else { 0 };
                prop_assert_eq!(add(look.head, before, look.size), tail);
            }
            let n = serve.min(posted);
            let head = add(look.head, n, look.size);
            for i in 0..n {
                let at = add(look.head, i, look.size);
                bench.ring.give(at, bench.ring.eor(at).into());
            }
            bench.ring.publish(head);
            known = (head, look.tail, look.size);
        }
    }
}

/// Every ring of four descriptors whose contents change once, after any number were given back:
/// indexes lie within the ring, what was the chip's stays so, and a look goes on where the last
/// one ended.
#[test]
fn every_short_ring_and_every_change_of_it() {
    let mut bench = Bench::new(BASE);
    for (before, after) in (0..256).flat_map(|a| (0..256).map(move |b| (a, b))) {
        for served in 0..4 {
            bench.place.rewinds += 1;
            (0..4).for_each(|i| bench.set(i, (before >> (2 * i) & 3) << 30));
            let first = bench.ring.look_at(bench.place).unwrap();
            assert!(first.moved && first.head == 0 && first.tail < first.size);
            // OWN is the upper bit.
            assert_eq!(first.posted() > 0, before & 2 != 0, "{before:#x}: {first:?}");
            let n = served.min(first.posted());
            (0..n).for_each(|i| bench.ring.give(i, bench.ring.eor(i).into()));
            bench.ring.publish(add(0, n, first.size));
            // The guest changes what is its own.
            let free = |i: u32| i < n || i >= first.tail;
            (0..4).filter(|i| free(*i)).for_each(|i| bench.set(i, (after >> (2 * i) & 3) << 30));
            let second = bench.ring.look_at(bench.place).unwrap();
            let what = format!("{before:#x} {after:#x} {n}: {first:?} {second:?}");
            assert!(second.head < second.size && second.tail < second.size, "{what}");
            assert!(second.size >= 2 && second.posted() >= first.posted() - n, "{what}");
            // A ring of one descriptor that grows begins anew, when none is under way.
            let anew = second.moved && first.size == 2 && first.posted() == n;
            let goes_on = !second.moved && second.head == add(0, n, first.size);
            assert!(goes_on || anew, "{what}");
        }
    }
}
