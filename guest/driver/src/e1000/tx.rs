//! The transmit ring: fixed buffers, used in turn; each frame takes one descriptor or several (SDM 3.3 and 3.4).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::Options;
use super::descriptor::{Offload, TX_DD, command};
use crate::mem::{Pool, Ram, View};
use crate::net::QueueStats;

/// Done frames are looked for so many at a time while there are more under way: the device finishes them in order, so a done one
/// vouches for those before it, and its cache lines are left alone in between.
const CHUNK: u16 = 16;

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
    /// The next descriptor to fill.
    pub(super) tail: u16,
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
        Self {
            desc: ram.view(rings, 2 * usize::from(options.size)),
            ram: Arc::clone(ram),
            size: options.size,
            slots,
            chunk: CHUNK.min(slots / 4).max(1),
            next: 0,
            oldest: 0,
            under_way: 0,
            tail: 0,
            first,
            gpa: ram.guest_phys(first),
            stride,
            segment: usize::from(options.segment),
            last: command::EOP | command::IFCS | command::RS | delay,
            delay,
            ends: vec![0; usize::from(slots)].into(),
            offloads: vec![Offload::default(); usize::from(slots)].into(),
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
        (self.next, self.oldest, self.under_way, self.tail, self.pending) = (0, 0, 0, 0, 0);
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
        if len <= self.segment && self.offloads[at].is_plain() {
            self.put(start, len as u64 | self.last | self.offloads[at].bits());
        } else {
            self.describe(at, start, len);
        }
        self.next = if slot + 1 == self.slots { 0 } else { slot + 1 };
        self.under_way += 1;
        self.pending += 1;
        self.stats.frames += 1;
        self.stats.bytes += len as u64;
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
    fn describe(&mut self, slot: usize, start: u64, len: usize) {
        assert!(len <= self.stride, "a frame of {len} bytes leaves the slot");
        let offload = self.offloads[slot];
        if !offload.is_plain() {
            let [first, second] = offload.context(len, self.delay);
            self.put(first, second);
        }
        let bits = offload.bits() | self.delay | (self.last & command::IFCS);
        for at in (0..len).step_by(self.segment) {
            let piece = self.segment.min(len - at);
            let last = if at + piece == len { self.last } else { 0 };
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
        self.under_way -= count;
        self.oldest = self.slot_after(count);
    }

    /// Takes sent slots back; returns how many are free now.
    #[inline]
    pub(super) fn reap(&mut self) -> u16 {
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

    /// Has a good part of what is under way been sent?
    pub(super) fn is_half_done(&self) -> bool {
        self.under_way > 0
            && self.is_done((self.under_way / 2).max(self.chunk.min(self.under_way)) - 1)
    }

    /// Descriptors that are done though an earlier one is not: the device must not do that.
    pub(super) fn out_of_order(&self) -> u16 {
        let mut done =
            (0..self.under_way).skip_while(|n| self.is_done(*n)).filter(|n| self.is_done(*n));
        u16::try_from(done.by_ref().count()).unwrap_or(u16::MAX)
    }
}
