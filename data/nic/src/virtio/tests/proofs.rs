//! Rings and chains in all the states that small ones can be in.

use std::sync::atomic::Ordering;

use super::super::desc::{Buffers, Chain, Desc};
use super::super::queue::{HEADS, Queue, Ring};
use super::super::split::Split;
use super::super::{Fault, Features};
use super::guest::{EVENT, Guest, INDIRECT, NEXT, V1, WRITE, memory};

/// Where rings begin: before a number wraps, at it, and where a sign would change.
fn starts() -> impl Iterator<Item = u16> {
    (0..3).chain([0x7ffe, 0x7fff, 0x8000]).chain(u16::MAX - 9..=u16::MAX)
}

fn queue(guest: &Guest, at: u16) -> Queue<Split> {
    guest.write(guest.rings.used + 2, &at.to_le_bytes());
    Queue::<Split>::new(guest.rings, &guest.map, Features(V1 | EVENT)).ok().unwrap()
}

/// A driver's index is believed if, and only if, it went on and is no further from the first buffer
/// not given back than the ring is long: all 65,536 of it, for each ring, place and index before.
#[test]
fn every_index_of_the_driver() {
    let map = memory(None);
    for size in [1, 2, 4, 8] {
        let guest = Guest::new(&map, 0, size);
        let window = map.window(guest.rings.avail, 4, 2).unwrap();
        let set = |at: u16| window.set_u16(2, at, Ordering::Relaxed);
        for (start, before) in starts().flat_map(|s| (0..=size).map(move |b| (s, b))) {
            let at = |n: u16| start.wrapping_add(n);
            let seen_before = || {
                set(at(before));
                let mut queue = queue(&guest, start);
                assert_eq!(queue.look().ok(), Some(before));
                queue
            };
            let mut queue = seen_before();
            for ahead in 0..=u16::MAX {
                set(at(ahead));
                let look = queue.look();
                // Plain numbers: none of them wraps.
                if (before..=size).contains(&ahead) {
                    assert_eq!((look.ok(), queue.seen()), (Some(ahead), at(ahead)));
                    queue = seen_before();
                } else {
                    assert!(matches!(look, Err(Fault::AvailJump { .. })), "{size} {start} {ahead}");
                    assert_eq!((queue.seen(), queue.known()), (at(before), before));
                }
            }
        }
    }
}

/// Heads are those that the driver wrote, and used entries stand where it looks for them, from
/// every place in every small ring, in every number.
#[test]
fn every_run_of_heads_and_used_entries() {
    let map = memory(None);
    for size in [1, 2, 4, 8, 16] {
        let mut guest = Guest::new(&map, 0, size);
        for (start, n) in starts().flat_map(|s| (0..=size).map(move |n| (s, n))) {
            let mut queue = queue(&guest, start);
            guest.set_avail(start);
            guest.seen_used = start;
            let heads: Vec<u16> = (0..n).map(|i| i.wrapping_mul(5) % size).collect();
            heads.iter().for_each(|head| guest.post(*head));
            assert_eq!(queue.look().ok(), Some(n));
            assert_eq!(queue.fetch(start), Ok(0));
            assert_eq!(queue.fetched, start.wrapping_add(n));
            for (i, head) in (0..).zip(&heads) {
                assert_eq!(queue.head(start.wrapping_add(i)), *head);
                queue.stage(&map, *head, u32::from(*head) + 100);
            }
            queue.next = queue.fetched;
            queue.publish(&map);
            let used: Vec<_> = heads.iter().map(|h| (u32::from(*h), u32::from(*h) + 100)).collect();
            assert_eq!((guest.used(), queue.done), (used, start.wrapping_add(n)));
        }
    }
    assert!(HEADS.is_power_of_two(), "positions are numbers modulo this");
}

/// A descriptor as a driver writes it: flags, next, and length, which counts in tables only.
type Written = (u16, u16, u32);

