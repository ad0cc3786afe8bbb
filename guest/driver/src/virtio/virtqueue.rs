//! The driver's side of a virtqueue: of a split one here (virtio 1.2, section 2.7), of a packed one
//! in [`packed`], of either in [`either`].
//!
//! Buffers are fixed, so a descriptor keeps its address for ever and only its length changes. What
//! is handed around is a *slot*: a descriptor together with those behind it in its chain. Each slot
//! has exactly one owner:
//!
//! ```text
//!          take()            post() + publish()          the device             next_used()
//!  free ─────────────► held ─────────────────► avail ──────────────────► used ─────────────► held
//!    ▲                   the caller's            the device's              ours again          │
//!    └──────────────────────────────────────── release() ◄─────────────────────────────────────┘
//! ```
//! Free slots are kept in a first-in-first-out queue. A device that uses buffers in order therefore
//! sees descriptors 0, 1, 2... for ever, which IN_ORDER demands (2.7.8) and caches like.
//!
//! When to ring and how to go to sleep: [`crate::notify::virtqueue`].

pub mod either;
mod layout;
pub mod packed;
mod slots;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::notify::{self, virtqueue};
pub use layout::{Audit, Places, RingOptions, Segment};
use slots::Slots;
use vmlan_transport::memory::{Pool, Ram, View};

const DESC_F_NEXT: u64 = 1;
const DESC_F_WRITE: u64 = 2;
const DESC_F_INDIRECT: u64 = 4;
const AVAIL_FLAGS: usize = 0;
const AVAIL_IDX: usize = 1;
const AVAIL_RING: usize = 2;
const USED_FLAGS: usize = 0;
const USED_IDX: usize = 1;

/// Length of a used buffer whose entry an in-order device skipped: "used completely" (2.7.9).
pub const WHOLE: u32 = u32::MAX;

/// The driver's side of one split virtqueue. Not shared between threads; whoever holds it is "the
/// driver".
#[derive(Debug)]
pub struct SplitRing {
    options: RingOptions,
    places: Places,
    mask: u16,
    desc: View<AtomicU64>,
    avail: View<AtomicU16>,
    used: View<AtomicU16>,
    used_elems: View<AtomicU32>,
    tables: View<AtomicU64>,
    slots: Slots,
    /// Slots in the order they were posted, by position in the avail ring: our own copy, which the
    /// device cannot touch.
    posted: Box<[u16]>,
    avail_idx: u16,
    published: u16,
    last_used: u16,
    used_seen: u16,
    batch_end: Option<(u16, u32)>,
    bad_used: u64,
}

impl notify::Guard for SplitRing {}

impl virtqueue::VirtqueueFields for SplitRing {
    #[inline]
    fn set_avail_idx(&self, idx: u16) {
        self.avail[AVAIL_IDX].store(idx.to_le(), Release);
    }
    #[inline]
    fn set_avail_flags(&self, flags: u16) {
        self.avail[AVAIL_FLAGS].store(flags.to_le(), Relaxed);
    }
    #[inline]
    fn set_used_event(&self, idx: u16) {
        self.avail[self.used_event_at()].store(idx.to_le(), Relaxed);
    }
    #[inline]
    fn used_idx(&self) -> u16 {
        u16::from_le(self.used[USED_IDX].load(Acquire))
    }
    #[inline]
    fn used_flags(&self) -> u16 {
        u16::from_le(self.used[USED_FLAGS].load(Relaxed))
    }
    #[inline]
    fn avail_event(&self) -> u16 {
        u16::from_le(self.used[self.avail_event_at()].load(Relaxed))
    }
}

impl SplitRing {
    /// A ring whose parts are taken from `low`, the pool of the RAM's low region; all slots are
    /// free.
    pub fn new(ram: &Arc<Ram>, low: &mut Pool, options: RingOptions) -> Self {
        let places = Places::take(low, options);
        let size = usize::from(options.size);
        let table_words = places.table_bytes(options) / 8;
        let mut ring = Self {
            options,
            places,
            mask: options.size - 1,
            desc: ram.view(places.desc, 2 * size),
            avail: ram.view(places.avail, 3 + size),
            used: ram.view(places.used, 2 + 4 * size + 1),
            used_elems: ram.view(places.used + 4, 2 * size),
            tables: ram.view(places.tables, table_words),
            slots: Slots::new(options.slots(), options.size),
            posted: vec![0; size].into(),
            avail_idx: 0,
            published: 0,
            last_used: 0,
            used_seen: 0,
            batch_end: None,
            bad_used: 0,
        };
        ring.point_indirect(ram);
        ring.reset();
        ring
    }

