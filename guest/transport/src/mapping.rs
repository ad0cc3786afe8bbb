//! Memory that another party writes at the same time: a mapped file, or pages of a device.
//!
//! No Rust reference to plain bytes of it is ever made. Words are reached as atomics, bodies are
//! copied in and out, and registers of a device are loaded and stored one at a time.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst, fence};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Width;

/// A mapping, readable and writable. Offsets count from the beginning of the part that it was
/// narrowed to, which is all of it at first.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// What is unmapped in the end.
    whole: (NonNull<u8>, usize),
}

// SAFETY: the mapping is never moved, is unmapped only in Drop, and is reached only through
// atomics, raw copies and volatile accesses, so it may be used from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of `file` from `offset` on, shared with whoever else maps it.
    pub(crate) fn shared(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        Self::new(Some((file, offset)), len, MapFlags::SHARED)
    }

    /// The first `len` bytes of `file`, shared, with all pages there from the beginning.
    pub(crate) fn populated(file: &File, len: usize) -> io::Result<Self> {
        Self::new(Some((file, 0)), len, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// `len` bytes of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Self::new(None, len, MapFlags::PRIVATE)
    }

    fn new(file: Option<(&File, u64)>, len: usize, flags: MapFlags) -> io::Result<Self> {
        let (anywhere, prot) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            match file {
                Some((file, at)) => rustix::mm::mmap(anywhere, len, prot, flags, file, at)?,
                None => rustix::mm::mmap_anonymous(anywhere, len, prot, flags)?,
            }
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { base, len, whole: (base, len) })
    }

    /// Only `len` bytes from `start` on.
    ///
    /// # Panics
    /// When they leave the mapping: the caller has just found them there.
    pub(crate) fn narrow(mut self, start: usize, len: usize) -> Self {
        (self.base, self.len) = (self.at(start, len), len);
        self
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Panics
    /// When the range leaves the mapping: all offsets are the driver's own, so that is a bug of it.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} leave a mapping of {} bytes", self.len);
        // SAFETY: offset <= len of the mapping, so the pointer stays within it (or one past its end
        // for 0 bytes).
        unsafe { self.base.add(offset) }
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len()).as_ptr();
        // SAFETY: `to` has room for bytes.len() bytes of the mapping, which no Rust reference to
        // bytes ever covers, so it cannot overlap with `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Fills `bytes` from `offset` on. The device may write at the same time: the copy is a
    /// snapshot.
    ///
    /// # Panics
    /// When the range leaves the mapping.
    #[inline]
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len()).as_ptr();
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// All of it as 32-bit words.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU32] {
        debug_assert!(self.base.cast::<AtomicU32>().is_aligned());
        // SAFETY: `len` bytes lie behind `base`, which is aligned as files are mapped page by page,
        // until Drop, which needs `self` for itself; atomics are valid for any bits, and may be
        // changed by others at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 4) }
    }

    /// Loads a register of a device, by one access that is as wide as the register. What the device
    /// wrote to memory before it answered is seen afterwards.
    ///
    /// # Panics
    /// When there is no register at `offset`.
    #[inline]
    pub(crate) fn load(&self, offset: u32, width: Width) -> u32 {
        let at = self.register(offset, width);
        // SAFETY: `at` lies inside the mapping and is aligned, as `register` has checked.
        let value = unsafe {
            match width {
                Width::One => at.read_volatile().into(),
                Width::Two => u16::from_le(at.cast::<u16>().read_volatile()).into(),
                Width::Four => u32::from_le(at.cast::<u32>().read_volatile()),
            }
        };
        fence(SeqCst);
        value
    }

    /// Stores to a register of a device, by one access. What was stored to memory before is seen by
    /// the device that takes it.
    ///
    /// # Panics
    /// When there is no register at `offset`.
    #[inline]
    pub(crate) fn store(&self, offset: u32, width: Width, value: u32) {
        let at = self.register(offset, width);
        let [low, high, ..] = value.to_le_bytes();
        fence(SeqCst);
        // SAFETY: as in `load`.
        unsafe {
            match width {
                Width::One => at.write_volatile(low),
                Width::Two => at.cast::<u16>().write_volatile(u16::from_ne_bytes([low, high])),
                Width::Four => at.cast::<u32>().write_volatile(value.to_le()),
            }
        }
    }

    #[inline]
    fn register(&self, offset: u32, width: Width) -> *mut u8 {
        let at = self.at(offset as usize, width as usize).as_ptr();
        assert!((at as usize).is_multiple_of(width as usize), "register {offset:#x}");
        at
    }

    /// Shows other pages of the file, each `page` bytes long: the first ones are `order` from now
    /// on.
    ///
    /// # Errors
    /// Whatever `mmap(2)` reports; the mapping is of no use then.
    pub(crate) fn reorder(&mut self, file: &File, page: usize, order: &[usize]) -> io::Result<()> {
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        for (at, from) in order.iter().enumerate() {
            let place = self.at(at * page, page).as_ptr().cast();
            // SAFETY: it replaces pages inside our own mapping, which nothing borrows: `self` is
            // borrowed exclusively, and views are made of a `Ram` only, which the mapping is not
            // yet.
            unsafe { rustix::mm::mmap(place, page, prot, flags, file, (from * page) as u64)? };
        }
        Ok(())
    }

    /// Makes it memory for a device: transparent huge pages if there are any, all there, not
    /// swapped, and not copied for children (else the birth of a child would move the parent's next
    /// store to another page than the device's).
    pub(crate) fn lock(&self) -> io::Result<()> {
        use rustix::mm::{Advice, madvise, mlock};
        let (at, len) = (self.base.as_ptr().cast(), self.len);
        // SAFETY: the range is our own mapping; neither advice loses anything in it.
        unsafe {
            // Without transparent huge pages in the kernel this fails, and small pages may do.
            let _ = madvise(at, len, Advice::LinuxHugepage);
            madvise(at, len, Advice::LinuxDontFork)?;
            mlock(at, len)?;
        }
        Ok(())
    }

    /// Puts pages of a range into a pipe, by reference, from the first one on; returns how many
    /// bytes of it are in the pipe now.
    pub(crate) fn splice(&self, pipe: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<usize> {
        let base = self.at(at, len).as_ptr().cast();
        let part = libc::iovec { iov_base: base, iov_len: len };
        // SAFETY: `part` outlives the call, which takes references to pages of our own mapping.
        let got = unsafe { libc::vmsplice(pipe.as_raw_fd(), &raw const part, 1, 0) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`. Whoever has a pointer into
        // it keeps it alive.
        let _ = unsafe { rustix::mm::munmap(self.whole.0.as_ptr().cast(), self.whole.1) };
    }
}
