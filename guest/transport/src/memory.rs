//! Guest RAM: one memfd, mapped shared, that the back end sees as two regions of guest-physical
//! memory.
//!
//! ```text
//! offset in the file   0 ............ low ..................... low + high
//!                      | rings         | buffers                |
//! guest-physical       0               4 GiB
//! ```
//! The hole between them is what a real machine with more than 3 GiB has, so a back end that mixes
//! up offsets, guest-physical and user addresses cannot pass. Rings live in the low region, buffers
//! in the high one.
//!
//! Inside a VM, where this crate is not the VMM, and without an IOMMU, it is one physically
//! contiguous run of pinned memory instead ([`crate::pci`]).
//!
//! The other side of this memory is another process: ring words are atomics ([`View`]) and bodies
//! are copied in and out.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::mapping::Mapping;
use crate::sys;

/// Where the second region starts for the guest.
pub const HIGH_GPA: u64 = 1 << 32;
const PAGE: usize = 4096;

/// One region as the memory table of the back end describes it. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Region {
    /// Guest-physical address.
    pub guest_phys: u64,
    pub size: u64,
    /// Address in this process: what vhost-user calls the user address; ring addresses are given in
    /// it.
    pub user_addr: u64,
    pub offset: u64,
}

/// Who owns the memory, and where a device sees it.
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
    mapping: Mapping,
    low: usize,
    backing: Backing,
}

impl Ram {
    /// RAM with `low` bytes for rings and `high` bytes for buffers, each rounded up to a page.
    pub fn new(low: usize, high: usize) -> io::Result<Arc<Self>> {
        let (low, len) = Self::sizes(low, high);
        let file = sys::sealed_memfd(len as u64)?;
        // Sealed against shrinking, so no access inside it can fault.
        let mapping = Mapping::populated(&file, len)?;
        Ok(Arc::new(Self { mapping, low, backing: Backing::Shared(file) }))
    }

    /// RAM with `low` bytes for rings and the rest for buffers, in the part of `mapping` that
    /// starts at `start` and lies in physical memory from `phys` on without a gap, for as long as
    /// `pins` are open.
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
        let backing = Backing::Pinned { phys, _pins: pins };
        Arc::new(Self { mapping: mapping.narrow(start, len), low, backing })
    }

    /// The lengths of the low region and of both.
    pub(crate) fn sizes(low: usize, high: usize) -> (usize, usize) {
        let low = low.max(1).next_multiple_of(PAGE);
        (low, low + high.max(1).next_multiple_of(PAGE))
    }

    /// Length of both regions together, in bytes.
    pub fn size(&self) -> usize {
        self.mapping.len()
    }

    /// Offset of the first byte for buffers: the length of the low region.
    pub fn buffers(&self) -> usize {
        self.low
    }

    /// The memfd behind the memory, for the memory table; -1 if there is none.
    pub fn raw_fd(&self) -> RawFd {
        match &self.backing {
            Backing::Shared(file) => file.as_raw_fd(),
            Backing::Pinned { .. } => -1,
        }
    }

    /// The guest-physical address of `offset`.
    #[inline]
    pub fn guest_phys(&self, offset: usize) -> u64 {
        match self.backing {
            Backing::Pinned { phys, .. } => phys + offset as u64,
            Backing::Shared(_) if offset < self.low => offset as u64,
            Backing::Shared(_) => HIGH_GPA + (offset - self.low) as u64,
        }
    }

    /// The user address of `offset`, as ring addresses are given to the back end.
    pub fn user_addr(&self, offset: usize) -> u64 {
        (self.mapping.address() + offset) as u64
    }

    /// The regions of the memory table.
    pub fn regions(&self) -> [Region; 2] {
        [(0, self.low), (self.low, self.size() - self.low)].map(|(offset, size)| Region {
            guest_phys: self.guest_phys(offset),
            size: size as u64,
            user_addr: self.user_addr(offset),
            offset: offset as u64,
        })
    }

    /// Copies `bytes` into the RAM at `offset`.
    ///
    /// # Panics
    /// When the range leaves the RAM.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.mapping.write(offset, bytes);
    }

    /// Copies from the RAM at `offset` into `bytes`. The device may write at the same time: the
    /// copy is a snapshot.
    ///
    /// # Panics
    /// When the range leaves the RAM.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.mapping.read(offset, bytes);
    }

    /// `count` words at `offset`.
    ///
    /// # Panics
    /// When they leave the RAM or are not aligned.
    pub fn view<T: Word>(self: &Arc<Self>, offset: usize, count: usize) -> View<T> {
        let words = self.mapping.at(offset, count * size_of::<T>()).cast();
        assert!(words.is_aligned(), "a view at {offset} is not aligned");
        View { ram: Arc::clone(self), words, count }
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
    pub fn offset(&self) -> usize {
        self.words.as_ptr() as usize - self.ram.mapping.address()
    }
}

impl<T: Word> Deref for View<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `view` checked that count aligned words lie within the mapping, which `ram`
        // keeps; T is an atomic integer, valid for any bits, and may be changed by others at any
        // time.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

/// Registers of a device in a file that its server shares: 32-bit words.
#[derive(Debug)]
pub struct SharedWords(Mapping);

impl SharedWords {
    /// Maps `bytes` of a file, from `offset` on; both are multiples of a page. A server that cuts
    /// the file short afterwards ends this process by SIGBUS: the driver trusts its device that
    /// far, as a VMM does.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is shorter or a range that is not made of pages; whatever
    /// `mmap(2)` reports.
    pub fn map(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let end = offset.checked_add(bytes);
        let page = PAGE as u64;
        let aligned = offset.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
        let len = file.metadata()?.len();
        match usize::try_from(bytes) {
            Ok(bytes) if aligned && end.is_some_and(|end| end <= len) => {
                Ok(Self(Mapping::shared(file, offset, bytes)?))
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU32];
    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        self.0.words()
    }
}

/// Hands out pieces of one range and never takes one back: rings and buffer pools live as long as
/// the RAM.
#[derive(Debug)]
pub struct Pool {
    next: usize,
    end: usize,
}

impl Pool {
    /// A pool over the offsets from `start` to `end`.
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
