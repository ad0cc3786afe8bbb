//! What a look at the ring registers may find.

use super::guest::*;
use crate::e1000::ring::{RECEIVE, Ring, TRANSMIT};
use crate::ring::DescriptorRing;

/// Every length, head and tail of small rings, of both sides, in memory, across its end and behind
/// it: a ring that is found lies in memory, and its head and tail in the ring. All others are
/// refused.
#[test]
fn every_small_ring_in_the_registers() {
    let guest = Guest::new();
    let places = [(TD, MEMORY - 256), (RD, MEMORY - 128), (TD, MEMORY), (RD, u64::MAX - 127)];
    for (registers, base) in places {
        let room = MEMORY.saturating_sub(base) / 16;
        let mut ring = Ring::new(if registers == TD { &TRANSMIT } else { &RECEIVE });
        drop(ring.set_map(guest.map.clone()));
        let indexes = || (0..=33).chain([0x7fff, 0xfffe, 0xffff]);
        let all =
            (0..=3).flat_map(|n| indexes().flat_map(move |h| indexes().map(move |t| (n, h, t))));
        for (n, head, tail) in all {
            guest.ring(registers, base, n * 8);
            guest.set(registers + HEAD, head);
            guest.set(registers + TAIL, tail);
            let size = n * 8;
            let fits = u64::from(size) <= room && head < size && tail < size;
            let what = format!("{base:#x}: {size} descriptors, head {head}, tail {tail}");
            match ring.look(&guest.chip) {
                Ok(look) if size == 0 => assert_eq!(look.posted(), 0, "{what}"),
                Ok(look) => {
                    assert!(fits && look.posted() < size, "{what}");
                    assert_eq!((look.size, look.head, look.tail), (size, head, tail));
                }
                Err(fault) => {
                    assert!(!fits && size > 0, "{what}: {fault:?}");
                    assert_eq!(ring.fault(), Some(fault));
                }
            }
        }
    }
}
