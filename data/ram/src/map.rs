//! The map of one VM's memory: guest addresses to places in this process.

use std::sync::Arc;

use crate::bytes::Bytes;
use crate::{DirtyLog, MapError, Mapping, Slice, SliceMut, Window};

/// One run of guest-physical addresses backed by part of a mapping.
#[derive(Clone, Debug)]
pub struct Region {
    gpa: u64,
    /// Where the VMM has it mapped: vhost-user gives ring addresses this way.
    uva: u64,
    /// Part of `mapping`.
    bytes: Bytes<'static>,
    mapping: Arc<Mapping>,
}

impl Region {
    /// `size` bytes at guest address `gpa`, found at `offset` of `mapping`. The VMM has them mapped
    /// at `uva`.
    ///
    /// # Errors
    /// [`MapError::BadSize`] if the region is empty, leaves the mapping, or wraps an address space.
    pub fn new(
        gpa: u64,
        size: u64,
        uva: u64,
        offset: u64,
        mapping: Arc<Mapping>,
    ) -> Result<Self, MapError> {
        let bad = MapError::BadSize { size, offset };
        if size == 0 || gpa.checked_add(size).is_none() || uva.checked_add(size).is_none() {
            return Err(bad);
        }
        let bytes = mapping.part(offset, size).ok_or(bad)?;
        // SAFETY: the region keeps the mapping, and lends its bytes no longer than it lives.
        let bytes = unsafe { bytes.unbound() };
        Ok(Self { gpa, uva, bytes, mapping })
    }

    /// First guest-physical address.
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The VMM's address of the first byte.
    pub fn uva(&self) -> u64 {
        self.uva
    }

    /// The bytes from `gpa` to the region's end, if `gpa` lies inside.
    #[inline]
    fn find(&self, gpa: u64) -> Option<Bytes<'_>> {
        let offset = usize::try_from(gpa.wrapping_sub(self.gpa)).ok()?;
        (offset < self.bytes.len()).then(|| self.bytes.sub(offset, usize::MAX))
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
    /// [`MapError::Overlap`] and [`MapError::TooMany`].
    pub fn new(mut regions: Vec<Region>, log: Option<Arc<DirtyLog>>) -> Result<Self, MapError> {
        if regions.len() > Self::MAX_REGIONS {
            return Err(MapError::TooMany(regions.len()));
        }
        regions.sort_by_key(|r| r.gpa);
        for pair in regions.windows(2) {
            if let [a, b] = pair
                && a.gpa + a.size() > b.gpa
            {
                return Err(MapError::Overlap(b.gpa));
            }
        }
        // The largest first: nearly all buffers lie there, and the search is linear.
        regions.sort_by_key(|r| std::cmp::Reverse(r.size()));
        Ok(Self { regions, log })
    }

    /// The regions, largest first.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The dirty log in force.
    pub fn log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref()
    }

    /// True once a file behind this map shrank: its port must be shut down.
    pub fn poisoned(&self) -> bool {
        self.regions.iter().any(|r| r.mapping.poisoned())
    }

    /// The bytes from `gpa` to the end of the region that it lies in.
    #[inline]
    fn find(&self, gpa: u64) -> Option<Bytes<'_>> {
        self.regions.iter().find_map(|r| r.find(gpa))
    }

    /// `len` bytes at `gpa`, if they all lie in one region.
    #[inline]
    pub fn slice(&self, gpa: u64, len: usize) -> Option<Slice<'_>> {
        self.find(gpa)?.get(0, len).map(Slice::new)
    }

    /// As [`Map::slice`], to write to.
    #[inline]
    pub fn slice_mut(&self, gpa: u64, len: usize) -> Option<SliceMut<'_>> {
        self.find(gpa)?.get(0, len).map(SliceMut::new)
    }

    /// The first run of the `len` bytes at `gpa`: shorter than `len` if a region ends before. Call
    /// again for the rest; adjacent regions need not be adjacent here.
    pub fn first_run(&self, gpa: u64, len: usize) -> Option<Slice<'_>> {
        Some(Slice::new(self.find(gpa)?.sub(0, len)))
    }

    /// As [`Map::first_run`], to write to.
    pub fn first_run_mut(&self, gpa: u64, len: usize) -> Option<SliceMut<'_>> {
        Some(SliceMut::new(self.find(gpa)?.sub(0, len)))
    }

    /// The guest address of a byte the VMM knows as `uva`.
    pub fn gpa_of(&self, uva: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let off = uva.wrapping_sub(r.uva);
            (off < r.size()).then(|| r.gpa + off)
        })
    }

    /// A ring of `len` bytes at `gpa`, which must be a multiple of `align` and lie in one region.
    /// The window keeps this map alive.
    pub fn window(self: &Arc<Self>, gpa: u64, len: usize, align: usize) -> Option<Window> {
        let bytes = self.find(gpa)?.get(0, len)?;
        if align == 0 || !bytes.as_ptr().addr().is_multiple_of(align) {
            return None;
        }
        // SAFETY: the bytes lie in a mapping that this map keeps.
        Some(unsafe { Window::new(bytes, gpa, Arc::clone(self)) })
    }

    /// Marks `len` bytes at `gpa` as written, if somebody keeps a log. Call after the write and
    /// before it is published: the other order lets a migrating VMM copy the page too early.
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