/// What the standard says of the chain that begins with `head` (virtio 1.2 section 2.7.5): the
/// numbers of its buffers, those of the table from 10 on.
fn spec(ring: &[Written], table: &[Written], write: bool, allowed: bool) -> Option<Vec<u64>> {
    let (mut list, mut count, mut base, mut at) = (ring, ring.len(), 0, 0);
    let (mut out, mut seen) = (Vec::new(), 0);
    loop {
        let (flags, next, len) = list[at];
        if flags & INDIRECT != 0 {
            let size = (len / 16) as usize;
            let fits = len % 16 == 0 && size > 0;
            if base > 0 || !allowed || flags & NEXT != 0 || !fits {
                return None;
            }
            (list, count, base, at, seen) = (table, size, 10, 0, 0);
            continue;
        }
        // More than there are descriptors: a circle.
        if seen == count || (flags & WRITE != 0) != write {
            return None;
        }
        seen += 1;
        out.push(base + at as u64);
        if flags & NEXT == 0 {
            return Some(out);
        }
        at = usize::from(next);
        if at >= count {
            return None;
        }
    }
}

fn descriptors(lens: &[u32]) -> Vec<Written> {
    let all = |flags| (0..3).flat_map(move |next| lens.iter().map(move |len| (flags, next, *len)));
    (0..8).flat_map(all).collect()
}

/// Every ring of two descriptors with every table of two: circles, tables in tables, tables of
/// every length that fits and some that do not, numbers beyond the end, wrong directions. What is
/// walked is what the standard allows, and nothing else is.
#[test]
fn every_chain() {
    const TABLE: u64 = 0x1000;
    // What a table within a table would name: a good buffer.
    const INNER: u64 = 0x2000;
    let map = memory(None);
    let guest = Guest::new(&map, 0, 2);
    let window = map.window(0, 32, 16).unwrap();
    let (ring, table) = (descriptors(&[0, 16, 32, 24]), descriptors(&[16]));
    let bytes = |addr: u64, (flags, next, len): Written| -> [u8; 16] {
        Guest::descriptor(addr, len, flags, next).try_into().unwrap()
    };
    let put =
        |at: u64, bytes: [u8; 16]| assert_eq!(map.slice_mut(at, 16).unwrap().write(0, &bytes), 16);
    // The number of a buffer is its address; that of a table, where it is.
    let addr = |number: u64, (flags, ..): Written| match flags & INDIRECT {
        0 => number,
        _ if number < 10 => TABLE,
        _ => INNER,
    };
    let (mut walked, mut refused) = (0, 0);
    for (t0, t1) in table.iter().flat_map(|a| table.iter().map(move |b| (*a, *b))) {
        put(TABLE, bytes(addr(10, t0), t0));
        put(TABLE + 16, bytes(addr(11, t1), t1));
        for (r0, r1) in ring.iter().flat_map(|a| ring.iter().map(move |b| (*a, *b))) {
            // The table counts only if there is a way to it.
            if (r0.0 | r1.0) & INDIRECT == 0 && (t0, t1) != (table[0], table[0]) {
                continue;
            }
            let first = bytes(addr(0, r0), r0);
            put(guest.rings.desc, first);
            put(guest.rings.desc + 16, bytes(addr(1, r1), r1));
            for (write, allowed) in [(false, true), (true, true), (false, false)] {
                put(INNER, bytes(20, (if write { WRITE } else { 0 }, 0, 1)));
                let first = Desc::from_bytes(first);
                let mut chain = Chain::new(&window, &map, first, 2, allowed, write);
                let mut out = Vec::new();
                let end = loop {
                    match chain.next_buffer() {
                        Ok(Some((addr, _))) => out.push(addr),
                        end => break end.map(|_| ()),
                    }
                    assert!(out.len() <= 4, "{r0:?} {r1:?} {t0:?} {t1:?} has no end");
                };
                let should = spec(&[r0, r1], &[t0, t1], write, allowed);
                let is = end.ok().map(|()| out);
                assert_eq!(is, should, "{r0:?} {r1:?} {t0:?} {t1:?} {write} {allowed}");
                *(if is.is_some() { &mut walked } else { &mut refused }) += 1;
            }
        }
    }
    assert!(walked > 10_000 && refused > 100_000, "{walked} {refused}");
}
