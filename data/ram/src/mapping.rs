//! One file mapped into this process: length checked, sealed where possible, guarded against SIGBUS.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::fault;

/// Why a file was not mapped, or a map not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The region has no bytes, or its offset and size do not fit the address space.
    #[error("a region of {size} bytes at offset {offset} is empty or does not fit")]
    BadSize {
        /// Bytes asked for.
        size: u64,
        /// Offset in the file.
        offset: u64,
    },
    /// The file ends before the region does: touching the rest would be a SIGBUS.
    #[error(
        "the file has {file} bytes, the region needs {needed}: is the memory backend the right one?"
    )]
    ShortFile {
        /// Bytes the file has.
        file: u64,
        /// Bytes the region needs (offset + size).
        needed: u64,
    },
    /// Two regions of a map cover the same guest address.
    #[error("regions overlap at guest address {0:#x}")]
    Overlap(u64),
    /// More regions than a map may have.
    #[error("{0} regions are more than the {max} a map may have", max = crate::Map::MAX_REGIONS)]
    TooMany(usize),
    /// The process has too many mappings already to guard another one.
    #[error("all {0} guarded mappings are in use")]
    NoGuard(usize),
    /// All peers' mappings together would leave this process too few addresses.
    #[error(
        "{size} bytes more would make all mappings exceed the {most} that they may have together"
    )]
    NoAddresses {
        /// Bytes asked for.
        size: u64,
        /// Bytes of all mappings, at most.
        most: u64,
    },
    /// A system call failed.
    #[error("{call} failed")]
    Sys {
        /// Which call.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

/// Bytes of all mappings together, at most: half of what a process can address. Sparse files cost a peer nothing, but
/// when the addresses are used up, the next allocation ends the process for everybody.
const MOST: u64 = 64 << 40;

static MAPPED: AtomicU64 = AtomicU64::new(0);

/// A share of [`MOST`]; given back when dropped.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn new(size: u64) -> Option<Self> {
        let take = |used: u64| used.checked_add(size).filter(|sum| *sum <= MOST);
        MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Self(size))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A mapped part of a file. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    poisoned: Arc<AtomicBool>,
    guard: fault::Guard,
    /// Given back last, after the unmapping.
    _share: Share,
}

// SAFETY: `Mapping` only owns an address range; all access to its bytes goes through `Slice`,
// `SliceMut` and `Window`, which treat them as memory that others change at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a Rust reference into the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `fd` from `offset`, shared, after checking that the file is long enough.
    ///
    /// The file is sealed against shrinking where its owner allows it (memfd with `ALLOW_SEALING`).
    ///
    /// # Errors
    /// [`Error::BadSize`], [`Error::ShortFile`], or the failing system call.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, size: u64) -> Result<Self, Error> {
        let bad = Error::BadSize { size, offset };
        let (Some(needed), Ok(len), Ok(off)) =
            (offset.checked_add(size), usize::try_from(size), libc::off_t::try_from(offset))
        else {
            return Err(bad);
        };
        if len == 0 || len > isize::MAX as usize {
            return Err(bad);
        }
        seal(fd);
        let file = file_len(fd)?;
        if file < needed {
            return Err(Error::ShortFile { file, needed });
        }
        let share = Share::new(size).ok_or(Error::NoAddresses { size, most: MOST })?;
        let base = map_shared(fd, off, len)?;
        let poisoned = Arc::new(AtomicBool::new(false));
        let Some(guard) = fault::guard(base.as_ptr() as usize, len, &poisoned) else {
            unmap(base, len);
            return Err(Error::NoGuard(fault::SLOTS));
        };
        Ok(Self { base, len, poisoned, guard, _share: share })
    }

    /// First byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty mapping is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True once the file shrank under us and its bytes were replaced by zeros.
    #[must_use]
    pub fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard.release();
        unmap(self.base, self.len);
    }
}

/// `F_SEAL_SHRINK` if the owner allows sealing: afterwards nobody can truncate the file. Failing is
/// normal (files in /dev/shm, hugetlbfs, Cloud Hypervisor's memfd); then [`fault`] is the answer.
fn seal(fd: BorrowedFd<'_>) {
    // SAFETY: fcntl on a descriptor borrowed for the call; no memory is passed.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
}

fn file_len(fd: BorrowedFd<'_>) -> Result<u64, Error> {
    // SAFETY: an all-zero stat is a valid value of this plain C struct.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is writable and of the right type for the whole call.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut st) } != 0 {
        return Err(sys("fstat"));
    }
    Ok(u64::try_from(st.st_size).unwrap_or(0))
}

fn map_shared(fd: BorrowedFd<'_>, off: libc::off_t, len: usize) -> Result<NonNull<u8>, Error> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_raw_fd(), off) };
    if p == libc::MAP_FAILED {
        return Err(sys("mmap"));
    }
    NonNull::new(p.cast()).ok_or_else(|| sys("mmap"))
}

fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the range was mapped by `map_shared` and nobody borrows from it: `Mapping` is being
    // dropped, or was never made.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

fn sys(call: &'static str) -> Error {
    Error::Sys { call, source: io::Error::last_os_error() }
}
