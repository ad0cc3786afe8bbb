//! A run of bytes in this process that others may read and write at any time.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::cell::{Cell, Cells, Integer};
use crate::copy::copy;

/// A run of bytes. Every access is atomic, be it of single bytes ([`copy`]) or of whole words
/// ([`Bytes::cells`]), so others may access the run at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'m> {
    ptr: *mut u8,
    len: usize,
    _owner: PhantomData<&'m [AtomicU8]>,
}

// SAFETY: a run is no more than `&[AtomicU8]`, which may be sent to other threads.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above, for sharing.
unsafe impl Sync for Bytes<'_> {}

impl<'m> Bytes<'m> {
    /// The run `ptr..ptr + len`.
    ///
    /// # Safety
    /// The run must stay mapped for `'m`, and writable if it is written to. Whoever else accesses
    /// it from within this process must do so by atomic accesses too, or only read what nobody
    /// writes.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, _owner: PhantomData }
    }

    /// Our own bytes, to read from only.
    #[inline]
    pub(crate) fn of(bytes: &'m [u8]) -> Self {
        Self { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), _owner: PhantomData }
    }

    /// Our own bytes.
    #[inline]
    pub(crate) fn of_mut(bytes: &'m mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), _owner: PhantomData }
    }

    /// The same run, for an owner of it to keep beside what keeps it mapped.
    ///
    /// # Safety
    /// The run must not be used after it was unmapped.
    pub(crate) unsafe fn unbound(self) -> Bytes<'static> {
        Bytes { ptr: self.ptr, len: self.len, _owner: PhantomData }
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// At most `len` bytes from `offset` on; empty past the end.
    #[inline]
    pub(crate) fn sub(self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        Self { ptr: self.ptr.wrapping_add(offset), len, ..self }
    }

    /// `len` bytes from `offset` on, if there are that many.
    #[inline]
    pub(crate) fn get(self, offset: usize, len: usize) -> Option<Self> {
        if offset > self.len || self.len - offset < len {
            return None;
        }
        Some(Self { ptr: self.ptr.wrapping_add(offset), len, ..self })
    }

    /// Copies the first bytes of `from` here; returns how many (the shorter of the two lengths).
    /// The two may overlap: what is copied is then any mixture of what was there.
    #[inline(always)]
    pub(crate) fn copy_from(self, from: Bytes<'_>) -> usize {
        let n = self.len.min(from.len);
        // SAFETY: both runs hold n bytes and are mapped. Only `SliceMut` and `Slice::read` call
        // this, with a destination that is writable.
        unsafe { copy(from.ptr, self.ptr, n) };
        n
    }

    /// The 8 bytes at `offset`, if they are inside.
    #[inline]
    pub(crate) fn load(self, offset: usize) -> Option<[u8; 8]> {
        // Aligned or not: assembly on x86-64 does not care, and others copy bytes.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: they are in the run, mapped for 'm.
        let load = |p: *const u8| unsafe { u64::load(p.cast(), Ordering::Relaxed) }.to_ne_bytes();
        #[cfg(not(target_arch = "x86_64"))]
        let load = |p: *const u8| {
            let mut word = [0; 8];
            // SAFETY: as above, and 8 bytes of our own.
            unsafe { copy(p, word.as_mut_ptr(), 8) };
            word
        };
        self.get(offset, 8).map(|run| load(run.ptr))
    }

    /// The integer at `offset`, if it is inside and aligned.
    #[inline]
    pub(crate) fn cell<I: Integer>(self, offset: usize) -> Option<Cell<'m, I>> {
        self.cells(offset, 1)?.get(0)
    }

    /// The `n` integers at `offset`, if they are inside and aligned.
    #[inline]
    pub(crate) fn cells<I: Integer>(self, offset: usize, n: usize) -> Option<Cells<'m, I>> {
        let p = self.get(offset, n.checked_mul(size_of::<I>())?)?.ptr.cast::<I>();
        // SAFETY: the integers lie in the run, mapped for 'm, and are aligned.
        p.is_aligned().then(|| unsafe { Cells::new(p, n) })
    }
}

/// Asks the CPU to fetch the cache line at `p`, to write to it or only to read.
#[inline]
pub(crate) fn prefetch(p: *const u8, write: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it never faults and changes nothing that a program can see.
    // PREFETCHW does nothing on CPUs that lack it.
    unsafe {
        use std::arch::asm;
        if write {
            asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        } else {
            asm!("prefetcht0 [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, write);
}
