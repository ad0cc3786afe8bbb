//! The transmit ring: fixed buffers, used in turn; each frame takes one descriptor or several (SDM 3.3 and 3.4).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::descriptor::{Offload, TX_DD, command};
use super::options::{Completion, Options};
use crate::mem::{Pool, Ram, View};
use crate::net::QueueStats;

/// Done frames are looked for so many at a time while there are more under way: the device finishes them in order, so a done one
/// vouches for those before it, and its cache lines are left alone in between.
const CHUNK: u16 = 16;

/// So often in vain are reports looked for while none is to come, before the head is asked for: a trip.
const PATIENCE: u32 = 64;

/// The transmit side. A slot is a buffer; slots are used in turn, and as many are under way as descriptors suffice for.
#[derive(Debug)]
pub(super) struct TxRing {
    desc: View<AtomicU64>,
    ram: Arc<Ram>,
    /// Descriptors.
    size: u16,
    /// Slots; with all of them under way at least one descriptor is free, as the device demands (head = tail: empty).
    slots: u16,
    chunk: u16,
    next: u16,
    oldest: u16,
    under_way: u16,
    /// The first descriptor of the oldest slot.
    head: u16,
    /// The next descriptor to fill.
    pub(super) tail: u16,
    /// One slot of so many is reported; with more than one, the last one of each stretch and of the ring.
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
    /// Bits of each frame's last descriptor, and of all.
    last: u64,
    delay: u64,
    /// The last descriptor of the frame in each slot.
    ends: Box<[u16]>,
    offloads: Box<[Offload]>,
    /// Heads that the device cannot have come to.
    bad_heads: u64,
    pub(super) pending: u32,
    pub(super) stats: QueueStats,
}

/// Distance of two buffers: an odd number of cache lines, or all would share a few sets of the L1 cache.
pub(super) fn stride(bytes: usize) -> usize {
    64 * (bytes.div_ceil(64) | 1)
}

impl TxRing {
    /// Most descriptors of one frame: its pieces, and one for the context.
    fn per_frame(options: &Options) -> u16 {
        let pieces = options.room.div_ceil(usize::from(options.segment)).max(1);
        let context = usize::from(options.checksum || options.segmentation);
        u16::try_from(pieces + context).unwrap_or(u16::MAX)
    }

    fn slots_of(options: &Options) -> u16 {
        ((options.size - 1) / Self::per_frame(options)).max(1)
    }

    /// Bytes that the buffers need.
    pub(super) fn buffer_bytes(options: &Options) -> usize {
        usize::from(Self::slots_of(options)) * stride(options.room) + 64
    }

    pub(super) fn new(ram: &Arc<Ram>, low: &mut Pool, high: &mut Pool, options: &Options) -> Self {
        let slots = Self::slots_of(options);
        let stride = stride(options.room);
        let first = high.take(usize::from(slots) * stride, 64);
        let rings = low.take(16 * usize::from(options.size), 128);
        // A delay is only in force for descriptors that ask for it (SDM 3.4.3.1).
        let delay = if options.tidv > 0 { command::IDE } else { 0 };
        let seldom = options.completion == Completion::Lazy || options.csb;
        let every = if seldom { (slots / 4).max(1) } else { 1 };
        Self {
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
            last: command::EOP | command::IFCS | delay,
            delay,
            ends: vec![0; usize::from(slots)].into(),
            offloads: vec![Offload::default(); usize::from(slots)].into(),
            bad_heads: 0,
            pending: 0,
            stats: QueueStats::default(),
        }
    }

    /// Guest-physical address of the ring.
    pub(super) fn base(&self) -> u64 {
        self.ram.guest_phys(self.desc.offset())
    }

    /// An unused ring, for a device that has been reset. Frames under way are lost; buffers keep their contents.
    pub(super) fn reset(&mut self) {
        self.desc.iter().for_each(|word| word.store(0, Relaxed));
        (self.next, self.oldest, self.under_way, self.pending) = (0, 0, 0, 0);
        (self.head, self.tail, self.report) = (0, 0, self.every - 1);
    }

    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    pub(super) fn room(&self) -> usize {
        self.stride
    }

    #[inline]
    pub(super) fn free_slots(&self) -> u16 {
        self.slots - self.under_way
    }

    pub(super) fn under_way(&self) -> u16 {
        self.under_way
    }

    pub(super) fn next(&mut self) -> Option<u16> {
        let free = self.free_slots() > 0;
        self.stats.full += u64::from(!free);
        free.then_some(self.next)
    }

    /// The slot `ahead` places after the next. There are fewer than 4,096, so nothing overflows.
    #[inline]
    pub(super) fn slot_ahead(&self, ahead: u16) -> u16 {
        let slot = self.next + ahead;
        if slot >= self.slots { slot - self.slots } else { slot }
    }

