//! The driver's side of a packed virtqueue (virtio 1.2, section 2.8).
//!
//! One ring for both directions. The driver writes the chain of a slot where the last one ended,
//! the device writes a used descriptor where the chain of the last one ended:
//!
//! ```text
//!          used, not taken back        the device's            ours
//!   used ───────────────────────► ? ───────────────── next ─────────────► used
//! ```
//!
//! A buffer's id is its slot. What was posted becomes visible all at once, when the flags of the
//! first of its descriptors are stored.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::{Audit, Places, RingOptions, Segment};
use super::slots::{Owner, Slots};
use super::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, WHOLE};
use crate::notify::packed::{self, PackedFields, Wish};
use crate::notify::{self};
use vmlan_transport::memory::{Pool, Ram, View};

const DESC_F_AVAIL: u64 = 1 << 7;
const DESC_F_USED: u64 = 1 << 15;

/// A descriptor's index, and the wrap counter that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u16,
    wrap: bool,
}

impl Place {
    #[inline]
    fn plus(self, n: u16, size: u16) -> Self {
        let index = self.index + n;
        if index < size {
            return Self { index, ..self };
        }
        Self { index: index - size, wrap: !self.wrap }
    }

    fn word(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }
}

/// The flags that make a descriptor available.
fn avail_flags(wrap: bool) -> u64 {
    if wrap { DESC_F_AVAIL } else { DESC_F_USED }
}

/// Those of a used one.
fn used_flags(wrap: bool) -> u64 {
    if wrap { DESC_F_AVAIL | DESC_F_USED } else { 0 }
}

/// What a slot's descriptors say.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    addr: u64,
    /// Length, and flags shifted by 48.
    meta: u64,
}

/// The driver's side of one packed virtqueue. Not shared between threads; whoever holds it is "the
/// driver".
#[derive(Debug)]
pub struct PackedRing {
    options: RingOptions,
    places: Places,
    desc: View<AtomicU64>,
    driver: View<AtomicU32>,
    device: View<AtomicU32>,
    tables: View<AtomicU64>,
    table_addr: u64,
    slots: Slots,
    /// The descriptors of each slot, `per_slot` of them, and how many of those it has.
    lines: Box<[Line]>,
    counts: Box<[u16]>,
    /// Slots in the order they were posted.
    posted: Box<[u16]>,
    post_count: u16,
    published: u16,
    taken_back: u16,
    next: Place,
    used: Place,
    /// The first descriptor that was posted and not shown, with the word that shows it.
    hidden: Option<(u16, u64)>,
    /// Descriptors posted and not shown.
    unseen: u16,
    batch_end: Option<(u16, u32)>,
    bad_used: u64,
    base: u32,
}

impl notify::Guard for PackedRing {}

impl PackedFields for PackedRing {
    #[inline]
    fn show(&self) {
        if let Some((index, word)) = self.hidden {
            self.desc[2 * usize::from(index) + 1].store(word.to_le(), Release);
        }
    }
    #[inline]
    fn device_wish(&self) -> Wish {
        Wish::decode(u32::from_le(self.device[0].load(Relaxed)))
    }
    #[inline]
    fn set_driver_wish(&self, wish: Wish) {
        self.driver[0].store(wish.encode().to_le(), Relaxed);
    }
    fn is_met(&self, after: u16) -> bool {
        let wished = packed::distance(self.used.word(), self.wished(after).word(), self.size());
        let (mut place, mut seen) = (self.used, 0);
        while seen < after && seen < self.outstanding() {
            let Some((slot, _)) = self.used_at(place) else { break };
            place = place.plus(self.counts[usize::from(slot)], self.size());
            seen += self.batch_len(seen, slot);
        }
        let passed = packed::distance(self.used.word(), place.word(), self.size());
        seen >= after || seen > 0 && passed > wished
    }
}

