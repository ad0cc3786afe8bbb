//! Borrowed runs of memory that somebody else may change at any time.

use std::marker::PhantomData;

use crate::bytes::{self, Bytes};

/// Bytes to read. Lives as long as the map (or buffer) it was borrowed from.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'m>(Bytes<'m>);

impl<'m> Slice<'m> {
    #[inline]
    pub(crate) fn new(bytes: Bytes<'m>) -> Self {
        Self(bytes)
    }

    /// Our own bytes, lent as if they were a guest's.
    #[inline]
    pub fn from_bytes(bytes: &'m [u8]) -> Self {
        Self(Bytes::of(bytes))
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes from `offset` on, at most `len` of them; empty past the end.
    #[inline]
    pub fn sub(&self, offset: usize, len: usize) -> Self {
        Self(self.0.sub(offset, len))
    }

    /// Copies the first bytes out into `dst`; returns how many (the shorter of the two lengths).
    #[inline(always)]
    pub fn read(&self, dst: &mut [u8]) -> usize {
        Bytes::of_mut(dst).copy_from(self.0)
    }

    /// Copies out exactly `N` bytes, once; `None` if there are fewer.
    #[inline]
    pub fn read_array<const N: usize>(&self) -> Option<[u8; N]> {
        if self.len() < N {
            return None;
        }
        let mut out = [0; N];
        if (8..=16).contains(&N) {
            // Stays in registers: most are descriptors and headers.
            let (first, last) = (self.0.load(0)?, self.0.load(N - 8)?);
            *out.first_chunk_mut()? = first;
            *out.last_chunk_mut()? = last;
        } else {
            self.read(&mut out);
        }
        Some(out)
    }

    /// Asks the CPU to fetch the first cache line.
    #[inline]
    pub fn prefetch(&self) {
        bytes::prefetch(self.0.as_ptr(), false);
    }

    /// Address and length, for system calls that gather (`writev`). The kernel copies from it while
    /// the borrow lives.
    #[inline]
    pub fn as_raw(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

/// Bytes to write. The owner of a range keeps its writers apart (a port's receive-side lock).
#[derive(Debug)]
pub struct SliceMut<'m> {
    bytes: Bytes<'m>,
    _exclusive: PhantomData<&'m mut [u8]>,
}

impl<'m> SliceMut<'m> {
    #[inline]
    pub(crate) fn new(bytes: Bytes<'m>) -> Self {
        Self { bytes, _exclusive: PhantomData }
    }

    /// Our own buffer, written as if it were a guest's.
    #[inline]
    pub fn from_bytes(bytes: &'m mut [u8]) -> Self {
        Self::new(Bytes::of_mut(bytes))
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes `src` at `offset`; returns how many bytes fitted.
    #[inline(always)]
    pub fn write(&mut self, offset: usize, src: &[u8]) -> usize {
        self.bytes.sub(offset, usize::MAX).copy_from(Bytes::of(src))
    }

    /// Copies `src` to `offset`, guest memory to guest memory; returns how many bytes fitted.
    ///
    /// The two may overlap when a hostile guest maps one file twice: the result is then garbage in
    /// that guest's own memory, and nothing else.
    #[inline(always)]
    pub fn write_from(&mut self, offset: usize, src: Slice<'_>) -> usize {
        self.bytes.sub(offset, usize::MAX).copy_from(src.0)
    }

    /// Fetches the first cache line with the intent to write.
    #[inline]
    pub fn prefetch(&self) {
        bytes::prefetch(self.bytes.as_ptr(), true);
    }

    #[inline]
    pub(crate) fn address(&self, offset: usize) -> usize {
        self.bytes.sub(offset, 1).as_ptr().addr()
    }

    /// As [`SliceMut::prefetch`], of the line that has the byte at `offset`.
    #[inline]
    pub fn prefetch_at(&self, offset: usize) {
        bytes::prefetch(self.bytes.sub(offset, 1).as_ptr(), true);
    }
}

/// Asks the CPU to fetch the cache line of one of our own values.
#[inline]
pub fn prefetch<T>(value: &T) {
    bytes::prefetch(std::ptr::from_ref(value).cast(), false);
}

/// Empties a vector of slices and gives its storage to another borrow, so that the data path need
/// not allocate for each batch.
#[must_use]
pub fn recycle<'b>(mut v: Vec<Slice<'_>>) -> Vec<Slice<'b>> {
    v.clear();
    let mut v = std::mem::ManuallyDrop::new(v);
    // SAFETY: `Slice<'a>` and `Slice<'b>` differ only in a lifetime, so layout and allocation
    // agree, and the vector is empty: no slice outlives its borrow.
    unsafe { Vec::from_raw_parts(v.as_mut_ptr().cast(), 0, v.capacity()) }
}
