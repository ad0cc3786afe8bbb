//! The device side of one split ring (virtio 1.2 section 2.7).
//!
//! ```text
//!  avail positions:   done ........ next ........ fetched ........ avail_idx
//!                     │ being used   │ heads read  │ not looked at   │ the driver's index
//!                     └ used.idx as published      └ heads[] holds done..fetched (mod 256)
//! ```
//!
//! Each avail entry is copied out once, into `heads`; what is used is what was copied. Positions
//! are those of the avail ring, so `done` is `used.idx`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vmlan_ram::{Map, Noting, Window};

use super::desc::{Chain, Desc};
use super::queue::{AnyQueue, HEADS, Queue, Ring};
use super::{Fault, Features, Inflight, Rings, feature};
use crate::bits::small;
use crate::chip::held::point;
use crate::notify::virtqueue::{self, VirtqueueFields};

/// What only a split ring has.
pub(super) struct Split {
    desc: Window,
    avail: Window,
    used: Window,
    avail_idx: u16,
    heads: Box<[[u8; 2]; HEADS as usize]>,
    /// Used entries that wait to be written, `staged` of them; they begin at `entries_at`.
    entries: Box<[[u8; 8]; HEADS as usize]>,
    staged: usize,
    entries_at: u16,
}

impl VirtqueueFields for Queue<Split> {
    #[inline]
    fn avail_idx(&self) -> u16 {
        self.layout.avail.u16(2, Acquire)
    }
    #[inline]
    fn avail_flags(&self) -> u16 {
        self.layout.avail.u16(0, Relaxed)
    }
    #[inline]
    fn used_event(&self) -> u16 {
        self.layout.avail.u16(4 + 2 * usize::from(self.rings.size), Relaxed)
    }
    #[inline]
    fn set_used_idx(&self, idx: u16) {
        point();
        self.layout.used.set_u16(2, idx, Release);
        point();
        self.log_used(2, 2);
    }
    fn set_used_flags(&self, flags: u16) {
        self.layout.used.set_u16(0, flags, Relaxed);
        self.log_used(0, 2);
    }
    fn set_avail_event(&self, idx: u16) {
        let off = 4 + 8 * usize::from(self.rings.size);
        self.layout.used.set_u16(off, idx, Relaxed);
        self.log_used(off, 2);
    }
}

/// The three windows of `rings` on `map`.
fn windows(
    rings: &Rings,
    map: &Arc<Map>,
    features: Features,
) -> Result<(Window, Window, Window), Fault> {
    let size = rings.size;
    if !size.is_power_of_two() || size > 32768 {
        return Err(Fault::BadSize(size));
    }
    let n = usize::from(size);
    let event = if features.has(feature::EVENT_IDX) { 2 } else { 0 };
    let window = |gpa, len, align| map.window(gpa, len, align).ok_or(Fault::BadRing(gpa));
    Ok((
        window(rings.desc, 16 * n, 16)?,
        window(rings.avail, 4 + 2 * n + event, 2)?,
        window(rings.used, 4 + 8 * n + event, 4)?,
    ))
}

impl Queue<Split> {
    /// Starts where the used index stands in guest memory (see the folder's text).
    pub(super) fn new(rings: Rings, map: &Arc<Map>, features: Features) -> Result<Self, Fault> {
        let (desc, avail, used) = windows(&rings, map, features)?;
        let start = used.u16(2, Relaxed);
        let layout = Split {
            desc,
            avail,
            used,
            avail_idx: start,
            heads: Box::new([[0; 2]; HEADS as usize]),
            entries: Box::new([[0; 8]; HEADS as usize]),
            staged: 0,
            entries_at: start,
        };
        Ok(Self::at(layout, rings, map, features, start))
    }

    /// Writes the staged entries into the used ring, all together.
    fn write_used(&mut self, map: &Map) {
        let mut entries = self.layout.entries.get(..self.layout.staged).unwrap_or_default();
        while !entries.is_empty() {
            let slot = usize::from(self.layout.entries_at & (self.rings.size - 1));
            let n = entries.len().min(usize::from(self.rings.size) - slot);
            let (now, later) = entries.split_at(n);
            let off = 4 + 8 * slot;
            if let Some(mut ring) = map.slice_mut(self.layout.used.gpa() + off as u64, 8 * n) {
                ring.write(0, now.as_flattened());
            }
            point();
            self.log_used(off, 8 * n);
            self.layout.entries_at = self.layout.entries_at.wrapping_add(small(n));
            entries = later;
        }
        self.layout.staged = 0;
    }

    /// Marks part of the used ring as written, at the ring's own log address.
    #[inline]
    fn log_used(&self, off: usize, len: usize) {
        if let (Some(dirty), Some(gpa)) = (&self.dirty, self.rings.log) {
            dirty.mark(gpa.saturating_add(off as u64), len as u64);
        }
    }
}

impl Ring for Queue<Split> {
    #[inline]
    fn of(queue: &mut AnyQueue) -> Option<&mut Self> {
        if let AnyQueue::Split(queue) = queue { Some(queue) } else { None }
    }

    type Chain<'q> = Chain<'q>;