    fn point_indirect(&mut self, ram: &Ram) {
        if !self.options.indirect {
            return;
        }
        let table = 16 * usize::from(self.options.segments);
        for slot in 0..usize::from(self.options.size) {
            let at = ram.guest_phys(self.places.tables + slot * table);
            self.desc[2 * slot].store(at.to_le(), Relaxed);
        }
    }

    /// Back to an unused ring: every slot free, both indices 0. Only while no device is attached.
    pub fn reset(&mut self) {
        self.slots.reset();
        (self.avail_idx, self.published) = (0, 0);
        (self.last_used, self.used_seen, self.batch_end) = (0, 0, None);
        for word in [&self.avail[AVAIL_FLAGS], &self.avail[AVAIL_IDX], &self.used[USED_FLAGS]] {
            word.store(0, Relaxed);
        }
        self.avail[self.used_event_at()].store(0, Relaxed);
        self.used[USED_IDX].store(0, Relaxed);
    }

    /// Where the parts lie in the RAM.
    pub fn places(&self) -> Places {
        self.places
    }

    /// What the ring was made with.
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// How many used entries named a slot that the device did not own: each is a fault of the
    /// device.
    pub fn bad_used(&self) -> u64 {
        self.bad_used
    }

    /// Slots that can be taken.
    #[inline]
    pub fn free_slots(&self) -> u16 {
        self.slots.free()
    }

