//! The memory that a program shares with the library: one region for all ports, so that a buffer's
//! index means the same in every ring.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::{c_int, iovec};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Bytes of a buffer, as netmap's.
pub(crate) const BUFFER: usize = 2048;
/// Buffers of the process. Only those that were touched take memory.
pub(crate) const BUFFERS: u32 = 1 << 16;
/// Indexes below it are nobody's, as netmap's.
pub(crate) const FIRST: u32 = 2;
/// Bytes for what ports have beside buffers.
const CONTROL: usize = 16 << 20;
/// Blocks begin at a multiple of this (NM_CACHE_ALIGN).
pub(crate) const ALIGN: usize = 128;

/// The region. Everything in it is plain numbers, which the program may change at any time: words
/// are read and written by atomics, buffers copied as bytes.
pub(crate) struct Region {
    base: NonNull<u8>,
    free: Mutex<Free>,
}

// SAFETY: `base` is a mapping that stays for the life of the process; the rest is behind a lock.
unsafe impl Send for Region {}
// SAFETY: as above; all accesses through a shared reference are atomic or byte copies.
unsafe impl Sync for Region {}

/// What nobody has.
struct Free {
    /// Offset and length of blocks in the first part.
    blocks: Vec<(usize, usize)>,
    buffers: Vec<u32>,
    /// Of buffers: handed out.
    taken: Vec<bool>,
}

impl Free {
    fn take(&mut self, most: usize) -> Vec<u32> {
        let at = self.buffers.len().saturating_sub(most);
        let taken = self.buffers.split_off(at);
        for index in &taken {
            self.taken[*index as usize] = true;
        }
        taken
    }
}

/// The one there is.
///
/// # Errors
/// ENOMEM when there is no address space.
pub(crate) fn region() -> Result<&'static Region, Errno> {
    static REGION: OnceLock<Option<Region>> = OnceLock::new();
    REGION.get_or_init(Region::new).as_ref().ok_or(Errno::NOMEM)
}

impl Region {
    pub(crate) const BYTES: usize = CONTROL + BUFFER * BUFFERS as usize;

