//! A ring of transmit descriptors: fixed buffers, used in turn; each frame takes one descriptor or
//! several.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Bus, Offload, Register, Registers, TxSide};
use crate::stats::QueueStats;
use vmlan_transport::memory::{Pool, Ram, View};
use vmlan_transport::numbers::narrow16;
use vmlan_transport::{Completion, Options};

/// Where a ring of descriptors may lie.
pub(crate) const ALIGN: usize = 256;

/// Done frames are looked for so many at a time while there are more under way: the device finishes
/// them in order, so a done one vouches for those before it, and its cache lines are left alone in
/// between.
const CHUNK: u16 = 16;

/// So often in vain are reports looked for while none is to come, before the head is asked for: a
/// trip.
const PATIENCE: u32 = 64;

/// Which part of its frame a descriptor is for.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The first one.
    pub first: bool,
    /// The last one.
    pub last: bool,
    /// The chip reports when it is done.
    pub report: bool,
}

/// Transmit descriptors of a chip: two words of 64 bits.
pub trait TxFormat: Debug + Send {
    /// A bit of the descriptor, its first word's, says whose it is: with it, it is handed over, not
    /// by a tail. Otherwise the second word is the one that the chip reports in.
    const OWNED: bool;

    /// What all descriptors have in common.
    fn new(options: &Options) -> Self;
    /// Descriptors that a frame may take beside those for its bytes.
    fn beside(options: &Options) -> usize;
    /// Has the chip written back so?
    fn is_done(word: u64) -> bool;
    /// Does this take a descriptor before those for its bytes?
    fn has_context(offload: &Offload) -> bool;
    /// That descriptor, for a frame of `len` bytes.
    fn context(&self, offload: &Offload, len: usize) -> [u64; 2];
    /// A descriptor for a whole frame.
    fn whole(&self, address: u64, len: u64, report: bool, offload: &Offload) -> [u64; 2];
    /// One for a part of a frame.
    fn piece(&self, address: u64, len: u64, part: Part, offload: &Offload) -> [u64; 2];
    /// The bits of the first word that say that the ring ends here.
    const END: u64 = 0;
}

