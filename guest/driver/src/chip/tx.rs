//! A ring of transmit descriptors: fixed buffers, used in turn; each frame takes one descriptor or
//! several.

mod format;
mod side;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Offload;
use crate::stats::QueueStats;
pub use format::{Part, TxFormat};
use vmlan_transport::Options;
use vmlan_transport::memory::{Ram, View};
use vmlan_transport::numbers::narrow16;

/// Where a ring of descriptors may lie.
pub(crate) const ALIGN: usize = 512;

/// Done frames are looked for so many at a time while there are more under way: the device finishes
/// them in order, so a done one vouches for those before it, and its cache lines are left alone in
/// between.
const CHUNK: u16 = 16;

/// How often reports are looked for in vain, while none is expected, before the head is read.
/// Reading it is a trip to the device.
const PATIENCE: u32 = 64;

/// The transmit side. A slot is a buffer; slots are used in turn, and as many are under way as
/// descriptors suffice for.
#[derive(Debug)]
pub struct TxRing<F> {
    format: F,
    desc: View<AtomicU64>,
    ram: Arc<Ram>,
    size: u16,
    /// Slots; with all of them under way at least one descriptor is free, as the device demands
    /// (head = tail: empty).
    slots: u16,
    chunk: u16,
    next: u16,
    oldest: u16,
    under_way: u16,
    /// The first descriptor of the oldest slot.
    head: u16,
    /// The next descriptor to fill.
    tail: u16,
    /// The tail is on an odd lap through the ring, as the first one is.
    lap: bool,
    /// One slot of so many is reported; with more than one, the last one of each stretch and of the
    /// ring.
    every: u16,
    /// The next slot to be reported.
    report: u16,
    /// Looks in vain.
    vain: u32,
    /// Where the first buffer lies, in the RAM and for the device; the distance to the next.
    first: usize,
    gpa: u64,
    stride: usize,
    segment: usize,
    /// The last descriptor of the frame in each slot.
    ends: Box<[u16]>,
    offloads: Box<[Offload]>,
    /// Heads that the device cannot have come to, and frames that it should not have reported yet.
    bad_heads: u64,
    pending: u32,
    stats: QueueStats,
}

/// Distance of two buffers: an odd number of cache lines, or all would share a few sets of the L1
/// cache.
pub(crate) fn stride(bytes: usize) -> usize {
    64 * (bytes.div_ceil(64) | 1)
}

impl<F: TxFormat> TxRing<F> {
    /// The word that the chip reports in.
    const STATUS: usize = if F::OWNED { 0 } else { 1 };
    /// The chip looks at descriptors before it is told of them.
    const WATCHED: bool = F::OWNED || F::GENERATION != 0;

    /// Most descriptors of one frame.
    fn per_frame(options: &Options) -> u16 {
        let pieces = options.room.div_ceil(usize::from(options.segment)).max(1);
        narrow16((pieces + F::beside(options)) as u64)
    }

    fn slots_of(options: &Options) -> u16 {
        ((options.size - 1) / Self::per_frame(options)).max(1)
    }

    /// Guest-physical address of the ring.
    pub(crate) fn base(&self) -> u64 {
        self.ram.guest_phys(self.desc.offset())
    }

    /// What its descriptors are like.
    pub(crate) fn format(&self) -> &F {
        &self.format
    }

    #[inline]
    pub(crate) fn format_mut(&mut self) -> &mut F {
        &mut self.format
    }

    #[inline]
    fn after(&self, descriptor: u16) -> u16 {
        if descriptor + 1 == self.size { 0 } else { descriptor + 1 }
    }

    /// Is this slot, the next one, to be reported?
    #[inline]
    fn reports(&mut self, slot: u16) -> bool {
        if slot != self.report {
            return false;
        }
        self.report = self.report_after(if slot + 1 == self.slots { 0 } else { slot + 1 });
        true
    }

    /// The first slot from this one on that is reported.
    #[inline]
    fn report_after(&self, slot: u16) -> u16 {
        if self.every == 1 {
            return slot;
        }
        (slot / self.every * self.every + self.every - 1).min(self.slots - 1)
    }

