//! A ring as the program sees it (`struct netmap_ring`), and what the library knows of it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{SystemTime, UNIX_EPOCH};

use super::region::{BUFFER, Region, is_buffer};
use vmlan_transport::numbers::{narrow16, narrow32};

/// Offsets in `struct netmap_ring` and its slots; tests/c/layout.c compares them.
pub(crate) const NUM_SLOTS: usize = 8;
pub(crate) const BUF_SIZE: usize = 12;
pub(crate) const RING_ID: usize = 16;
pub(crate) const DIR: usize = 18;
pub(crate) const HEAD: usize = 20;
pub(crate) const CUR: usize = 24;
pub(crate) const TAIL: usize = 28;
pub(crate) const TIME: usize = 40;
pub(crate) const BUF_ALIGN: usize = 64;
pub(crate) const SLOTS: usize = 256;
pub(crate) const SLOT: usize = 16;
const LEN: usize = 4;
const FLAGS: usize = 6;

/// `NS_BUF_CHANGED`, `NS_INDIRECT`, `NS_MOREFRAG`.
pub(crate) const CHANGED: u16 = 1;
pub(crate) const INDIRECT: u16 = 0x10;
pub(crate) const MORE: u16 = 0x20;

/// A slot, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) len: u16,
    pub(crate) flags: u16,
}

impl Slot {
    /// Can it be what it says?
    pub(crate) fn is_sound(self) -> bool {
        is_buffer(self.index) && usize::from(self.len) <= BUFFER && self.flags & INDIRECT == 0
    }
}

/// One ring. `seen` and `tail` are where the program's part began and ended at the last sync; what
/// the program writes into its copy of `tail` does not count.
pub(crate) struct Ring {
    region: &'static Region,
    offset: usize,
    slots: u32,
    pub(crate) seen: u32,
    pub(crate) tail: u32,
}

impl Ring {
    pub(crate) const fn bytes(slots: u32) -> usize {
        SLOTS + SLOT * slots as usize
    }

    /// Writes a ring at `offset`, with a buffer in each slot; the program owns none yet.
    pub(crate) fn new(
        region: &'static Region,
        offset: usize,
        (id, receives): (usize, bool),
        buffers: &[u32],
    ) -> Self {
        let slots = narrow32(buffers.len() as u64);
        region.set64(offset, (Region::buffers() - offset) as u64);
        region.word32(offset + NUM_SLOTS).store(slots, Relaxed);
        region.word32(offset + BUF_SIZE).store(narrow32(BUFFER as u64), Relaxed);
        region.word16(offset + RING_ID).store(narrow16(id as u64), Relaxed);
        region.word16(offset + DIR).store(receives.into(), Relaxed);
        region.set64(offset + BUF_ALIGN, 1);
        let ring = Self { region, offset, slots, seen: 0, tail: 0 };
        for (at, index) in (0..).zip(buffers) {
            ring.put(at, Slot { index: *index, len: 0, flags: 0 });
        }
        ring
    }

    fn slot_offset(&self, at: u32) -> usize {
        self.offset + SLOTS + SLOT * at as usize
    }

    pub(crate) fn slot(&self, at: u32) -> Slot {
        let offset = self.slot_offset(at);
        Slot {
            index: self.region.word32(offset).load(Relaxed),
            len: self.region.word16(offset + LEN).load(Relaxed),
            flags: self.region.word16(offset + FLAGS).load(Relaxed),
        }
    }

    fn put(&self, at: u32, slot: Slot) {
        self.region.word32(self.slot_offset(at)).store(slot.index, Relaxed);
        self.describe(at, slot.len, slot.flags);
    }

    /// What is in the buffer of a slot.
    pub(crate) fn describe(&self, at: u32, len: u16, flags: u16) {
        let offset = self.slot_offset(at);
        self.region.word16(offset + LEN).store(len, Relaxed);
        self.region.word16(offset + FLAGS).store(flags, Relaxed);
    }

    pub(crate) fn next(&self, at: u32) -> u32 {
        if at + 1 >= self.slots { 0 } else { at + 1 }
    }

    pub(crate) fn ahead(&self, at: u32, count: u32) -> u32 {
        (at + count) % self.slots
    }

    pub(crate) fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.slots - (from - to) }
    }

    /// Slots that the device may be given: one stays free, or full and empty would look the same.
    pub(crate) fn most(&self) -> u32 {
        self.slots - 1
    }

    /// The program's `head`; nothing if `head` or `cur` is where it cannot be.
    pub(crate) fn head(&self) -> Option<u32> {
        let head = self.region.word32(self.offset + HEAD).load(Acquire);
        let cur = self.region.word32(self.offset + CUR).load(Relaxed);
        let all = self.distance(self.seen, self.tail);
        if head >= self.slots || cur >= self.slots {
            return None;
        }
        let (given, wanted) = (self.distance(self.seen, head), self.distance(self.seen, cur));
        (given <= wanted && wanted <= all).then_some(head)
    }

    /// Is there something beyond `cur`?
    pub(crate) fn is_ready(&self) -> bool {
        self.region.word32(self.offset + CUR).load(Relaxed) != self.tail
    }

    /// The program's part ends there from now on.
    pub(crate) fn publish(&mut self, tail: u32) {
        self.tail = tail;
        self.region.word32(self.offset + TAIL).store(tail, Release);
    }

    /// The time of this sync.
    pub(crate) fn stamp(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.region.set64(self.offset + TIME, now.as_secs());
        self.region.set64(self.offset + TIME + 8, now.subsec_micros().into());
    }

    /// As netmap's `netmap_ring_reinit`: slots that cannot be are emptied, and `head`, `cur` and
    /// `tail` are again what they were at the last sync.
    pub(crate) fn reset(&mut self) {
        for at in 0..self.slots {
            let slot = self.slot(at);
            if !is_buffer(slot.index) {
                self.put(at, Slot { index: 0, len: 0, flags: 0 });
            } else if !slot.is_sound() {
                self.describe(at, 0, 0);
            }
        }
        for word in [HEAD, CUR] {
            self.region.word32(self.offset + word).store(self.seen, Relaxed);
        }
        self.publish(self.tail);
    }

    /// All buffers that its slots name now.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots).map(|at| self.slot(at).index)
    }
}
