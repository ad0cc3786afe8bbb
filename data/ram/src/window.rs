//! Rings in guest memory, field by field.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::bytes::Bytes;
use crate::{Map, Slice};

/// A ring (or other structure) in guest memory. Offsets are in bytes.
///
/// The size was checked when the window was made, so a correct chip never reaches outside. Should
/// one do so, reads give 0 and writes do nothing. Values are little-endian, as in virtio 1.x and in
/// every NIC that is modelled here.
#[derive(Debug)]
pub struct Window {
    /// Mapped for as long as `map` lives.
    bytes: Bytes<'static>,
    gpa: u64,
    map: Arc<Map>,
}

macro_rules! scalar {
    ($load:ident, $store:ident, $int:ty) => {
        #[doc = concat!("Reads a `", stringify!($int), "` at `off`, once.")]
        #[inline]
        pub fn $load(&self, off: usize, order: Ordering) -> $int {
            self.bytes.cell(off).map_or(0, |cell| <$int>::from_le(cell.load(order)))
        }

        #[doc = concat!("Writes a `", stringify!($int), "` at `off`.")]
        #[inline]
        pub fn $store(&self, off: usize, value: $int, order: Ordering) {
            if let Some(cell) = self.bytes.cell::<$int>(off) {
                cell.store(value.to_le(), order);
            }
        }
    };
}

impl Window {
    /// A window on `bytes`, found at guest address `gpa` of `map`.
    ///
    /// # Safety
    /// `map` must keep `bytes` mapped.
    pub(crate) unsafe fn new(bytes: Bytes<'_>, gpa: u64, map: Arc<Map>) -> Self {
        // SAFETY: the caller's promise: the window owns the map, and gives out no bytes of it that
        // outlive itself.
        Self { bytes: unsafe { bytes.unbound() }, gpa, map }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Guest address of the first byte.
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    scalar!(u16, set_u16, u16);
    scalar!(u32, set_u32, u32);
    scalar!(u64, set_u64, u64);

    /// Replaces the `u32` at `off` by `new` if it is `old`. True if it was.
    #[must_use]
    #[inline]
    pub fn replace_u32(&self, off: usize, old: u32, new: u32) -> bool {
        let cell = self.bytes.cell::<u32>(off);
        cell.is_some_and(|cell| cell.replace(old.to_le(), new.to_le()))
    }

    /// Reads the 16-byte descriptor at `off` as two words, each once.
    #[inline]
    pub fn descriptor(&self, off: usize) -> (u64, u64) {
        let Some(cells) = self.bytes.cells::<u64>(off, 2) else { return (0, 0) };
        let word = |i| cells.get(i).map_or(0, |cell| u64::from_le(cell.load(Ordering::Relaxed)));
        (word(0), word(1))
    }

    /// Counts records of `STRIDE` bytes that begin with a `u32` for which `test` holds: those of
    /// the `n` records from `off` on that come before the first that fails. Each `u32` is read
    /// once, and what its writer wrote before it can be read afterwards.
    #[inline]
    pub fn leading<const STRIDE: usize>(
        &self,
        off: usize,
        n: usize,
        test: impl Fn(u32) -> bool,
    ) -> usize {
        const { assert!(STRIDE > 0 && STRIDE.is_multiple_of(size_of::<u32>())) };
        let words = STRIDE / size_of::<u32>();
        let Some(cells) = self.bytes.cells::<u32>(off, n.saturating_mul(words)) else {
            return 0;
        };
        let fails = |i: &usize| {
            let cell = cells.get(i * words);
            cell.is_some_and(|cell| !test(u32::from_le(cell.load(Ordering::Acquire))))
        };
        (0..n).find(fails).unwrap_or(n)
    }

    /// As [`Window::leading`], for 16-byte descriptors, of which the second word is looked at.
    #[inline]
    pub fn leading_descriptors(&self, off: usize, n: usize, test: impl Fn(u64) -> bool) -> usize {
        let Some(cells) = self.bytes.cells::<u64>(off, n.saturating_mul(2)) else { return 0 };
        let fails = |i: &usize| {
            let cell = cells.get(i * 2 + 1);
            cell.is_some_and(|cell| !test(u64::from_le(cell.load(Ordering::Acquire))))
        };
        (0..n).find(fails).unwrap_or(n)
    }

    /// Hands 16-byte descriptors to `take`, as two words each: of the `n` from `off` on those that
    /// come before the first whose second word fails `test`, or until `take` says false. Each word
    /// is read once, and the second one first, so that what its writer wrote before is there.
    #[inline]
    pub fn take_descriptors(
        &self,
        off: usize,
        n: usize,
        test: impl Fn(u64) -> bool,
        mut take: impl FnMut((u64, u64)) -> bool,
    ) {
        let Some(cells) = self.bytes.cells::<u64>(off, n.saturating_mul(2)) else { return };
        for i in 0..n {
            let (Some(a), Some(b)) = (cells.get(i * 2), cells.get(i * 2 + 1)) else { return };
            let second = u64::from_le(b.load(Ordering::Acquire));
            if !test(second) || !take((u64::from_le(a.load(Ordering::Relaxed)), second)) {
                return;
            }
        }
    }

    /// Writes the 16-byte descriptor at `off`, its second word after all that was written before.
    #[inline]
    pub fn set_descriptor(&self, off: usize, (first, second): (u64, u64)) {
        let Some(cells) = self.bytes.cells::<u64>(off, 2) else { return };
        if let (Some(a), Some(b)) = (cells.get(0), cells.get(1)) {
            a.store(first.to_le(), Ordering::Relaxed);
            b.store(second.to_le(), Ordering::Release);
        }
    }

    /// `len` bytes at `off`, to prefetch or copy.
    #[inline]
    pub fn slice(&self, off: usize, len: usize) -> Slice<'_> {
        Slice::new(self.bytes.sub(off, len))
    }

    /// Marks `len` bytes at `off` dirty, if somebody keeps a log.
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
