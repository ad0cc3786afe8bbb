//! The device side of one split ring (virtio 1.2 section 2.7).
//!
//! ```text
//!  avail positions:   done ........ next ........ fetched ........ avail_idx
//!                     │ being used   │ heads read  │ not looked at   │ the driver's index
//!                     └ used.idx as published      └ heads[] holds done..fetched (mod 256)
//! ```
//!
//! Each avail entry is copied out once, into `heads`; what is used is what was copied.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vmlan_ram::{DirtyLog, Map, Window};

use super::desc::{Chain, Desc};
use super::{Fault, Features, Inflight, Rings, feature};
use crate::Interrupt;
use crate::bits::small;
use crate::notify::Guard;
use crate::notify::virtqueue::{self, VirtqueueFields};

/// Positions whose heads can be held at a time.
pub(super) const HEADS: u16 = 256;

/// One ring, started.
pub(super) struct Queue {
    desc: Window,
    avail: Window,
    used: Window,
    rings: Rings,
    features: Features,
    dirty: Option<Arc<DirtyLog>>,
    /// Next position to be used.
    pub(super) next: u16,
    /// `used.idx` as published.
    pub(super) done: u16,
    /// First position whose head has not been read.
    pub(super) fetched: u16,
    avail_idx: u16,
    heads: Box<[[u8; 2]; HEADS as usize]>,
    /// Used entries that wait to be written, `staged` of them; they begin at `entries_at`.
    entries: Box<[[u8; 8]; HEADS as usize]>,
    staged: usize,
    entries_at: u16,
    /// No interrupt was decided on since the start: the predecessor may have died before raising
    /// one.
    fresh: bool,
    /// The wish for doorbells stands.
    armed: bool,
    pub(super) interrupt: Option<Arc<dyn Interrupt>>,
    pub(super) inflight: Option<Inflight>,
}

impl Guard for Queue {}

