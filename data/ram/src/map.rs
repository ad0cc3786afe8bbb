//! The map of one VM's memory: guest addresses to places in this process.

use std::sync::Arc;

use crate::{DirtyLog, Error, Mapping, Slice, SliceMut, Window};

/// One run of guest-physical addresses backed by part of a mapping.
#[derive(Clone, Debug)]
pub struct Region {
    gpa: u64,
    size: u64,
    /// Where the VMM has it mapped: vhost-user gives ring addresses this way.
    uva: u64,
    offset: usize,
    mapping: Arc<Mapping>,
}

impl Region {
    /// `size` bytes at guest address `gpa`, found at `offset` of `mapping`; the VMM knows them as `uva`.
    ///
    /// # Errors
    /// [`Error::BadSize`] if the region is empty, leaves the mapping, or wraps an address space.
    pub fn new(
        gpa: u64,
        size: u64,
        uva: u64,
        offset: u64,
        mapping: Arc<Mapping>,
    ) -> Result<Self, Error> {
        let bad = Error::BadSize { size, offset };
        let wraps = gpa.checked_add(size).is_none() || uva.checked_add(size).is_none();
        let end = offset.checked_add(size);
        if size == 0 || wraps || end.is_none_or(|e| e > mapping.len() as u64) {
            return Err(bad);
        }
        let Ok(offset) = usize::try_from(offset) else {
            return Err(bad);
        };
        Ok(Self { gpa, size, uva, offset, mapping })
    }

    /// First guest-physical address.
    #[must_use]
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The VMM's address of the first byte.
    #[must_use]
    pub fn uva(&self) -> u64 {
        self.uva
    }

    /// Bytes from `gpa` to the region's end and where they are, if `gpa` lies inside.
    #[inline]
    fn find(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        let off = gpa.wrapping_sub(self.gpa);
        if off >= self.size {
            return None;
        }
        let off = usize::try_from(off).ok()?;
        // SAFETY: offset + off < mapping.len(), checked by `new` and above; the mapping lives as
        // long as this region.
        let p = unsafe { self.mapping.base().as_ptr().add(self.offset + off) };
        Some((p, self.size - off as u64))
    }
}

/// A snapshot of one VM's memory. Never changed; replaced whole.
#[derive(Debug, Default)]
pub struct Map {
    regions: Vec<Region>,
    log: Option<Arc<DirtyLog>>,
}

impl Map {
    /// Regions a map may have: what `GET_MAX_MEM_SLOTS` answers. QEMU needs as many as memory slots
    /// can be hot-plugged.
    pub const MAX_REGIONS: usize = 64;

    /// A map of `regions`, with dirty pages marked in `log` if given.
    ///
    /// # Errors
    /// [`Error::Overlap`] and [`Error::TooMany`].
    pub fn new(mut regions: Vec<Region>, log: Option<Arc<DirtyLog>>) -> Result<Self, Error> {
        if regions.len() > Self::MAX_REGIONS {
            return Err(Error::TooMany(regions.len()));
        }
        regions.sort_by_key(|r| r.gpa);
        for pair in regions.windows(2) {
            if let [a, b] = pair
                && a.gpa + a.size > b.gpa
            {
                return Err(Error::Overlap(b.gpa));
            }
        }
        // The largest first: nearly all buffers lie there, and the search is linear.
        regions.sort_by_key(|r| std::cmp::Reverse(r.size));
        Ok(Self { regions, log })
    }

    /// The regions, largest first.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The dirty log in force.
    #[must_use]
    pub fn log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref()
    }

    /// True once a file behind this map shrank: its port must be shut down.
    #[must_use]
    pub fn poisoned(&self) -> bool {
        self.regions.iter().any(|r| r.mapping.poisoned())
    }

    #[inline]
    fn find(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.regions.iter().find_map(|r| r.find(gpa))
    }

    /// `len` bytes at `gpa`, if they all lie in one region.
    #[must_use]
    #[inline]
    pub fn slice(&self, gpa: u64, len: usize) -> Option<Slice<'_>> {
        let (p, left) = self.find(gpa)?;
        if len as u64 > left {
            return None;
        }
        // SAFETY: p..p+len lies in a mapping this map keeps alive for the borrow.
        Some(unsafe { Slice::new(p, len) })
    }

    /// As [`Map::slice`], to write to.
    #[must_use]
    #[inline]
    pub fn slice_mut(&self, gpa: u64, len: usize) -> Option<SliceMut<'_>> {
        let (p, left) = self.find(gpa)?;
        if len as u64 > left {
            return None;
        }
        // SAFETY: as in `slice`; mappings are made writable.
        Some(unsafe { SliceMut::new(p, len) })
    }

    /// The first run of the `len` bytes at `gpa`: shorter than `len` if a region ends before. Call
    /// again for the rest; adjacent regions need not be adjacent here.
    #[must_use]
    pub fn first_run(&self, gpa: u64, len: usize) -> Option<Slice<'_>> {
        let (p, left) = self.find(gpa)?;
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        // SAFETY: n <= left, as in `slice`.
        Some(unsafe { Slice::new(p, n) })
    }

    /// As [`Map::first_run`], to write to.
    #[must_use]
    pub fn first_run_mut(&self, gpa: u64, len: usize) -> Option<SliceMut<'_>> {
        let (p, left) = self.find(gpa)?;
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        // SAFETY: n <= left, as in `slice_mut`.
        Some(unsafe { SliceMut::new(p, n) })
    }

    /// The guest address of a byte the VMM knows as `uva`.
    #[must_use]
    pub fn gpa_of(&self, uva: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let off = uva.wrapping_sub(r.uva);
            (off < r.size).then(|| r.gpa + off)
        })
    }

    /// A ring of `len` bytes at `gpa`, which must be a multiple of `align` and lie in one region. The
    /// window keeps this map alive.
    #[must_use]
    pub fn window(self: &Arc<Self>, gpa: u64, len: usize, align: usize) -> Option<Window> {
        let (p, left) = self.find(gpa)?;
        if len as u64 > left || align == 0 || !(p as usize).is_multiple_of(align) {
            return None;
        }
        // SAFETY: p..p+len lies in a mapping that the window's own `Arc` keeps alive.
        Some(unsafe { Window::new(p, len, gpa, Arc::clone(self)) })
    }

    /// Marks `len` bytes at `gpa` as written, if anybody logs. Call after the write and before it
    /// is published: the other order lets a migrating VMM copy the page too early.
    #[inline]
    pub fn mark_dirty(&self, gpa: u64, len: usize) {
        if let Some(log) = &self.log {
            log.mark(gpa, len as u64);
        }
    }
}

#[cfg(test)]
impl Region {
    pub(crate) fn mapping_for_test(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }
}