impl PackedRing {
    /// A ring whose parts are taken from `low`, the pool of the RAM's low region; all slots are
    /// free.
    pub fn new(ram: &Arc<Ram>, low: &mut Pool, options: RingOptions) -> Self {
        let places = Places::take(low, options);
        let size = usize::from(options.size);
        let mut ring = Self {
            options,
            places,
            desc: ram.view(places.desc, 2 * size),
            driver: ram.view(places.avail, 1),
            device: ram.view(places.used, 1),
            tables: ram.view(places.tables, places.table_bytes(options) / 8),
            table_addr: ram.guest_phys(places.tables),
            slots: Slots::new(options.slots(), options.size),
            lines: vec![Line::default(); size].into(),
            counts: vec![1; usize::from(options.slots())].into(),
            posted: vec![0; size].into(),
            post_count: 0,
            published: 0,
            taken_back: 0,
            next: Place { index: 0, wrap: true },
            used: Place { index: 0, wrap: true },
            hidden: None,
            unseen: 0,
            batch_end: None,
            bad_used: 0,
            base: NEW,
        };
        ring.reset();
        ring
    }

    /// Back to an unused ring: every slot free, every descriptor zero. Only while no device is
    /// attached.
    pub fn reset(&mut self) {
        self.slots.reset();
        (self.post_count, self.published, self.taken_back) = (0, 0, 0);
        self.next = Place { index: 0, wrap: true };
        self.used = self.next;
        (self.hidden, self.unseen, self.batch_end) = (None, 0, None);
        self.base = NEW;
        for word in 0..2 * usize::from(self.size()) {
            self.desc[word].store(0, Relaxed);
        }
        self.driver[0].store(0, Relaxed);
        self.device[0].store(0, Relaxed);
    }

    #[inline]
    fn size(&self) -> u16 {
        self.options.size
    }

    /// Where the parts lie in the RAM.
    pub fn places(&self) -> Places {
        self.places
    }

