//! Guest RAM: one memfd, mapped shared, that the back end sees as two regions of guest-physical memory.
//!
//! ```text
//! offset in the file   0 ............ low ..................... low + high
//!                      | rings         | buffers                |
//! guest-physical       0               4 GiB
//! ```
//! The hole between them is what a real machine with more than 3 GiB has, so a back end that mixes up offsets,
//! guest-physical and user addresses cannot pass. Rings live in the low region, buffers in the high one.
//!
//! Inside a VM, where this crate is not the VMM, and without an IOMMU, it is one physically contiguous run of pinned memory
//! instead ([`crate::pci`]).
//!
//! The other side of this memory is another process. So no Rust reference to plain bytes of it is ever made: ring words
//! are atomics ([`View`]) and bodies are copied in and out.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::sys;

/// Where the second region starts for the guest.
pub const HIGH_GPA: u64 = 1 << 32;
const PAGE: usize = 4096;

/// One region as the memory table of the back end describes it. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address.
    pub guest_phys: u64,
    /// Length.
    pub size: u64,
    /// Address in this process: what vhost-user calls the user address; ring addresses are given in it.
    pub user_addr: u64,
    /// Offset in the file.
    pub offset: u64,
}

/// Whose the memory is, and where a device sees it.
#[derive(Debug)]
enum Backing {
    /// A memfd that another process maps, in two regions.
    Shared(File),
    /// Our own pages, pinned in a row by what is kept open.
    Pinned { phys: u64, _pins: Vec<OwnedFd> },
}

/// The mapped memory. Dropped, it is unmapped; the [`View`]s keep it alive.
#[derive(Debug)]
pub struct Ram {
    base: NonNull<u8>,
    low: usize,
    len: usize,
    backing: Backing,
    _mapping: Mapping,
}

// SAFETY: the mapping is never moved, is unmapped only in Drop, and is reached only through atomics or raw copies, so it may
// be used from any thread.
unsafe impl Send for Ram {}
// SAFETY: as for Send.
unsafe impl Sync for Ram {}

impl Ram {
    /// RAM with `low` bytes for rings and `high` bytes for buffers, each rounded up to a page.
    ///
    /// # Errors
    /// Whatever creating, sealing or mapping the memfd reports.
    pub fn new(low: usize, high: usize) -> io::Result<Arc<Self>> {
        let (low, len) = Self::sizes(low, high);
        let file = sys::sealed_memfd(len as u64)?;
        // Sealed against shrinking, so no access inside it can fault.
        let mapping = Mapping::new(Some(&file), len, libc::MAP_SHARED | libc::MAP_POPULATE)?;
        let (base, backing) = (mapping.base, Backing::Shared(file));
        Ok(Arc::new(Self { base, low, len, backing, _mapping: mapping }))
    }

    /// RAM with `low` bytes for rings and the rest for buffers, in the part of `mapping` that starts at `start` and lies in
    /// physical memory from `phys` on without a gap, for as long as `pins` are open.
    ///
    /// # Panics
    /// When the part leaves the mapping: the caller has just found it there.
    pub(crate) fn pinned(
        mapping: Mapping,
        (start, low, high): (usize, usize, usize),
        phys: u64,
        pins: Vec<OwnedFd>,
    ) -> Arc<Self> {
        let (low, len) = Self::sizes(low, high);
        assert!(start + len <= mapping.len, "{len} bytes at {start} leave the mapping");
        // SAFETY: just checked to lie inside the mapping.
        let base = unsafe { mapping.base.add(start) };
        let backing = Backing::Pinned { phys, _pins: pins };
        Arc::new(Self { base, low, len, backing, _mapping: mapping })
    }

    /// The lengths of the low region and of both.
    pub(crate) fn sizes(low: usize, high: usize) -> (usize, usize) {
        let low = low.max(1).next_multiple_of(PAGE);
        (low, low + high.max(1).next_multiple_of(PAGE))
    }

    /// Length of both regions together, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len
    }

    /// Offset of the first byte for buffers: the length of the low region.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.low
    }

    /// The memfd behind the memory, for the memory table; -1 if there is none.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        match &self.backing {
            Backing::Shared(file) => file.as_raw_fd(),
            Backing::Pinned { .. } => -1,
        }
    }

    /// The guest-physical address of `offset`.
    #[must_use]
    pub fn guest_phys(&self, offset: usize) -> u64 {
        match self.backing {
            Backing::Pinned { phys, .. } => phys + offset as u64,
            Backing::Shared(_) if offset < self.low => offset as u64,
            Backing::Shared(_) => HIGH_GPA + (offset - self.low) as u64,
        }
    }

    /// The user address of `offset`, as ring addresses are given to the back end.
    #[must_use]
    pub fn user_addr(&self, offset: usize) -> u64 {
        (self.base.as_ptr() as usize + offset) as u64
    }

    /// The regions of the memory table.
    #[must_use]
    pub fn regions(&self) -> [Region; 2] {
        [(0, self.low), (self.low, self.len - self.low)].map(|(offset, size)| Region {
            guest_phys: self.guest_phys(offset),
            size: size as u64,
            user_addr: self.user_addr(offset),
            offset: offset as u64,
        })
    }

    /// # Panics
    /// When the range leaves the RAM: all offsets are the driver's own, so that is a bug of the driver.
    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} leave the guest's RAM");
        // SAFETY: offset <= len of the mapping, so the pointer stays within it (or one past its end for len 0).
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies `bytes` into the RAM at `offset`.
    ///
    /// # Panics
    /// When the range leaves the RAM.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: `to` has room for bytes.len() bytes of the mapping, which no Rust reference to bytes ever covers, so
        // it cannot overlap with `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies from the RAM at `offset` into `bytes`. The device may write at the same time: the copy is a snapshot.
    ///
    /// # Panics
    /// When the range leaves the RAM.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.range(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// `count` words at `offset`.
    ///
    /// # Panics
    /// When they leave the RAM or are not aligned.
    #[must_use]
    pub fn view<T: Word>(self: &Arc<Self>, offset: usize, count: usize) -> View<T> {
        let at = self.range(offset, count * size_of::<T>());
        let words = NonNull::new(at.cast::<T>()).expect("a mapping is never at zero");
        assert!(words.is_aligned(), "a view at {offset} is not aligned");
        View { ram: Arc::clone(self), words, count }
    }
}