/// The transmit side. A slot is a buffer; slots are used in turn, and as many are under way as
/// descriptors suffice for.
#[derive(Debug)]
pub struct TxRing<F> {
    format: F,
    desc: View<AtomicU64>,
    ram: Arc<Ram>,
    /// Descriptors.
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
    /// Heads that the device cannot have come to.
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
        self.store(self.tail, words);
        self.advance();
    }

    #[inline]
    fn advance(&mut self) {
        self.ends[usize::from(self.next)] = self.tail;
        self.tail = self.after(self.tail);
    }

    /// Where the descriptor itself says whose it is, that comes last.
    #[inline]
    fn store(&self, descriptor: u16, [first, second]: [u64; 2]) {
        let at = 2 * usize::from(descriptor);
        if F::OWNED {
            let end = if descriptor + 1 == self.size { F::END } else { 0 };
            self.desc[at + 1].store(second.to_le(), Relaxed);
            self.desc[at].store((first | end).to_le(), Release);
        } else {
            self.desc[at].store(first.to_le(), Relaxed);
            self.desc[at + 1].store(second.to_le(), Relaxed);
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
            if F::OWNED && part.first {
                held = Some(words);
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
        let end = usize::from(self.ends[usize::from(self.slot_after(ahead))]);
        F::is_done(u64::from_le(self.desc[2 * end + Self::STATUS].load(Acquire)))
    }

    fn retire(&mut self, count: u16) {
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

impl<R: Register, F: TxFormat> TxSide<R> for TxRing<F> {
    fn ram_bytes(options: &Options) -> (usize, usize) {
        let slots = usize::from(Self::slots_of(options));
        (16 * usize::from(options.size) + ALIGN, slots * stride(options.room) + 64)
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let slots = Self::slots_of(options);
        let stride = stride(options.room);
        let first = high.take(usize::from(slots) * stride, 64);
        let rings = low.take(16 * usize::from(options.size), ALIGN);
        let seldom = !F::OWNED && (options.completion == Completion::Lazy || options.csb);
        let every = if seldom { (slots / 4).max(1) } else { 1 };
        let mut new = Self {
            format: F::new(options),
            desc: ram.view(rings, 2 * usize::from(options.size)),
            ram: Arc::clone(ram),
            size: options.size,
            slots,
            chunk: CHUNK.min(slots / 4).max(1),
            next: 0,
            oldest: 0,
            under_way: 0,
            head: 0,
            tail: 0,
            every,
            report: every - 1,
            vain: 0,
            first,
            gpa: ram.guest_phys(first),
            stride,
            segment: usize::from(options.segment),
            ends: vec![0; usize::from(slots)].into(),
            offloads: vec![Offload::default(); usize::from(slots)].into(),
            bad_heads: 0,
            pending: 0,
            stats: QueueStats::default(),
        };
        TxSide::<R>::reset(&mut new);
        new
    }

    fn reset(&mut self) {
        self.desc.iter().for_each(|word| word.store(0, Relaxed));
        // The chip finds the ring's size by this.
        self.desc[2 * usize::from(self.size - 1)].store(F::END.to_le(), Relaxed);
        (self.next, self.oldest, self.under_way, self.pending) = (0, 0, 0, 0);
        (self.head, self.tail, self.report) = (0, 0, self.every - 1);
    }

    fn slots(&self) -> u16 {
        self.slots
    }

    fn room(&self) -> usize {
        self.stride
    }

    #[inline]
    fn free_slots(&self) -> u16 {
        self.slots - self.under_way
    }

    fn under_way(&self) -> u16 {
        self.under_way
    }

    #[inline]
    fn tail(&self) -> u16 {
        self.tail
    }

    fn next(&mut self) -> Option<u16> {
        let free = self.under_way < self.slots;
        self.stats.full += u64::from(!free);
        free.then_some(self.next)
    }

    /// There are fewer than 4,096 slots, so nothing overflows.
    #[inline]
    fn slot_ahead(&self, ahead: u16) -> u16 {
        let slot = self.next + ahead;
        if slot >= self.slots { slot - self.slots } else { slot }
    }

    #[inline]
    fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.stride, "{} bytes at {at} leave the slot", bytes.len());
        self.ram.write(self.first + usize::from(slot) * self.stride + at, bytes);
    }

    fn set_offload(&mut self, slot: u16, offload: Offload) {
        self.offloads[usize::from(slot)] = offload;
    }

    #[inline]
    fn send(&mut self, slot: u16, len: u32) {
        assert!(self.under_way < self.slots && slot == self.next, "slot {slot} is not the next");
        let len = len as usize;
        let at = usize::from(slot);
        let start = self.gpa + (at * self.stride) as u64;
        let report = self.reports(slot);
        if len <= self.segment && !F::has_context(&self.offloads[at]) {
            self.put(self.format.whole(start, len as u64, report, &self.offloads[at]));
        } else {
            self.describe(at, start, len, report);
        }
        self.next = if slot + 1 == self.slots { 0 } else { slot + 1 };
        self.under_way += 1;
        self.pending += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
    }

    #[inline]
    fn take_pending(&mut self) -> u32 {
        std::mem::take(&mut self.pending)
    }

    /// Takes slots back whose descriptors are reported; returns how many are free now.
    #[inline]
    fn reap<B: Bus>(&mut self, _: &mut Registers<R, B>) -> u16 {
        if self.every > 1 {
            while self.is_reported() {
                self.retire(self.to_report() + 1);
            }
            return self.slots - self.under_way;
        }
        while self.under_way >= self.chunk && self.is_done(self.chunk - 1) {
            self.retire(self.chunk);
        }
        if self.under_way < self.chunk {
            while self.under_way > 0 && self.is_done(0) {
                self.retire(1);
            }
        }
        self.slots - self.under_way
    }

    /// Frames are under way, and none of them will be reported.
    fn is_blind(&self) -> bool {
        self.under_way > 0 && self.to_report() >= self.under_way
    }

    /// The same, looked at in vain many times: the device's head is worth a read.
    #[inline]
    fn wants_head(&mut self) -> bool {
        if self.every == 1 || !TxSide::<R>::is_blind(self) {
            return false;
        }
        self.vain += 1;
        let wants = self.vain >= PATIENCE;
        if wants {
            self.vain = 0;
        }
        wants
    }

    /// Takes slots back up to the device's head; false if it said nothing yet.
    #[inline]
    fn retire_to(&mut self, head: u32) -> bool {
        let Some(mut left) = self.finished(head) else {
            self.bad_heads += u64::from(head != u32::MAX);
            return false;
        };
        if left == 0 {
            return true;
        }
        if self.distance(self.head, self.tail) == self.under_way {
            // One descriptor each.
            self.retire(left);
            return true;
        }
        while self.under_way > 0 {
            let end = self.ends[usize::from(self.oldest)];
            let frame = self.distance(self.head, end) + 1;
            if frame > left {
                break;
            }
            left -= frame;
            self.retire(1);
        }
        true
    }

    /// Has the device's head moved?
    fn has_moved(&self, head: u32) -> bool {
        self.finished(head).is_some_and(|count| count > 0)
    }

    /// Has a good part of what is under way been sent?
    fn is_half_done(&self) -> bool {
        if self.every > 1 {
            return self.is_reported();
        }
        self.under_way > 0
            && self.is_done((self.under_way / 2).max(self.chunk.min(self.under_way)) - 1)
    }

    /// Descriptors that are done though an earlier one is not, and heads that cannot be: the device
    /// must not do either.
    fn out_of_order(&self) -> u64 {
        let reported = |n: &u16| self.report_after(self.slot_after(*n)) == self.slot_after(*n);
        let mut done = (0..self.under_way)
            .filter(reported)
            .skip_while(|n| self.is_done(*n))
            .filter(|n| self.is_done(*n));
        done.by_ref().count() as u64 + self.bad_heads
    }

    #[inline]
    fn stats(&self) -> &QueueStats {
        &self.stats
    }

    #[inline]
    fn stats_mut(&mut self) -> &mut QueueStats {
        &mut self.stats
    }
}
