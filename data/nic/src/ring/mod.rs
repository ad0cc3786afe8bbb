//! Descriptor rings, once for all chips that have them.
//!
//! ```text
//!   transmit: scan descriptors ─► collect frames ─► plan offloads ─► Batch ─► sink
//!             ─► done: write back, in order
//!   receive:  filter ─► find buffers ─► copy ─► write back
//! ```
//!
//! Chips differ in where their descriptors come from ([`DescriptorRing`]: once for Intel, once for
//! Realtek) and in what the descriptors' words mean ([`Transmit`] and [`Receive`]: functions
//! without state). They get [`Transmitter`] and [`Receiver`], which keep account of what is lent,
//! held, dropped and written back, and bound what one pass does whatever the guest has posted.

mod counted;
mod descriptor_ring;
mod memory;
mod queues;
mod receive;
mod rx_scatter;
pub mod spread;
mod transmit;
mod tx_collect;
mod tx_complete;
mod tx_plan;
mod tx_scan;

pub use counted::Counted;
pub use descriptor_ring::{DescriptorRing, Revived};
pub use memory::Descriptors;
pub use queues::{in_turn, run};
pub use receive::{At, Filter, Receive, Receiver, Shape, VISITS, Verdict, Written};
pub use rx_scatter::{MAX_PARTS, uncut};
pub use transmit::{BUDGET, Setup, Transmit, Transmitter};
pub use tx_plan::{Checksums, Plan, Range, Segment, Told, Wanted, unfinished};
pub use tx_scan::{Found, MAX_PIECES, Want};

use vmlan_ram::Map;

/// Bytes of a descriptor.
pub const SIZE: usize = 16;

/// What a look at a ring found.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Descriptors in the ring; 0: there is none.
    pub size: u32,
    /// The first that is not written back. Below `size`.
    pub head: u32,
    /// The first that is not ours. Below `size`; equal to `head`: none is.
    pub tail: u32,
    /// Somebody moved the ring or its head since this side last wrote it: what is known of it is
    /// void.
    pub moved: bool,
}

impl Look {
    /// Descriptors from head to tail.
    #[inline]
    pub fn posted(&self) -> u32 {
        if self.size == 0 { 0 } else { distance(self.head, self.tail, self.size) }
    }
}

/// `index + n` in a ring of `size`; both are at most `size`.
#[inline]
pub fn add(index: u32, n: u32, size: u32) -> u32 {
    let sum = index + n;
    if sum >= size { sum - size } else { sum }
}

/// Steps from `from` to `to` in a ring of `size`.
#[inline]
pub fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}

/// The two quadwords of a descriptor copied out.
#[inline]
pub fn halves(desc: &[u8; SIZE]) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *desc;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest))
}

/// All of `len` bytes at `addr` is guest memory, in however many regions.
pub fn is_memory(map: &Map, addr: u64, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let gpa = addr.checked_add(done as u64);
        match gpa.and_then(|gpa| map.first_run(gpa, len - done)) {
            Some(run) => done += run.len(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Look, add, distance};

    /// Every ring of up to 64 descriptors, every place in it, every number of steps.
    #[test]
    fn steps_around_every_small_ring() {
        for size in 1..=64 {
            for (head, n) in (0..size).flat_map(|head| (0..size).map(move |n| (head, n))) {
                let tail = add(head, n, size);
                assert_eq!(tail, (head + n) % size);
                assert_eq!(distance(head, tail, size), n);
                let look = Look { size, head, tail, moved: false };
                assert_eq!(look.posted(), n);
                // Ours and theirs together are all but the one that tells full from empty.
                assert_eq!(n + distance(tail, add(head, size - 1, size), size), size - 1);
            }
            // All the way round.
            (0..size).for_each(|at| assert_eq!(add(at, size, size), at));
        }
    }
}