    /// Two stores make a descriptor; the frame in the next slot ends here so far.
    #[inline]
    fn put(&mut self, words: [u64; 2]) {
        self.store(self.tail, self.sealed(words));
        self.advance();
    }

    #[inline]
    fn advance(&mut self) {
        self.ends[usize::from(self.next)] = self.tail;
        self.tail = self.after(self.tail);
        if F::GENERATION != 0 && self.tail == 0 {
            self.lap = !self.lap;
        }
    }

    /// With what the descriptor's place in the ring adds, which is the tail.
    #[inline]
    fn sealed(&self, [first, second]: [u64; 2]) -> [u64; 2] {
        let end = if F::OWNED && self.tail + 1 == self.size { F::END } else { 0 };
        let generation = if self.lap { F::GENERATION } else { 0 };
        [first | end, second | generation]
    }

    /// Where the descriptor itself says who owns it, that word is stored last.
    #[inline]
    fn store(&self, descriptor: u16, [first, second]: [u64; 2]) {
        let at = 2 * usize::from(descriptor);
        if F::OWNED {
            self.desc[at + 1].store(second.to_le(), Relaxed);
            self.desc[at].store(first.to_le(), Release);
        } else {
            let order = if Self::WATCHED { Release } else { Relaxed };
            self.desc[at].store(first.to_le(), Relaxed);
            self.desc[at + 1].store(second.to_le(), order);
        }
    }

    #[cold]
    fn describe(&mut self, slot: usize, start: u64, len: usize, report: bool) {
        assert!(len <= self.stride, "a frame of {len} bytes leaves the slot");
        let offload = self.offloads[slot];
        if F::has_context(&offload) {
            self.put(self.format.context(&offload, len));
        }
        let begin = self.tail;
        let mut held = None;
        for at in (0..len).step_by(self.segment) {
            let piece = self.segment.min(len - at);
            let part = Part { first: at == 0, last: at + piece == len, report };
            let words = self.format.piece(start + at as u64, piece as u64, part, &offload);
            if Self::WATCHED && part.first {
                held = Some(self.sealed(words));
                self.advance();
            } else {
                self.put(words);
            }
        }
        // The chip must not begin before it is whole.
        if let Some(words) = held {
            self.store(begin, words);
        }
    }

    /// The slot `ahead` places (at most all of them) after the oldest. There are fewer than 4,096,
    /// so nothing overflows.
    #[inline]
    fn slot_after(&self, ahead: u16) -> u16 {
        let slot = self.oldest + ahead;
        if slot >= self.slots { slot - self.slots } else { slot }
    }

    #[inline]
    fn is_done(&self, ahead: u16) -> bool {
        self.format.is_done(ahead, || {
            let end = usize::from(self.ends[usize::from(self.slot_after(ahead))]);
            u64::from_le(self.desc[2 * end + Self::STATUS].load(Acquire))
        })
    }

    fn retire(&mut self, count: u16) {
        if F::GENERATION != 0 {
            for ahead in 0..count {
                let end = self.ends[usize::from(self.slot_after(ahead))];
                self.bad_heads += u64::from(!self.format.retire(end));
            }
        }
        let last = usize::from(self.slot_after(count - 1));
        self.head = self.after(self.ends[last]);
        self.under_way -= count;
        self.oldest = self.slot_after(count);
        self.vain = 0;
    }

    /// How far ahead of the oldest slot the first report is.
    fn to_report(&self) -> u16 {
        self.report_after(self.oldest) - self.oldest
    }

    /// With reports now and then: has the first of them come?
    fn is_reported(&self) -> bool {
        let ahead = self.to_report();
        ahead < self.under_way && self.is_done(ahead)
    }

    /// Descriptors between two.
    #[inline]
    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { to + self.size - from }
    }

    /// Descriptors that the device has finished if its head is there; None if it cannot be.
    #[inline]
    fn finished(&self, head: u32) -> Option<u16> {
        let head = u16::try_from(head).ok().filter(|head| *head < self.size)?;
        let count = self.distance(self.head, head);
        (count <= self.distance(self.head, self.tail)).then_some(count)
    }
}