    #[inline]
    pub(super) fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.stride, "{} bytes at {at} leave the slot", bytes.len());
        self.ram.write(self.first + usize::from(slot) * self.stride + at, bytes);
    }

    pub(super) fn set_offload(&mut self, slot: u16, offload: Offload) {
        self.offloads[usize::from(slot)] = offload;
    }

    #[inline]
    fn after(&self, descriptor: u16) -> u16 {
        if descriptor + 1 == self.size { 0 } else { descriptor + 1 }
    }

    /// Describes the frame in the next slot. The device does not look before the doorbell.
    ///
    /// # Panics
    /// When there is no free slot, `slot` is not the next one, or the frame leaves it: bugs of the caller.
    #[inline]
    pub(super) fn send(&mut self, slot: u16, len: u32) {
        assert!(self.under_way < self.slots && slot == self.next, "slot {slot} is not the next");
        let len = len as usize;
        let at = usize::from(slot);
        let start = self.gpa + (at * self.stride) as u64;
        let report = self.reports(slot);
        if len <= self.segment && self.offloads[at].is_plain() {
            self.put(start, len as u64 | self.last | report | self.offloads[at].bits());
        } else {
            self.describe(at, start, len, report);
        }
        self.next = if slot + 1 == self.slots { 0 } else { slot + 1 };
        self.under_way += 1;
        self.pending += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
    }

    /// RS, if this slot, the next one, is to be reported.
    #[inline]
    fn reports(&mut self, slot: u16) -> u64 {
        if slot != self.report {
            return 0;
        }
        self.report = self.report_after(if slot + 1 == self.slots { 0 } else { slot + 1 });
        command::RS
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
    fn put(&mut self, address: u64, second: u64) {
        let at = 2 * usize::from(self.tail);
        self.desc[at].store(address.to_le(), Relaxed);
        self.desc[at + 1].store(second.to_le(), Relaxed);
        self.ends[usize::from(self.next)] = self.tail;
        self.tail = self.after(self.tail);
    }

    #[cold]
    fn describe(&mut self, slot: usize, start: u64, len: usize, report: u64) {
        assert!(len <= self.stride, "a frame of {len} bytes leaves the slot");
        let offload = self.offloads[slot];
        if !offload.is_plain() {
            let [first, second] = offload.context(len, self.delay);
            self.put(first, second);
        }
        let bits = offload.bits() | self.delay | (self.last & command::IFCS);
        for at in (0..len).step_by(self.segment) {
            let piece = self.segment.min(len - at);
            let last = if at + piece == len { self.last | report } else { 0 };
            self.put(start + at as u64, piece as u64 | bits | last);
        }
    }

    /// The slot `ahead` places (at most all of them) after the oldest. There are fewer than 4,096, so nothing overflows.
    #[inline]
    fn slot_after(&self, ahead: u16) -> u16 {
        let slot = self.oldest + ahead;
        if slot >= self.slots { slot - self.slots } else { slot }
    }

    #[inline]
    fn is_done(&self, ahead: u16) -> bool {
        let end = usize::from(self.ends[usize::from(self.slot_after(ahead))]);
        u64::from_le(self.desc[2 * end + 1].load(Acquire)) & TX_DD != 0
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

    /// Takes slots back whose descriptors are reported; returns how many are free now.
    #[inline]
    pub(super) fn reap(&mut self) -> u16 {
        if self.every > 1 {
            while self.is_reported() {
                self.retire(self.to_report() + 1);
            }
            return self.free_slots();
        }
        while self.under_way >= self.chunk && self.is_done(self.chunk - 1) {
            self.retire(self.chunk);
        }
        if self.under_way < self.chunk {
            while self.under_way > 0 && self.is_done(0) {
                self.retire(1);
            }
        }
        self.free_slots()
    }

    /// With reports now and then: has the first of them come?
    fn is_reported(&self) -> bool {
        let ahead = self.to_report();
        ahead < self.under_way && self.is_done(ahead)
    }

    /// Frames are under way, and none of them will be reported.
    pub(super) fn is_blind(&self) -> bool {
        self.under_way > 0 && self.to_report() >= self.under_way
    }

    /// The same, looked at in vain many times: the device's head is worth a read.
    #[inline]
    pub(super) fn wants_head(&mut self) -> bool {
        if self.every == 1 || !self.is_blind() {
            return false;
        }
        self.vain += 1;
        let wants = self.vain >= PATIENCE;
        if wants {
            self.vain = 0;
        }
        wants
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

    /// Takes slots back up to the device's head; false if it said nothing yet.
    #[inline]
    pub(super) fn retire_to(&mut self, head: u32) -> bool {
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
    pub(super) fn has_moved(&self, head: u32) -> bool {
        self.finished(head).is_some_and(|count| count > 0)
    }

    /// Has a good part of what is under way been sent?
    pub(super) fn is_half_done(&self) -> bool {
        if self.every > 1 {
            return self.is_reported();
        }
        self.under_way > 0
            && self.is_done((self.under_way / 2).max(self.chunk.min(self.under_way)) - 1)
    }

    /// Descriptors that are done though an earlier one is not, and heads that cannot be: the device must not do either.
    pub(super) fn out_of_order(&self) -> u64 {
        let reported = |n: &u16| self.report_after(self.slot_after(*n)) == self.slot_after(*n);
        let mut done = (0..self.under_way)
            .filter(reported)
            .skip_while(|n| self.is_done(*n))
            .filter(|n| self.is_done(*n));
        done.by_ref().count() as u64 + self.bad_heads
    }
}