/// A mapping, readable and writable.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it only owns the address range; whoever reaches into it answers for that.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of `file`, or of nothing, at an address of the kernel's choice.
    ///
    /// # Errors
    /// Whatever `mmap(2)` reports.
    pub(crate) fn new(file: Option<&File>, len: usize, flags: libc::c_int) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, len })
    }

    /// Its first byte's address.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Shows other pages of the file, each `page` bytes long: the first ones are `order` from now on.
    ///
    /// # Errors
    /// Whatever `mmap(2)` reports; the mapping is good for nothing then.
    pub(crate) fn reorder(&mut self, file: &File, page: usize, order: &[usize]) -> io::Result<()> {
        assert!(order.len() * page <= self.len, "more pages than were mapped");
        for (at, from) in order.iter().enumerate() {
            let offset = libc::off_t::try_from(from * page).map_err(io::Error::other)?;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
            let fd = file.as_raw_fd();
            // SAFETY: it replaces pages inside our own mapping, which nothing borrows: `self` is borrowed exclusively, and no
            // reference into the mapping is made before it becomes a `Ram`.
            let done = unsafe {
                libc::mmap(self.base.as_ptr().add(at * page).cast(), page, prot, flags, fd, offset)
            };
            if done == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`; a Ram keeps it, and every View holds an Arc of that.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The words that may be shared with a device.
pub trait Word: sealed::Sealed {}
impl Word for AtomicU16 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}
mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AtomicU16 {}
    impl Sealed for super::AtomicU32 {}
    impl Sealed for super::AtomicU64 {}
}

/// An array of atomic words inside the RAM.
#[derive(Debug)]
pub struct View<T: Word> {
    ram: Arc<Ram>,
    words: NonNull<T>,
    count: usize,
}

// SAFETY: a view only hands out shared references to atomics in a mapping that its Arc keeps alive.
unsafe impl<T: Word> Send for View<T> {}
// SAFETY: as for Send.
unsafe impl<T: Word> Sync for View<T> {}

impl<T: Word> View<T> {
    /// Where it lies in the RAM.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.words.as_ptr() as usize - self.ram.base.as_ptr() as usize
    }
}

impl<T: Word> Deref for View<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `view` checked that count aligned words lie within the mapping, which `ram` keeps; T is an atomic
        // integer, valid for any bits, and may be changed by others at any time.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

/// Registers of a device in a file that its server shares: 32-bit words.
#[derive(Debug)]
pub struct SharedWords {
    base: NonNull<AtomicU32>,
    bytes: usize,
}

// SAFETY: only shared references to atomics in a mapping that lives as long as this are handed out.
unsafe impl Send for SharedWords {}
// SAFETY: as for Send.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps `bytes` of a file, from `offset` on; both are multiples of a page. A server that cuts the file short afterwards ends
    /// this process by SIGBUS: the driver trusts its device that far, as a VMM does.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is shorter or a range that is no page; whatever `mmap(2)` reports.
    pub fn map(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let end = offset.checked_add(bytes);
        let page = PAGE as u64;
        let aligned = offset.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
        let len = file.metadata()?.len();
        let (Ok(size), Ok(start), true) = (
            usize::try_from(bytes),
            libc::off_t::try_from(offset),
            aligned && end.is_some_and(|end| end <= len),
        ) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice, inside the file.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, prot, flags, fd, start) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, bytes: size })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU32];
    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `bytes` of the mapping lie behind the page-aligned `base` until Drop; atomics are valid for any bits, and
        // may be changed by others at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes / 4) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of the mapping made in `map`; every reference into it borrows self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Hands out pieces of one range, never takes one back: rings and buffer pools live as long as the RAM.
#[derive(Debug)]
pub struct Pool {
    next: usize,
    end: usize,
}

impl Pool {
    /// A pool over the offsets from `start` to `end`.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Self {
        Self { next: start, end }
    }

    /// The offset of `len` free bytes, aligned to `align` (a power of two).
    ///
    /// # Panics
    /// When the pool is used up: it was sized by the same code that takes from it.
    pub fn take(&mut self, len: usize, align: usize) -> usize {
        let at = self.next.next_multiple_of(align);
        assert!(at + len <= self.end, "pool of guest RAM is used up");
        self.next = at + len;
        at
    }
}
