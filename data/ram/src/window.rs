//! Rings in guest memory, field by field.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use crate::{Map, Slice};

/// A ring (or other structure) in guest memory. Offsets are in bytes. Reads outside give 0, writes
/// outside do nothing: the size was checked when the window was made, so neither happens in a
/// correct model, and a wrong one harms nobody. Values are little-endian, as in virtio 1.x and on the wire
/// of every NIC we model.
#[derive(Debug)]
pub struct Window {
    ptr: *mut u8,
    len: usize,
    gpa: u64,
    map: Arc<Map>,
}

// SAFETY: all access is by atomics on memory that `map` keeps alive.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

macro_rules! scalar {
    ($load:ident, $store:ident, $int:ty, $atomic:ty) => {
        #[doc = concat!("Reads a `", stringify!($int), "` at `off`, once.")]
        #[must_use]
        #[inline]
        pub fn $load(&self, off: usize, order: Ordering) -> $int {
            match self.at(off, size_of::<$int>()) {
                // SAFETY: `at` checked bounds and alignment; the memory outlives the reference.
                Some(p) => <$int>::from_le(unsafe { <$atomic>::from_ptr(p.cast()) }.load(order)),
                None => 0,
            }
        }

        #[doc = concat!("Writes a `", stringify!($int), "` at `off`.")]
        #[inline]
        pub fn $store(&self, off: usize, value: $int, order: Ordering) {
            if let Some(p) = self.at(off, size_of::<$int>()) {
                // SAFETY: as for the load.
                unsafe { <$atomic>::from_ptr(p.cast()) }.store(value.to_le(), order);
            }
        }
    };
}

impl Window {
    /// # Safety
    /// `ptr..ptr + len` must lie in a mapping that `map` keeps alive.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize, gpa: u64, map: Arc<Map>) -> Self {
        Self { ptr, len, gpa, map }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Guest address of the first byte.
    #[must_use]
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    #[inline]
    fn at(&self, off: usize, size: usize) -> Option<*mut u8> {
        self.range(off, size, size)
    }

    /// `len` bytes at `off`, if they are inside and the first is a multiple of `align`.
    #[inline]
    fn range(&self, off: usize, len: usize, align: usize) -> Option<*mut u8> {
        if off > self.len || self.len - off < len {
            return None;
        }
        // SAFETY: off + len <= self.len.
        let p = unsafe { self.ptr.add(off) };
        (p as usize).is_multiple_of(align).then_some(p)
    }

    scalar!(u16, set_u16, u16, AtomicU16);
    scalar!(u32, set_u32, u32, AtomicU32);
    scalar!(u64, set_u64, u64, AtomicU64);

    /// Replaces the `u32` at `off` by `new` if it is `old`. True if it was.
    #[must_use]
    #[inline]
    pub fn replace_u32(&self, off: usize, old: u32, new: u32) -> bool {
        let (old, new) = (old.to_le(), new.to_le());
        // SAFETY: as for the loads.
        self.at(off, 4).is_some_and(|p| unsafe {
            AtomicU32::from_ptr(p.cast())
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Reads the 16-byte descriptor at `off` as two words, each once.
    #[must_use]
    #[inline]
    pub fn descriptor(&self, off: usize) -> (u64, u64) {
        let Some(p) = self.range(off, 2 * size_of::<u64>(), align_of::<u64>()) else {
            return (0, 0);
        };
        // SAFETY: both words are in the range, whose alignment is theirs.
        let word = |p: *mut u8| unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Relaxed);
        // SAFETY: the second begins within it.
        (u64::from_le(word(p)), u64::from_le(word(unsafe { p.add(size_of::<u64>()) })))
    }

    /// How many of the `n` records of `STRIDE` bytes from `off` on begin with a `u32` that passes `test`, before the first that does
    /// not. Each is read once, and what its writer wrote before is there to be read afterwards.
    #[must_use]
    #[inline]
    pub fn leading<const STRIDE: usize>(
        &self,
        off: usize,
        n: usize,
        test: impl Fn(u32) -> bool,
    ) -> usize {
        let len = n.saturating_mul(STRIDE);
        let Some(p) = self.range(off, len, align_of::<u32>()) else { return 0 };
        // SAFETY: each record is in the range; alignment is kept by the assertion.
        let word = |i: usize| unsafe { AtomicU32::from_ptr(p.add(i * STRIDE).cast()) };
        const { assert!(STRIDE >= size_of::<u32>() && STRIDE.is_multiple_of(align_of::<u32>())) };
        (0..n).find(|&i| !test(u32::from_le(word(i).load(Ordering::Acquire)))).unwrap_or(n)
    }

    /// `len` bytes at `off`, to prefetch or copy.
    #[must_use]
    #[inline]
    pub fn slice(&self, off: usize, len: usize) -> Slice<'_> {
        let off = off.min(self.len);
        // SAFETY: the range is clamped to the window.
        unsafe { Slice::new(self.ptr.add(off), len.min(self.len - off)) }
    }

    /// Marks `len` bytes at `off` dirty, if anybody logs.
    #[inline]
    pub fn mark_dirty(&self, off: usize, len: usize) {
        self.map.mark_dirty(self.gpa.saturating_add(off as u64), len);
    }
}

/// The fence between publishing and reading the other side's wish, needed on every CPU (x86 too).
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