impl VirtqueueFields for Queue {
    #[inline]
    fn avail_idx(&self) -> u16 {
        self.avail.u16(2, Acquire)
    }
    #[inline]
    fn avail_flags(&self) -> u16 {
        self.avail.u16(0, Relaxed)
    }
    #[inline]
    fn used_event(&self) -> u16 {
        self.avail.u16(4 + 2 * usize::from(self.rings.size), Relaxed)
    }
    #[inline]
    fn set_used_idx(&self, idx: u16) {
        self.used.set_u16(2, idx, Release);
        self.log_used(2, 2);
    }
    fn set_used_flags(&self, flags: u16) {
        self.used.set_u16(0, flags, Relaxed);
        self.log_used(0, 2);
    }
    fn set_avail_event(&self, idx: u16) {
        let off = 4 + 8 * usize::from(self.rings.size);
        self.used.set_u16(off, idx, Relaxed);
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

impl Queue {
    /// Starts where the used index stands in guest memory (see the folder's text).
    pub(super) fn new(rings: Rings, map: &Arc<Map>, features: Features) -> Result<Self, Fault> {
        let (desc, avail, used) = windows(&rings, map, features)?;
        let start = used.u16(2, Relaxed);
        Ok(Self {
            desc,
            avail,
            used,
            rings,
            features,
            dirty: map.log().cloned(),
            next: start,
            done: start,
            fetched: start,
            avail_idx: start,
            heads: Box::new([[0; 2]; HEADS as usize]),
            entries: Box::new([[0; 8]; HEADS as usize]),
            staged: 0,
            entries_at: start,
            fresh: true,
            armed: false,
            interrupt: None,
            inflight: None,
        })
    }

    /// Moves to another map, or other features, with all indexes kept.
    pub(super) fn rebuild(&mut self, map: &Arc<Map>, features: Features) -> Result<(), Fault> {
        (self.desc, self.avail, self.used) = windows(&self.rings, map, features)?;
        self.features = features;
        self.dirty = map.log().cloned();
        Ok(())
    }

    pub(super) fn set_log(&mut self, log: Option<u64>) {
        self.rings.log = log;
    }

    pub(super) fn size(&self) -> u16 {
        self.rings.size
    }

    /// Buffers available and not yet taken, by the index last read.
    #[inline]
    pub(super) fn known(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.next)
    }

    /// Reads `avail.idx`; returns buffers available and not yet taken.
    ///
    /// # Errors
    /// [`Fault::AvailJump`] if it went back, or further than the ring is long.
    #[inline]
    pub(super) fn look(&mut self) -> Result<u16, Fault> {
        let avail = self.avail_idx();
        let ahead = avail.wrapping_sub(self.done);
        if ahead > self.rings.size || ahead < self.avail_idx.wrapping_sub(self.done) {
            return Err(Fault::AvailJump { avail, next: self.next });
        }
        self.avail_idx = avail;
        Ok(self.known())
    }

    /// Copies out heads, of at most [`HEADS`] positions from `base` on.
    #[inline]
    pub(super) fn fetch(&mut self, base: u16) {
        let room = HEADS - self.fetched.wrapping_sub(base).min(HEADS);
        let mut left = room.min(self.avail_idx.wrapping_sub(self.fetched));
        while left > 0 {
            let from = self.fetched & (self.rings.size - 1);
            let to = self.fetched & (HEADS - 1);
            let n = left.min(self.rings.size - from).min(HEADS - to);
            let to = usize::from(to);
            let dst = self.heads.get_mut(to..to + usize::from(n)).unwrap_or_default();
            let bytes = dst.as_flattened_mut();
            self.avail.slice(4 + 2 * usize::from(from), bytes.len()).read(bytes);
            self.fetched = self.fetched.wrapping_add(n);
            left -= n;
        }
    }

    /// The head at `position`, which has been fetched.
    #[inline]
    pub(super) fn head(&self, position: u16) -> u16 {
        self.heads.get(usize::from(position & (HEADS - 1))).map_or(0, |b| u16::from_le_bytes(*b))
    }

    /// Reads the descriptor `index`, once.
    #[inline]
    pub(super) fn desc(&self, index: u16) -> Result<Desc, Fault> {
        if index >= self.rings.size {
            return Err(Fault::OutOfTable(index.into()));
        }
        let bytes = self.desc.slice(16 * usize::from(index), 16).read_array();
        Ok(Desc::from_bytes(bytes.unwrap_or_default()))
    }

    /// The buffers of the chain that begins with `first`.
    #[inline]
    pub(super) fn chain<'q>(&'q self, map: &'q Map, first: Desc, write: bool) -> Chain<'q> {
        let indirect = self.features.has(feature::INDIRECT_DESC);
        Chain::new(&self.desc, map, first, self.rings.size, indirect, write)
    }

    /// Notes that the next chain was used, with `len` bytes written to it.
    #[inline]
    pub(super) fn stage(&mut self, map: &Map, head: u16, len: u32) {
        if self.staged == self.entries.len() {
            self.write_used(map);
        }
        if let Some(e) = self.entries.get_mut(self.staged) {
            *e = (u64::from(len) << 32 | u64::from(head)).to_le_bytes();
            self.staged += 1;
        }
    }

    /// Notes that the `n` chains after `done` were used, with nothing written to them. Nothing else
    /// is staged, and n is at most [`HEADS`].
    #[inline]
    pub(super) fn stage_unwritten(&mut self, n: u16) {
        let (n, from) = (usize::from(n), usize::from(self.done & (HEADS - 1)));
        let (early, late) = self.heads.split_at(from.min(self.heads.len()));
        let late = late.get(..n).unwrap_or(late);
        let early = early.get(..n - late.len()).unwrap_or_default();
        let (first, second) = self.entries.split_at_mut(late.len());
        let unwritten = |[a, b]: [u8; 2]| [a, b, 0, 0, 0, 0, 0, 0];
        first.iter_mut().zip(late).for_each(|(entry, head)| *entry = unwritten(*head));
        second.iter_mut().zip(early).for_each(|(entry, head)| *entry = unwritten(*head));
        self.staged = n;
    }

    /// Writes the staged entries into the used ring, all together.
    fn write_used(&mut self, map: &Map) {
        let mut entries = self.entries.get(..self.staged).unwrap_or_default();
        while !entries.is_empty() {
            let slot = usize::from(self.entries_at & (self.rings.size - 1));
            let n = entries.len().min(usize::from(self.rings.size) - slot);
            let (now, later) = entries.split_at(n);
            let off = 4 + 8 * slot;
            if let Some(mut ring) = map.slice_mut(self.used.gpa() + off as u64, 8 * n) {
                ring.write(0, now.as_flattened());
            }
            self.log_used(off, 8 * n);
            self.entries_at = self.entries_at.wrapping_add(small(n));
            entries = later;
        }
        self.staged = 0;
    }

    /// Publishes what was staged and raises the interrupt if the driver wants one; returns whether
    /// that told the driver at once.
    #[inline]
    pub(super) fn publish(&mut self, map: &Map) -> bool {
        self.write_used(map);
        let (old, new) = (self.done, self.entries_at);
        if old == new {
            return false;
        }
        self.done = new;
        let wanted = virtqueue::publish(self, old, new, self.event_idx());
        if let Some(inflight) = &self.inflight {
            inflight.window.set_u16(inflight.offset, new, Release);
        }
        let first = std::mem::take(&mut self.fresh);
        match &self.interrupt {
            Some(interrupt) if wanted || first => interrupt.raise(),
            _ => false,
        }
    }

    #[inline]
    fn event_idx(&self) -> bool {
        self.features.has(feature::EVENT_IDX)
    }

    /// Asks for a doorbell after the first `seen` buffers; true if there are more already.
    pub(super) fn arm(&mut self, seen: u16) -> bool {
        self.armed = true;
        virtqueue::arm(self, seen, self.event_idx())
    }

    /// Takes the wish back, if it stands.
    #[inline]
    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.quiet();
        }
    }

    /// States that no doorbell is wanted, whatever stood there before.
    pub(super) fn quiet(&self) {
        virtqueue::disarm(self, self.event_idx());
    }

    /// The index last read from the driver.
    pub(super) fn seen(&self) -> u16 {
        self.avail_idx
    }

    /// Marks part of the used ring as written, at the ring's own log address.
    #[inline]
    fn log_used(&self, off: usize, len: usize) {
        if let (Some(dirty), Some(gpa)) = (&self.dirty, self.rings.log) {
            dirty.mark(gpa.saturating_add(off as u64), len as u64);
        }
    }
}