    /// Slots that were published and not yet taken back.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.published.wrapping_sub(self.last_used)
    }

    /// The index the device has to start from: everything before it was used. It is read from the
    /// used ring, so it is right even when the device died without being asked (what a VMM does
    /// when GET_VRING_BASE fails).
    pub fn base(&self) -> u16 {
        virtqueue::VirtqueueFields::used_idx(self)
    }

    fn used_event_at(&self) -> usize {
        AVAIL_RING + usize::from(self.options.size)
    }

    fn avail_event_at(&self) -> usize {
        2 + 4 * usize::from(self.options.size)
    }

    /// Writes the chain of a slot: its segments, which the device may write when `writable`. Only
    /// for a free or held slot.
    ///
    /// # Panics
    /// For no segment, more than [`RingOptions::segments`], or a slot the device owns: bugs of the
    /// caller.
    pub fn write_slot(&self, slot: u16, writable: bool, segments: &[Segment]) {
        let count = segments.len();
        assert!((1..=usize::from(self.options.segments)).contains(&count), "{count} segments");
        self.slots.assert_ours(slot);
        let table = usize::from(self.options.segments) * usize::from(slot);
        let (words, first, base) = if self.options.indirect {
            let len = 16 * count as u64;
            self.desc[2 * usize::from(slot) + 1]
                .store((len | DESC_F_INDIRECT << 32).to_le(), Relaxed);
            (&self.tables, table, 0)
        } else {
            (&self.desc, table, table)
        };
        for (n, segment) in segments.iter().enumerate() {
            let more = if n + 1 < count { DESC_F_NEXT } else { 0 };
            let flags = more | if writable { DESC_F_WRITE } else { 0 };
            let next = if more == 0 { 0 } else { (base + n + 1) as u64 };
            let meta = u64::from(segment.len) | flags << 32 | next << 48;
            words[2 * (first + n)].store(segment.guest_phys.to_le(), Relaxed);
            words[2 * (first + n) + 1].store(meta.to_le(), Relaxed);
        }
    }

    /// Takes a free slot; it is the caller's until [`Self::post`] or [`Self::release`].
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        self.slots.take()
    }

    /// The slot that [`Self::take`] gives after `ahead` others; only meaningful for fewer than
    /// [`Self::free_slots`].
    #[inline]
    pub fn free_ahead(&self, ahead: u16) -> u16 {
        self.slots.ahead(ahead)
    }

    /// Gives a held slot back unused.
    ///
    /// # Panics
    /// When the slot is not held: a bug of the caller.
    #[inline]
    pub fn release(&mut self, slot: u16) {
        self.slots.release(slot);
    }

    /// Puts a held slot into the avail ring. The device does not see it before [`Self::publish`].
    ///
    /// # Panics
    /// When the slot is not held: a bug of the caller.
    #[inline]
    pub fn post(&mut self, slot: u16) {
        self.slots.post(slot);
        let position = usize::from(self.avail_idx & self.mask);
        let head = self.head(slot).to_le();
        // In steady state the entry is the same as a lap ago: not writing it keeps the line clean
        // in the device's cache.
        let entry = &self.avail[AVAIL_RING + position];
        if entry.load(Relaxed) != head {
            entry.store(head, Relaxed);
        }
        self.posted[position] = slot;
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    #[inline]
    fn head(&self, slot: u16) -> u16 {
        slot * self.options.per_slot()
    }

    /// Shows the device all posted slots; true when it asked for a doorbell (2.7.13, steps 4 to 7).
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.avail_idx);
        if old == new {
            return false;
        }
        self.published = new;
        virtqueue::publish(self, old, new, self.options.event_idx)
    }

    /// Are there used slots to take?
    #[inline]
    pub fn has_used(&mut self) -> bool {
        if self.last_used == self.used_seen {
            self.used_seen = virtqueue::VirtqueueFields::used_idx(self);
        }
        self.last_used != self.used_seen
    }

    /// The next used slot, now held by the caller, and the bytes the device wrote into it (or
    /// [`WHOLE`]). Entries that name a slot the device does not own are counted and skipped.
    #[inline(always)] // Many call it by now, and a call for each frame is felt.
    pub fn next_used(&mut self) -> Option<(u16, u32)> {
        while self.has_used() {
            if self.outstanding() == 0 {
                // More used than we ever published: believe nothing that is left.
                self.bad_used += 1;
                self.used_seen = self.last_used;
                return None;
            }
            let position = usize::from(self.last_used & self.mask);
            let used = if self.options.in_order {
                self.in_order(position)
            } else {
                self.element(position)
            };
            self.last_used = self.last_used.wrapping_add(1);
            match used {
                Some((slot, len)) if self.slots.take_back(slot) => return Some((slot, len)),
                _ => self.bad_used += 1,
            }
        }
        None
    }

    /// The used element at a position, when it names the head of one of our slots.
    #[inline]
    fn element(&self, position: usize) -> Option<(u16, u32)> {
        let id = u32::from_le(self.used_elems[2 * position].load(Relaxed));
        let len = u32::from_le(self.used_elems[2 * position + 1].load(Relaxed));
        let id = u16::try_from(id).ok()?;
        let per_slot = self.options.per_slot();
        let slot = id / per_slot;
        (slot * per_slot == id && slot < self.options.slots()).then_some((slot, len))
    }

    /// IN_ORDER (2.7.9): one entry may stand for a batch; it lies where the batch starts and names
    /// the batch's last slot.
    #[inline]
    fn in_order(&mut self, position: usize) -> Option<(u16, u32)> {
        let slot = self.posted[position];
        let (last, len) = match self.batch_end.take() {
            Some(end) => end,
            None => self.element(position)?,
        };
        if last == slot {
            return Some((slot, len));
        }
        self.batch_end = Some((last, len));
        Some((slot, WHOLE))
    }

    /// States the wish for an interrupt once `after` more slots are used (at least one), then looks
    /// again: true when that is already so and sleeping would be wrong. Without EVENT_IDX every
    /// used slot interrupts.
    #[must_use]
    pub fn arm(&mut self, after: u16) -> bool {
        virtqueue::arm(self, self.last_used, after, self.options.event_idx)
    }

    /// Takes the wish back. With EVENT_IDX the event is put as far away as it can be: behind us.
    pub fn disarm(&mut self) {
        virtqueue::disarm(self, self.last_used, self.options.event_idx);
    }
}