    /// What the ring was made with.
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// How many used descriptors named a slot that the device did not own: each is a fault of the
    /// device. The ring stands still behind the first: how long its chain was nobody knows.
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
        self.published.wrapping_sub(self.taken_back)
    }

    /// What a VMM knows: where the device stood when it was last stopped properly. It is out of
    /// date when the device died.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// Notes where the device stopped.
    pub fn set_base(&mut self, base: u32) {
        self.base = base;
    }

    /// Keeps the chain of a slot, to be written when it is posted. See
    /// [`super::SplitRing::write_slot`].
    pub fn write_slot(&mut self, slot: u16, writable: bool, segments: &[Segment]) {
        let count = segments.len();
        assert!((1..=usize::from(self.options.segments)).contains(&count), "{count} segments");
        self.slots.assert_ours(slot);
        let write = if writable { DESC_F_WRITE } else { 0 };
        let (at, most) = (usize::from(slot), usize::from(self.options.segments));
        if self.options.indirect {
            for (n, segment) in segments.iter().enumerate() {
                let words = 2 * (at * most + n);
                self.tables[words].store(segment.guest_phys.to_le(), Relaxed);
                let meta = u64::from(segment.len) | write << 48;
                self.tables[words + 1].store(meta.to_le(), Relaxed);
            }
            let addr = self.table_addr + 16 * (at * most) as u64;
            let bytes = 16 * count as u64;
            self.lines[at] = Line { addr, meta: bytes | DESC_F_INDIRECT << 48 };
            return;
        }
        for (n, segment) in segments.iter().enumerate() {
            let more = if n + 1 < count { DESC_F_NEXT } else { 0 };
            let meta = u64::from(segment.len) | (more | write) << 48;
            self.lines[at * most + n] = Line { addr: segment.guest_phys, meta };
        }
        self.counts[at] = u16::try_from(count).unwrap_or(1);
    }

    /// See [`super::SplitRing::take`].
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        self.slots.take()
    }

    /// See [`super::SplitRing::free_ahead`].
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

    /// Writes a held slot's chain into the ring. The device does not see it before
    /// [`Self::publish`].
    ///
    /// # Panics
    /// When the slot is not held: a bug of the caller.
    #[inline]
    pub fn post(&mut self, slot: u16) {
        self.slots.post(slot);
        let (count, size) = (self.counts[usize::from(slot)], self.size());
        let first = usize::from(slot) * usize::from(self.options.per_slot());
        for n in 0..count {
            let Place { index, wrap } = self.next.plus(n, size);
            let Line { addr, meta } = self.lines[first + usize::from(n)];
            let word = meta | u64::from(slot) << 32 | avail_flags(wrap) << 48;
            let at = 2 * usize::from(index);
            // In steady state the address is the same as a lap ago.
            if u64::from_le(self.desc[at].load(Relaxed)) != addr {
                self.desc[at].store(addr.to_le(), Relaxed);
            }
            if self.hidden.is_none() {
                self.hidden = Some((index, word));
            } else {
                self.desc[at + 1].store(word.to_le(), Relaxed);
            }
        }
        self.next = self.next.plus(count, size);
        self.unseen += count;
        let mask = size - 1;
        self.posted[usize::from(self.post_count & mask)] = slot;
        self.post_count = self.post_count.wrapping_add(1);
    }

    /// Shows the device all posted slots; true when it asked for a doorbell.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.hidden.is_none() {
            return false;
        }
        self.published = self.post_count;
        let count = std::mem::take(&mut self.unseen);
        let wanted = packed::publish(self, self.next.word(), count, self.size());
        self.hidden = None;
        wanted
    }

    /// The slot that the used descriptor at `place` names, and its length; `None` if there is no
    /// used descriptor, or none of ours.
    #[inline]
    fn used_at(&self, place: Place) -> Option<(u16, u32)> {
        let word = u64::from_le(self.desc[2 * usize::from(place.index) + 1].load(Acquire));
        if word >> 48 & (DESC_F_AVAIL | DESC_F_USED) != used_flags(place.wrap) {
            return None;
        }
        let written = word >> 48 & DESC_F_WRITE != 0;
        let len = if written { u32::try_from(word & 0xffff_ffff).unwrap_or(0) } else { 0 };
        let slot = u16::try_from(word >> 32 & 0xffff).unwrap_or(u16::MAX);
        // One that is beyond the ring is as bad as one that is not the device's.
        Some((slot.min(self.slots.count() - 1), len)).filter(|_| slot < self.slots.count())
    }

    #[inline]
    fn is_used(&self, place: Place) -> bool {
        let word = u64::from_le(self.desc[2 * usize::from(place.index) + 1].load(Acquire));
        word >> 48 & (DESC_F_AVAIL | DESC_F_USED) == used_flags(place.wrap)
    }

    /// Are there used slots to take?
    #[inline]
    pub fn has_used(&mut self) -> bool {
        self.bad_used == 0
            && self.outstanding() > 0
            && (self.batch_end.is_some() || self.is_used(self.used))
    }

    /// The next used slot, now held by the caller, and the bytes the device wrote into it (or
    /// [`WHOLE`]).
    #[inline(always)] // As for a split ring.
    pub fn next_used(&mut self) -> Option<(u16, u32)> {
        if !self.has_used() {
            return None;
        }
        let used = if self.options.in_order { self.in_order() } else { self.used_at(self.used) };
        let Some((slot, len)) = used.filter(|(slot, _)| self.slots.take_back(*slot)) else {
            self.bad_used += 1;
            return None;
        };
        self.used = self.used.plus(self.counts[usize::from(slot)], self.size());
        self.taken_back = self.taken_back.wrapping_add(1);
        Some((slot, len))
    }

    #[inline]
    fn oldest(&self, ahead: u16) -> u16 {
        let mask = self.size() - 1;
        self.posted[usize::from(self.taken_back.wrapping_add(ahead) & mask)]
    }

    /// IN_ORDER (2.8.9): one used descriptor may stand for a batch; it lies where the batch starts
    /// and names the batch's last slot.
    #[inline]
    fn in_order(&mut self) -> Option<(u16, u32)> {
        let slot = self.oldest(0);
        let (last, len) = match self.batch_end.take() {
            Some(end) => end,
            None => self.used_at(self.used)?,
        };
        if last == slot {
            return Some((slot, len));
        }
        self.batch_end = Some((last, len));
        Some((slot, WHOLE))
    }

    /// How many slots a used descriptor stands for that names `slot`, `seen` slots ahead.
    fn batch_len(&self, seen: u16, slot: u16) -> u16 {
        if !self.options.in_order {
            return 1;
        }
        let rest = self.outstanding() - seen;
        (0..rest).find(|n| self.oldest(seen + n) == slot).map_or(1, |n| n + 1)
    }

    /// Where the used descriptor of the slot lies that is the `after`th from now, if slots are used
    /// in order.
    fn wished(&self, after: u16) -> Place {
        let ahead = after.max(1).min(self.outstanding().max(1)) - 1;
        let count = |n: u16| self.counts[usize::from(self.oldest(n))];
        self.used.plus((0..ahead).map(count).sum(), self.size())
    }

    /// States the wish for an interrupt once `after` more slots are used (at least one), then looks
    /// again: true when that is already so and sleeping would be wrong. Without EVENT_IDX every
    /// used slot interrupts.
    #[must_use]
    pub fn arm(&mut self, after: u16) -> bool {
        let after = after.max(1).min(self.outstanding().max(1));
        if self.batch_end.is_some() {
            return true;
        }
        packed::arm(self, self.wished(after).word(), after, self.options.event_idx)
    }

    /// Takes the wish back.
    pub fn disarm(&mut self) {
        packed::disarm(self);
    }

    /// As [`super::SplitRing::audit`]: where every slot is, by the ring itself and by the driver's
    /// own books. A device that goes on meanwhile overwrites what was to be looked at: then that is
    /// done again, a few times at most.
    pub fn audit(&self) -> Audit {
        let mut left = 8;
        loop {
            let (audit, end) = self.look_at_all();
            left -= 1;
            if left == 0 || !self.is_used(end) {
                return audit;
            }
        }
    }

    /// The audit, and where the used descriptors ended.
    fn look_at_all(&self) -> (Audit, Place) {
        let mut audit = Audit {
            slots: self.options.slots().into(),
            foreign: self.bad_used,
            ..Audit::default()
        };
        let mut used = vec![false; usize::from(self.options.slots())];
        let end = self.audit_used(&mut audit, &mut used);
        for slot in 0..self.options.slots() {
            match self.slots.owner(slot) {
                Owner::Free => audit.free += 1,
                Owner::Held => audit.held += 1,
                Owner::Device if used[usize::from(slot)] => audit.used += 1,
                Owner::Device => audit.avail += 1,
            }
        }
        let free: std::collections::BTreeSet<_> =
            (0..self.free_slots()).map(|n| self.free_ahead(n)).collect();
        audit.twice += u32::from(self.free_slots()) - u32::try_from(free.len()).unwrap_or(0);
        audit.lost += audit.free.saturating_sub(u32::try_from(free.len()).unwrap_or(0));
        self.audit_avail(&mut audit, end, &used);
        (audit, end)
    }

    /// The slots in used descriptors that were not taken back; returns where those end.
    fn audit_used(&self, audit: &mut Audit, used: &mut [bool]) -> Place {
        let (mut place, mut ahead) = (self.used, 0);
        while ahead < self.outstanding() && self.is_used(place) {
            let Some((last, _)) = self.used_at(place) else {
                audit.foreign += 1;
                break;
            };
            for n in 0..self.batch_len(ahead, last) {
                let slot = if self.options.in_order { self.oldest(ahead + n) } else { last };
                let ours = self.slots.owner(slot) == Owner::Device;
                audit.twice += u32::from(!ours || used[usize::from(slot)]);
                used[usize::from(slot)] = true;
                place = place.plus(self.counts[usize::from(slot)], self.size());
            }
            ahead += self.batch_len(ahead, last);
        }
        place
    }

    /// The ring from where the device stands: what a new device will see. It must hold as many
    /// slots as the device owes us, each once.
    fn audit_avail(&self, audit: &mut Audit, mut place: Place, used: &[bool]) {
        let mut seen = vec![false; used.len()];
        let mut found = 0;
        while place != self.next && found <= audit.avail {
            let word = match self.hidden {
                Some((index, word)) if index == place.index => word,
                _ => u64::from_le(self.desc[2 * usize::from(place.index) + 1].load(Relaxed)),
            };
            let slot = usize::from(u16::try_from(word >> 32 & 0xffff).unwrap_or(u16::MAX));
            let flags = word >> 48 & (DESC_F_AVAIL | DESC_F_USED);
            let ours = used.get(slot).is_some_and(|used| !used)
                && self.slots.owner(u16::try_from(slot).unwrap_or(0)) == Owner::Device
                && flags == avail_flags(place.wrap);
            if !ours {
                audit.misplaced += 1;
                break;
            }
            audit.twice += u32::from(std::mem::replace(&mut seen[slot], true));
            place = place.plus(self.counts[slot], self.size());
            found += 1;
        }
        audit.lost += audit.avail.saturating_sub(found);
    }
}

/// The base of a ring that no device has used: descriptor 0 with wrap counter 1, both ways.
const NEW: u32 = 0x8000_8000;
