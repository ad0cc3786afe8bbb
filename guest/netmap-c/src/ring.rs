//! A ring as the program sees it (`struct netmap_ring`), and what the library knows of it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::counters::Counters;
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
const RING_FLAGS: usize = 32;
pub(crate) const TIME: usize = 40;
pub(crate) const BUF_ALIGN: usize = 64;
pub(crate) const SLOTS: usize = 256;
pub(crate) const SLOT: usize = 16;
const LEN: usize = 4;
const FLAGS: usize = 6;

/// `NS_BUF_CHANGED`, `NS_FORWARD`, `NS_INDIRECT`, `NS_MOREFRAG`.
pub(crate) const CHANGED: u16 = 1;
pub(crate) const FORWARD: u16 = 4;
pub(crate) const INDIRECT: u16 = 0x10;
pub(crate) const MORE: u16 = 0x20;
/// `NR_FORWARD`, of a ring.
const MAY_FORWARD: u32 = 4;

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
    /// Are the buffers in the slots this ring's, to be given back with it?
    owns: bool,
    pub(crate) seen: u32,
    pub(crate) tail: u32,
}

impl Ring {
    const fn bytes(slots: u32) -> usize {
        SLOTS + SLOT * slots as usize
    }

    /// A ring with nothing in its slots; the program owns none yet.
    ///
    /// # Errors
    /// ENOMEM when the region is full; here and below.
    pub(crate) fn bare(
        region: &'static Region,
        (id, receives): (usize, bool),
        slots: u32,
    ) -> Result<Self, Errno> {
        let offset = region.take_block(Self::bytes(slots)).ok_or(Errno::NOMEM)?;
        region.set64(offset, (Region::buffers() - offset) as u64);
        region.word32(offset + NUM_SLOTS).store(slots, Relaxed);
        region.word32(offset + BUF_SIZE).store(narrow32(BUFFER as u64), Relaxed);
        region.word16(offset + RING_ID).store(narrow16(id as u64), Relaxed);
        region.word16(offset + DIR).store(receives.into(), Relaxed);
        region.set64(offset + BUF_ALIGN, 1);
        Ok(Self { region, offset, slots, owns: false, seen: 0, tail: 0 })
    }

    /// The same with a buffer in each slot.
    pub(crate) fn new(
        region: &'static Region,
        (id, receives): (usize, bool),
        slots: u32,
    ) -> Result<Self, Errno> {
        let mut ring = Self::bare(region, (id, receives), slots)?;
        let buffers = region.take_buffers(slots as usize).ok_or(Errno::NOMEM)?;
        for (at, index) in (0..).zip(buffers) {
            ring.put(at, Slot { index, len: 0, flags: 0 });
        }
        ring.owns = true;
        Ok(ring)
    }

    /// Where it is in the region.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
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

    pub(crate) fn put(&self, at: u32, slot: Slot) {
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

    /// Slots of a receive ring that could take another frame.
    pub(crate) fn free(&self) -> u32 {
        self.most() - self.distance(self.seen, self.tail)
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
        self.set_head(self.seen);
        self.publish(self.tail);
    }

    /// Shows `each` every slot that the program has given for sending, and whether a frame ends
    /// with it. With `cut`, one that the program goes on with later ends at `head`; else it waits
    /// for its end. False: the ring was reset, as of the frame that has a slot which cannot be, or
    /// which `each` refuses.
    pub(crate) fn send(
        &mut self,
        cut: bool,
        counters: &mut Counters,
        each: impl FnMut(u32, Slot, bool) -> bool,
    ) -> bool {
        let sound = self.send_all(cut, counters, each).is_some();
        self.settle(sound, counters)
    }

    fn send_all(
        &mut self,
        cut: bool,
        counters: &mut Counters,
        mut each: impl FnMut(u32, Slot, bool) -> bool,
    ) -> Option<()> {
        let head = self.head()?;
        let mut at = self.seen;
        while at != head {
            let (slot, next) = (self.slot(at), self.next(at));
            let ends = slot.flags & MORE == 0 || cut && next == head;
            if !slot.is_sound() || !each(at, slot, ends) {
                return None;
            }
            at = next;
            if ends {
                self.clean(at, counters);
            }
        }
        Some(())
    }

    /// Slots up to there have been sent.
    fn clean(&mut self, to: u32, counters: &mut Counters) {
        while self.seen != to {
            let slot = self.slot(self.seen);
            counters.swapped += u64::from(slot.flags & CHANGED != 0);
            self.describe(self.seen, slot.len, slot.flags & !CHANGED);
            self.seen = self.next(self.seen);
        }
    }

    /// Shows `each` every slot that the program has read; what it answers is left in the slot.
    /// False: the ring was reset, as of a slot that cannot be.
    pub(crate) fn take_back(
        &mut self,
        counters: &mut Counters,
        mut each: impl FnMut(u32, Slot) -> Slot,
    ) -> bool {
        let head = self.head();
        let mut sound = head.is_some();
        while let Some(head) = head
            && self.seen != head
            && sound
        {
            let slot = self.slot(self.seen);
            sound = slot.is_sound();
            if sound {
                counters.swapped += u64::from(slot.flags & CHANGED != 0);
                let left = each(self.seen, slot);
                self.put(self.seen, Slot { flags: left.flags & !CHANGED, ..left });
                self.seen = self.next(self.seen);
            }
        }
        self.settle(sound, counters)
    }

    /// The end of a walk over the program's slots: the ring is reset unless they were sound.
    pub(crate) fn settle(&mut self, sound: bool, counters: &mut Counters) -> bool {
        if !sound {
            self.reset();
            counters.resets += 1;
        }
        sound
    }

    /// Has the program set `NR_FORWARD`?
    pub(crate) fn may_forward(&self) -> bool {
        self.region.word32(self.offset + RING_FLAGS).load(Relaxed) & MAY_FORWARD != 0
    }

    /// Puts a buffer where the program would put its next frame, in its place; the buffer that was
    /// there. Nothing: there is no room.
    pub(crate) fn insert(&self, slot: Slot) -> Option<u32> {
        let head = self.head().filter(|head| *head != self.tail)?;
        let old = self.slot(head).index;
        if !is_buffer(old) {
            return None;
        }
        self.put(head, Slot { flags: CHANGED, ..slot });
        self.set_head(self.next(head));
        Some(old)
    }

    /// Writes the program's `head` and `cur`.
    pub(crate) fn set_head(&self, to: u32) {
        for word in [HEAD, CUR] {
            self.region.word32(self.offset + word).store(to, Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.owns {
            // Buffers may have moved: what is in the slots now is what this ring gives back.
            self.region.give_buffers((0..self.slots).map(|at| self.slot(at).index));
        }
        self.region.give_block(self.offset, Self::bytes(self.slots));
    }
}