    fn new() -> Option<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), Self::BYTES, protection, flags) };
        let free = Free {
            blocks: vec![(0, CONTROL)],
            buffers: (FIRST..BUFFERS).rev().collect(),
            taken: vec![false; BUFFERS as usize],
        };
        Some(Self { base: NonNull::new(base.ok()?.cast())?, free: Mutex::new(free) })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the program.
    pub(crate) fn pointer(&self, offset: usize) -> *mut u8 {
        assert!(offset < Self::BYTES, "an offset in the region");
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// A block of `bytes`, all zero; its offset.
    pub(crate) fn take_block(&self, bytes: usize) -> Option<usize> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let mut free = self.free();
        let at = free.blocks.iter().position(|(_, len)| *len >= bytes)?;
        let (offset, len) = free.blocks[at];
        if len == bytes {
            free.blocks.remove(at);
        } else {
            free.blocks[at] = (offset + bytes, len - bytes);
        }
        drop(free);
        // SAFETY: the block is inside the mapping, and nobody else's since it was taken.
        unsafe { ptr::write_bytes(self.pointer(offset), 0, bytes) };
        Some(offset)
    }

    /// Gives one back; neighbours become one.
    pub(crate) fn give_block(&self, offset: usize, bytes: usize) {
        let mut free = self.free();
        free.blocks.push((offset, bytes.next_multiple_of(ALIGN)));
        free.blocks.sort_unstable();
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for &(offset, len) in &free.blocks {
            match joined.last_mut() {
                Some(last) if last.0 + last.1 == offset => last.1 += len,
                _ => joined.push((offset, len)),
            }
        }
        free.blocks = joined;
    }

    /// `count` buffers, or none.
    pub(crate) fn take_buffers(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = self.free();
        (count <= free.buffers.len()).then(|| free.take(count))
    }

    /// `count` buffers, or as many as there are.
    pub(crate) fn take_some_buffers(&self, count: usize) -> Vec<u32> {
        self.free().take(count)
    }

    /// Gives back those that a port's rings hold at its end. An index that the program has written
    /// twice counts once, and one that is nobody's not at all.
    pub(crate) fn give_buffers(&self, indexes: impl IntoIterator<Item = u32>) {
        let mut free = self.free();
        for index in indexes {
            let taken = free.taken.get_mut(index as usize);
            if taken.is_some_and(|taken| std::mem::replace(taken, false)) {
                free.buffers.push(index);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn free_buffers(&self) -> usize {
        self.free().buffers.len()
    }

    fn place<T>(&self, offset: usize) -> *mut T {
        let whole = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= Self::BYTES);
        assert!(whole && offset.is_multiple_of(align_of::<T>()), "a word in the region");
        self.pointer(offset).cast()
    }

    pub(crate) fn word16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the mapping and aligned (`place`); the program uses it as a plain word of
        // the same size.
        unsafe { AtomicU16::from_ptr(self.place(offset)) }
    }

    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.place(offset)) }
    }

    pub(crate) fn set64(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.place(offset)) }.store(value, Ordering::Relaxed);
    }

    /// Offset of a buffer.
    ///
    /// # Panics
    /// When there is no such buffer.
    pub(crate) fn buffer(index: u32) -> usize {
        assert!(is_buffer(index), "the index of a buffer");
        CONTROL + index as usize * BUFFER
    }

    /// Offset of buffer 0.
    pub(crate) const fn buffers() -> usize {
        CONTROL
    }

    /// Copies from a buffer. A program that writes it meanwhile gets mixed bytes sent.
    pub(crate) fn read(&self, index: u32, bytes: &mut [u8]) {
        assert!(bytes.len() <= BUFFER, "a part of a buffer");
        let from = self.pointer(Self::buffer(index));
        // SAFETY: the buffer is inside the mapping; `bytes` is not, as we alone make references
        // into it, and this makes none.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies into a buffer.
    pub(crate) fn write(&self, index: u32, bytes: &[u8]) {
        assert!(bytes.len() <= BUFFER, "a part of a buffer");
        let to = self.pointer(Self::buffer(index));
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Reads a message into a buffer; how long it is, which may be more than was read.
    pub(crate) fn receive(&self, index: u32, from: BorrowedFd<'_>) -> Result<usize, Errno> {
        let mut more = [0_u8; 1];
        let parts = [
            iovec { iov_base: self.pointer(Self::buffer(index)).cast(), iov_len: BUFFER },
            iovec { iov_base: more.as_mut_ptr().cast(), iov_len: more.len() },
        ];
        // SAFETY: a whole buffer, inside the mapping, and an array of ours.
        let len = unsafe { libc::readv(from.as_raw_fd(), parts.as_ptr(), 2) };
        usize::try_from(len).map_err(|_| last_error())
    }

    /// Writes one message of parts of buffers, each an index and a length; how long it is.
    ///
    /// # Panics
    /// When there is no such buffer, or it is shorter.
    pub(crate) fn send(
        &self,
        parts: impl IntoIterator<Item = (u32, usize)>,
        to: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let parts = parts.into_iter().map(|(index, len)| {
            assert!(len <= BUFFER, "a part of a buffer");
            iovec { iov_base: self.pointer(Self::buffer(index)).cast(), iov_len: len }
        });
        let parts: Vec<_> = parts.collect();
        let count = c_int::try_from(parts.len()).map_err(|_| Errno::INVAL)?;
        // SAFETY: parts of buffers, inside the mapping, which the kernel only reads.
        let len = unsafe { libc::writev(to.as_raw_fd(), parts.as_ptr(), count) };
        usize::try_from(len).map_err(|_| last_error())
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// May a slot have this index?
pub(crate) fn is_buffer(index: u32) -> bool {
    (FIRST..BUFFERS).contains(&index)
}
