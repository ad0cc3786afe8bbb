//! One file mapped into this process: length checked, sealed where possible, guarded against
//! SIGBUS.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::bytes::Bytes;
use crate::sigbus;

/// Why a file was not mapped, or a map not made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum MapError {
    #[error("a region of {size} bytes at offset {offset} is empty or does not fit")]
    BadSize { size: u64, offset: u64 },
    /// The file ends before the region does: touching the rest would be a SIGBUS.
    #[error(
        "the file has {file} bytes, the region needs {needed}: is the memory backend the right one?"
    )]
    ShortFile { file: u64, needed: u64 },
    #[error("regions overlap at guest address {0:#x}")]
    Overlap(u64),
    #[error("{0} regions are more than the {max} a map may have", max = crate::Map::MAX_REGIONS)]
    TooMany(usize),
    #[error("all {0} guarded mappings are in use")]
    NoGuard(usize),
    #[error(
        "{size} bytes more would make all mappings exceed the {most} that they may have together"
    )]
    NoAddresses { size: u64, most: u64 },
    #[error("{call} failed")]
    Sys { call: &'static str, source: io::Error },
}

/// Bytes of all mappings together, at most: half of what a process can address. Sparse files cost a
/// peer nothing, but when the addresses are used up, the next allocation ends the process for
/// everybody.
pub(crate) const MOST: u64 = 64 << 40;

static MAPPED: AtomicU64 = AtomicU64::new(0);

/// A share of [`MOST`]; given back when dropped.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn new(size: u64) -> Option<Self> {
        let take = |used: u64| used.checked_add(size).filter(|sum| *sum <= MOST);
        MAPPED.try_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Self(size))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The size of the pages in which a file is mapped. For files of huge pages it is theirs, which is
/// a property of their file system and never changes; 4,096 for all others.
pub fn page_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // Memory has seals. `fstatfs` of any other file may ask a FUSE daemon, which need not answer.
    if rustix::fs::fcntl_get_seals(fd).is_err() {
        return Ok(PAGE);
    }
    let system = rustix::fs::fstatfs(fd)?;
    let huge = system.f_type == libc::HUGETLBFS_MAGIC;
    Ok(u64::try_from(system.f_bsize).ok().filter(|_| huge).unwrap_or(PAGE))
}

const PAGE: u64 = 4096; // The page size that every file but those of huge pages can map at.

/// A mapped part of a file. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    bytes: Bytes<'static>,
    guard: sigbus::Guard,
    /// Given back last, after the unmapping.
    _share: Share,
}

impl Mapping {
    /// Maps `size` bytes of `fd` from `offset`, shared, after checking that the file is long
    /// enough. Of a file of huge pages whole pages are mapped: the mapping is then longer than
    /// `size`. No length depends on that of the file, which its owner can change at any moment.
    ///
    /// The file is sealed against shrinking where its owner allows it (memfd with `ALLOW_SEALING`).
    ///
    /// # Errors
    /// [`MapError::BadSize`], [`MapError::ShortFile`], [`MapError::NoAddresses`],
    /// [`MapError::NoGuard`], or the system call that failed.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, size: u64) -> Result<Self, MapError> {
        let bad = MapError::BadSize { size, offset };
        seal(fd);
        let page = page_size(fd).map_err(|source| MapError::Sys { call: "fstatfs", source })?;
        let mapped = size.checked_next_multiple_of(page);
        let size = if page > PAGE { mapped } else { Some(size) };
        let (Some(mapped), Some(size)) = (mapped, size) else { return Err(bad) };
        let (Some(needed), Ok(len)) = (offset.checked_add(size), usize::try_from(size)) else {
            return Err(bad);
        };
        if len == 0 || mapped > isize::MAX as u64 || i64::try_from(offset).is_err() {
            return Err(bad);
        }
        let file = rustix::fs::fstat(fd).map_err(sys("fstat"))?.st_size.cast_unsigned();
        if file < needed {
            return Err(MapError::ShortFile { file, needed });
        }
        let share = Share::new(mapped).ok_or(MapError::NoAddresses { size, most: MOST })?;
        let bytes = map_shared(fd, offset, len).map_err(sys("mmap"))?;
        let guard = guarded(bytes).inspect_err(|_| unmap(bytes))?;
        Ok(Self { bytes, guard, _share: share })
    }

    /// `len` bytes from `offset` on, if there are that many.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Option<Bytes<'_>> {
        self.bytes.get(usize::try_from(offset).ok()?, usize::try_from(len).ok()?)
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never true: an empty mapping is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True once the file shrank under us and its bytes were replaced by zeros.
    pub fn poisoned(&self) -> bool {
        self.guard.poisoned()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard.release();
        unmap(self.bytes);
    }
}

/// `F_SEAL_SHRINK` if the owner allows sealing: afterwards nobody can truncate the file. Failing is
/// normal (files in /dev/shm, hugetlbfs, Cloud Hypervisor's memfd). Then [`fault`] is the answer.
fn seal(fd: BorrowedFd<'_>) {
    let _ = rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK);
}

fn map_shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> rustix::io::Result<Bytes<'static>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing. It stays until
    // `unmap`, which nothing that borrows from the `Mapping` outlives.
    unsafe {
        let base = rustix::mm::mmap(ptr::null_mut(), len, prot, flags, fd, offset)?;
        // A core dump is not to hold the memory of VMs, nor is a child. (The process that forks
        // keepers is one if it had to be made anew.) It cannot fail here, and if it did, the
        // mapping would be as good.
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            let _ = rustix::mm::madvise(base, len, advice);
        }
        Ok(Bytes::new(base.cast(), len))
    }
}

fn guarded(bytes: Bytes<'_>) -> Result<sigbus::Guard, MapError> {
    let guard = sigbus::guard(bytes.as_ptr().addr(), bytes.len());
    let mut guard = guard.ok_or(MapError::NoGuard(sigbus::SLOTS))?;
    if let Err(source) = guard.allocate_page() {
        guard.release();
        return Err(MapError::Sys { call: "fallocate", source });
    }
    Ok(guard)
}

fn unmap(bytes: Bytes<'static>) {
    // SAFETY: the run is what `map_shared` gave, and nobody borrows from it: its `Mapping` is being
    // dropped, or was never made.
    let _ = unsafe { rustix::mm::munmap(bytes.as_ptr().cast(), bytes.len()) };
}

fn sys(call: &'static str) -> impl Fn(Errno) -> MapError {
    move |errno| MapError::Sys { call, source: errno.into() }
}
