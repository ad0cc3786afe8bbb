//! Borrowed runs of memory that somebody else may change at any time, and the copies in and out.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes to read. Lives as long as the map (or buffer) it was borrowed from.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'m> {
    ptr: *const u8,
    len: usize,
    _map: PhantomData<&'m [u8]>,
}

// SAFETY: a `Slice` only reads, by copies that tolerate concurrent writers.
unsafe impl Send for Slice<'_> {}
// SAFETY: as above.
unsafe impl Sync for Slice<'_> {}

impl<'m> Slice<'m> {
    /// # Safety
    /// `ptr..ptr + len` must stay mapped and readable for `'m`.
    pub(crate) unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, _map: PhantomData }
    }

    /// Our own bytes, lent as if they were a guest's.
    #[must_use]
    pub fn from_bytes(bytes: &'m [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), _map: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes from `offset` on, at most `len` of them; empty past the end.
    #[must_use]
    #[inline]
    pub fn sub(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        // SAFETY: offset <= self.len, so the result lies within (or just past) the borrowed range.
        let ptr = unsafe { self.ptr.add(offset) };
        Self { ptr, len, _map: PhantomData }
    }

    /// Copies the first bytes out into `dst`; returns how many (the shorter of the two lengths).
    #[inline]
    pub fn read(&self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: both ranges hold at least n bytes; `dst` is exclusively ours, so they don't overlap.
        unsafe { copy(self.ptr, dst.as_mut_ptr(), n) };
        compiler_fence(Ordering::SeqCst);
        n
    }

    /// Copies out exactly `N` bytes, once; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub fn read_array<const N: usize>(&self) -> Option<[u8; N]> {
        if self.len < N {
            return None;
        }
        let mut out = [0; N];
        self.read(&mut out);
        Some(out)
    }

    /// Asks the CPU to fetch the first cache line.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_read(self.ptr);
    }

    /// Address and length, for system calls that gather (`writev`). The kernel copies from it while
    /// the borrow lives.
    #[must_use]
    pub fn as_raw(&self) -> (*const u8, usize) {
        (self.ptr, self.len)
    }
}

/// Bytes to write. Writers of one range must be serialised by their owner (a port's receive-side lock).
#[derive(Debug)]
pub struct SliceMut<'m> {
    ptr: *mut u8,
    len: usize,
    _map: PhantomData<&'m mut [u8]>,
}

// SAFETY: writes go by plain copies into memory that others may read or write; no reference escapes.
unsafe impl Send for SliceMut<'_> {}

impl<'m> SliceMut<'m> {
    /// # Safety
    /// `ptr..ptr + len` must stay mapped and writable for `'m`.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, _map: PhantomData }
    }

    /// Our own buffer, written as if it were a guest's.
    #[must_use]
    pub fn from_bytes(bytes: &'m mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), _map: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `src` at `offset`; returns how many bytes fitted.
    #[inline]
    pub fn write(&mut self, offset: usize, src: &[u8]) -> usize {
        let offset = offset.min(self.len);
        let n = src.len().min(self.len - offset);
        // SAFETY: offset + n <= self.len; `src` is our own memory, never inside a guest's mapping.
        unsafe { copy(src.as_ptr(), self.ptr.add(offset), n) };
        n
    }

    /// Copies `src` to `offset`, guest memory to guest memory; returns how many bytes fitted.
    ///
    /// The two may overlap when a hostile guest maps one file twice: the result is then garbage in
    /// that guest's own memory, and nothing else.
    #[inline]
    pub fn write_from(&mut self, offset: usize, src: Slice<'_>) -> usize {
        let offset = offset.min(self.len);
        let n = src.len.min(self.len - offset);
        // SAFETY: both ranges hold n bytes; `ptr::copy` allows overlap.
        unsafe { ptr::copy(src.ptr, self.ptr.add(offset), n) };
        n
    }

    /// Fetches the first cache line with the intent to write.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_write(self.ptr);
    }
}

/// Copies small runs by overlapping moves instead of a call: most frames' heads are 60 to 128 bytes.
///
/// # Safety
/// As `ptr::copy_nonoverlapping`, except that concurrent writers to `src` are tolerated: the bytes
/// are then any mixture, which every caller treats as untrusted.
#[inline]
unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    type W32 = [u64; 4];
    type W16 = [u64; 2];
    // SAFETY: each arm reads and writes only within 0..n, its bounds being those of the match.
    unsafe {
        match n {
            33..=64 => {
                let a = src.cast::<W32>().read_unaligned();
                let b = src.add(n - 32).cast::<W32>().read_unaligned();
                dst.cast::<W32>().write_unaligned(a);
                dst.add(n - 32).cast::<W32>().write_unaligned(b);
            }
            65..=128 => {
                let a = src.cast::<W32>().read_unaligned();
                let b = src.add(32).cast::<W32>().read_unaligned();
                let c = src.add(n - 64).cast::<W32>().read_unaligned();
                let d = src.add(n - 32).cast::<W32>().read_unaligned();
                dst.cast::<W32>().write_unaligned(a);
                dst.add(32).cast::<W32>().write_unaligned(b);
                dst.add(n - 64).cast::<W32>().write_unaligned(c);
                dst.add(n - 32).cast::<W32>().write_unaligned(d);
            }
            16..=32 => {
                let a = src.cast::<W16>().read_unaligned();
                let b = src.add(n - 16).cast::<W16>().read_unaligned();
                dst.cast::<W16>().write_unaligned(a);
                dst.add(n - 16).cast::<W16>().write_unaligned(b);
            }
            8..=15 => {
                let a = src.cast::<u64>().read_unaligned();
                let b = src.add(n - 8).cast::<u64>().read_unaligned();
                dst.cast::<u64>().write_unaligned(a);
                dst.add(n - 8).cast::<u64>().write_unaligned(b);
            }
            _ => ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// Asks the CPU to fetch the cache line of one of our own values.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_read(ptr::from_ref(value).cast());
}

#[inline]
fn prefetch_read(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults and changes no state a program can see.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[inline]
fn prefetch_write(p: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; PREFETCHW is a no-op on CPUs without it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Empties a vector of slices and gives its storage to another borrow, so that the data path need
/// not allocate for each batch.
#[must_use]
pub fn recycle<'b>(mut v: Vec<Slice<'_>>) -> Vec<Slice<'b>> {
    v.clear();
    let mut v = std::mem::ManuallyDrop::new(v);
    // SAFETY: `Slice<'a>` and `Slice<'b>` differ only in a lifetime, so layout and allocation agree,
    // and the vector is empty: no slice outlives its borrow.
    unsafe { Vec::from_raw_parts(v.as_mut_ptr().cast(), 0, v.capacity()) }
}