    fn rebuild_windows(&mut self, map: &Arc<Map>) -> Result<(), Fault> {
        let (desc, avail, used) = windows(&self.rings, map, self.features)?;
        (self.layout.desc, self.layout.avail, self.layout.used) = (desc, avail, used);
        Ok(())
    }

    /// By the index last read.
    #[inline]
    fn known(&self) -> u16 {
        self.layout.avail_idx.wrapping_sub(self.next)
    }

    /// Reads `avail.idx`.
    ///
    /// # Errors
    /// [`Fault::AvailJump`] if it went back, or further than the ring is long.
    #[inline]
    fn look(&mut self) -> Result<u16, Fault> {
        let avail = self.avail_idx();
        let ahead = avail.wrapping_sub(self.done);
        if ahead > self.rings.size || ahead < self.layout.avail_idx.wrapping_sub(self.done) {
            return Err(Fault::AvailJump { avail, next: self.next });
        }
        self.layout.avail_idx = avail;
        Ok(self.known())
    }

    #[inline]
    fn fetch(&mut self, base: u16) -> Result<usize, Fault> {
        let room = HEADS - self.fetched.wrapping_sub(base).min(HEADS);
        let mut left = room.min(self.layout.avail_idx.wrapping_sub(self.fetched));
        while left > 0 {
            let from = self.fetched & (self.rings.size - 1);
            let to = self.fetched & (HEADS - 1);
            let n = left.min(self.rings.size - from).min(HEADS - to);
            let to = usize::from(to);
            let dst = self.layout.heads.get_mut(to..to + usize::from(n)).unwrap_or_default();
            let bytes = dst.as_flattened_mut();
            self.layout.avail.slice(4 + 2 * usize::from(from), bytes.len()).read(bytes);
            self.fetched = self.fetched.wrapping_add(n);
            left -= n;
        }
        Ok(0)
    }

    #[inline]
    fn head(&self, position: u16) -> u16 {
        let head = self.layout.heads.get(usize::from(position & (HEADS - 1)));
        head.map_or(0, |b| u16::from_le_bytes(*b))
    }

    #[inline]
    fn desc(&self, index: u16) -> Result<Desc, Fault> {
        if index >= self.rings.size {
            return Err(Fault::OutOfTable(index.into()));
        }
        let bytes = self.layout.desc.slice(16 * usize::from(index), 16).read_array();
        Ok(Desc::from_bytes(bytes.unwrap_or_default()))
    }

    #[inline]
    fn chain<'q>(&'q self, map: &'q Map, _: u16, first: Desc, write: bool) -> Chain<'q> {
        let indirect = self.features.has(feature::INDIRECT_DESC);
        Chain::new(&self.layout.desc, map, first, self.rings.size, indirect, write)
    }

    #[inline]
    fn stage(&mut self, map: &Map, head: u16, len: u32) {
        if self.layout.staged == self.layout.entries.len() {
            self.write_used(map);
        }
        if let Some(e) = self.layout.entries.get_mut(self.layout.staged) {
            *e = (u64::from(len) << 32 | u64::from(head)).to_le_bytes();
            self.layout.staged += 1;
        }
    }

    #[inline]
    fn stage_unwritten(&mut self, n: u16) {
        let (n, from) = (usize::from(n), usize::from(self.done & (HEADS - 1)));
        let (early, late) = self.layout.heads.split_at(from.min(self.layout.heads.len()));
        let late = late.get(..n).unwrap_or(late);
        let early = early.get(..n - late.len()).unwrap_or_default();
        let (first, second) = self.layout.entries.split_at_mut(late.len());
        let unwritten = |[a, b]: [u8; 2]| [a, b, 0, 0, 0, 0, 0, 0];
        first.iter_mut().zip(late).for_each(|(entry, head)| *entry = unwritten(*head));
        second.iter_mut().zip(early).for_each(|(entry, head)| *entry = unwritten(*head));
        self.layout.staged = n;
    }

    #[inline]
    fn expose(&mut self, map: &Map) -> Option<bool> {
        self.write_used(map);
        let (old, new) = (self.done, self.layout.entries_at);
        if old == new {
            return None;
        }
        self.done = new;
        Some(virtqueue::publish(self, old, new, self.event_idx()))
    }

    fn state_wish(&mut self, seen: u16) -> bool {
        virtqueue::arm(self, seen, self.event_idx())
    }

    fn quiet(&self) {
        virtqueue::disarm(self, self.event_idx());
    }

    /// The index last read from the driver.
    fn seen(&self) -> u16 {
        self.layout.avail_idx
    }

    fn is_begun(&self) -> bool {
        self.done != 0
    }

    fn base(&self) -> u32 {
        self.done.into()
    }

    fn note_lines(&self, lines: &mut Noting<'_>) {
        let mask = self.rings.size - 1;
        lines.ring(&self.layout.used, 4 + 8 * usize::from(self.done & mask));
        lines.ring(&self.layout.used, 2);
        lines.ring(&self.layout.avail, 2);
    }

    fn note(&self, inflight: &Inflight) {
        point();
        inflight.window.set_u16(inflight.offset, self.done, Release);
    }

    /// Entries that are not published are written again.
    fn mark_published(&self, _: &Map) {
        self.log_used(2, 2);
    }
}
