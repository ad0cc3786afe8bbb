//! The system calls and the register window that only a PCI device needs.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::Width;
use crate::memory::{Mapping, Ram};

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Locks a file for this process; false when another one has it. The lock goes with the file.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes no pointers.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// A socket to the kernel's routing tables, connected to nobody: what is written goes to the kernel.
pub(super) fn rtnetlink() -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: the kernel has just returned `fd`; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A memfd made of 2 MiB huge pages.
pub(super) fn huge_memfd(len: usize) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    // SAFETY: the name is a literal with its terminating zero.
    let fd = check(unsafe { libc::memfd_create(c"vmlan-pci-ram".as_ptr(), flags) })?;
    // SAFETY: the kernel has just returned `fd`; nobody else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    Ok(file)
}

/// Gives a part of a memfd's memory back.
pub(super) fn punch(file: &File, offset: usize, len: usize) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: fallocate takes no pointers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }).map(drop)
}

/// Private memory for a device: transparent huge pages if there are any, all there, not swapped, and not copied for children
/// (else a child's birth would move the parent's next store to another page than the device's).
pub(super) fn device_memory(len: usize) -> io::Result<Mapping> {
    let mapping = Mapping::new(None, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)?;
    let at = mapping.address() as *mut libc::c_void;
    // SAFETY: the range is the whole of our own mapping; neither advice loses anything in it.
    unsafe {
        // Without transparent huge pages in the kernel this fails, and small pages may do.
        libc::madvise(at, len, libc::MADV_HUGEPAGE);
        check(libc::madvise(at, len, libc::MADV_DONTFORK))?;
        check(libc::mlock(at, len))?;
    }
    Ok(mapping)
}

/// Keeps the pages of a range where they are: a pipe that holds them does not let the kernel move them. Dropping the two
/// ends lets go.
pub(super) fn pin(mapping: &Mapping, start: usize, len: usize) -> io::Result<Vec<OwnedFd>> {
    assert!(start + len <= mapping.len(), "{len} bytes at {start} leave the mapping");
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: pipe2 writes two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just returned both; nobody else owns them.
    let ends = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let size = libc::c_int::try_from(len.next_power_of_two()).map_err(io::Error::other)?;
    // SAFETY: F_SETPIPE_SZ takes an int.
    check(unsafe { libc::fcntl(ends[1].as_raw_fd(), libc::F_SETPIPE_SZ, size) })?;
    let mut done = 0;
    while done < len {
        let base = (mapping.address() + start + done) as *mut libc::c_void;
        let part = libc::iovec { iov_base: base, iov_len: len - done };
        // SAFETY: `part` lies in our mapping (checked above) and outlives the call, which only takes references to pages.
        let got = unsafe { libc::vmsplice(ends[1].as_raw_fd(), &raw const part, 1, 0) };
        match usize::try_from(got) {
            Ok(got) if got > 0 => done += got,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(ends.into())
}

/// The registers. Loads and stores are volatile, as wide as the register, and never merged: each is one access of the device.
#[derive(Debug)]
pub(super) struct Window {
    base: NonNull<u8>,
    /// Where the registers begin in the mapping, and their bytes.
    skew: usize,
    bytes: usize,
}

// SAFETY: the mapping lives until Drop; accesses are volatile and the device's own business.
unsafe impl Send for Window {}

impl Window {
    /// Maps `bytes` of a device's file from `offset` on. A BAR that is shorter than a page begins `skew` bytes behind the beginning of its
    /// page.
    ///
    /// # Errors
    /// Whatever `mmap(2)` reports.
    pub fn map(file: &File, offset: u64, skew: usize, bytes: usize) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (fd, len) = (file.as_raw_fd(), skew + bytes);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, skew, bytes })
    }

    #[inline]
    fn at(&self, offset: u32, width: Width) -> *mut u8 {
        let (offset, width) = (offset as usize, width as usize);
        let inside = offset + width <= self.bytes && (self.skew + offset).is_multiple_of(width);
        assert!(inside, "register {offset:#x}");
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.base.as_ptr().add(self.skew + offset) }
    }

    /// Reads a register. What the device wrote to memory before it answered is seen afterwards.
    ///
    /// # Panics
    /// When there is no register at `offset`.
    #[inline]
    pub fn read(&self, offset: u32, width: Width) -> u32 {
        let at = self.at(offset, width);
        // SAFETY: `at` lies inside the mapping and is aligned, since the mapping is page by page.
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

    /// Writes a register. What was stored to memory before is seen by the device that takes it.
    ///
    /// # Panics
    /// When there is no register at `offset`.
    #[inline]
    pub fn write(&self, offset: u32, width: Width, value: u32) {
        let at = self.at(offset, width);
        let [low, high, ..] = value.to_le_bytes();
        fence(SeqCst);
        // SAFETY: as in `read`.
        unsafe {
            match width {
                Width::One => at.write_volatile(low),
                Width::Two => at.cast::<u16>().write_volatile(u16::from_ne_bytes([low, high])),
                Width::Four => at.cast::<u32>().write_volatile(value.to_le()),
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping made in `map`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.skew + self.bytes) };
    }
}

/// The requests of VFIO (`linux/vfio.h`) that take a number, or nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// Is there such a kind of IOMMU?
    CheckExtension = 0x3b65,
    /// Uses such a kind of IOMMU.
    SetIommu = 0x3b66,
}

/// # Errors
/// Whatever the request reports.
pub(super) fn vfio(file: &File, request: Request, number: u32) -> io::Result<i32> {
    let (request, number) = (request as libc::c_ulong, libc::c_ulong::from(number));
    // SAFETY: these requests take no pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request as _, number) })
}

/// Puts a group into a container.
///
/// # Errors
/// Whatever VFIO_GROUP_SET_CONTAINER reports.
pub(super) fn vfio_set_container(group: &File, container: &File) -> io::Result<()> {
    const SET_CONTAINER: libc::c_ulong = 0x3b68;
    let fd: libc::c_int = container.as_raw_fd();
    // SAFETY: the request reads one int.
    check(unsafe { libc::ioctl(group.as_raw_fd(), SET_CONTAINER as _, &raw const fd) }).map(drop)
}

/// The descriptor of a device in a group.
///
/// # Errors
/// Whatever VFIO_GROUP_GET_DEVICE_FD reports.
pub(super) fn vfio_device(group: &File, name: &std::ffi::CStr) -> io::Result<File> {
    const GET_DEVICE_FD: libc::c_ulong = 0x3b6a;
    // SAFETY: the request reads a string that ends in a zero.
    let fd = check(unsafe { libc::ioctl(group.as_raw_fd(), GET_DEVICE_FD as _, name.as_ptr()) })?;
    // SAFETY: the kernel has just returned `fd`; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The requests of VFIO that take a structure; each is 32-bit words, the first of which is its length in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Structure {
    /// Flags of a group.
    GroupStatus = 0x3b67,
    /// Size and place of a region.
    RegionInfo = 0x3b6c,
    /// How interrupts are delivered.
    SetIrqs = 0x3b6e,
}

/// Asks with `words`, whose first one this sets, and leaves the answer in them.
///
/// # Errors
/// Whatever the request reports.
pub(super) fn vfio_words<const N: usize>(
    file: &File,
    request: Structure,
    words: &mut [u32; N],
) -> io::Result<()> {
    let bytes = u32::try_from(size_of_val(words)).map_err(io::Error::other)?;
    // VFIO_GROUP_GET_STATUS writes two words, VFIO_DEVICE_GET_REGION_INFO eight, and VFIO_DEVICE_SET_IRQS reads what its first
    // word allows, beginning with five.
    assert!(N >= if matches!(request, Structure::GroupStatus) { 2 } else { 5 });
    words[0] = bytes;
    let request = request as libc::c_ulong;
    // SAFETY: the kernel reads and writes no more than words[0] bytes, which is what `words` has (a region's information needs
    // eight words, or is refused).
    check(unsafe { libc::ioctl(file.as_raw_fd(), request as _, words.as_mut_ptr()) }).map(drop)
}

/// Lets the IOMMU show `size` bytes of `ram`, from `offset` on, at `iova` to the device.
///
/// # Errors
/// Whatever VFIO_IOMMU_MAP_DMA reports.
pub(super) fn vfio_map(
    container: &File,
    ram: &Ram,
    (offset, size): (usize, usize),
    iova: u64,
) -> io::Result<()> {
    const MAP_DMA: libc::c_ulong = 0x3b71;
    const READ_WRITE: u32 = 3;
    assert!(offset + size <= ram.size());
    #[repr(C)]
    struct Map {
        argsz: u32,
        flags: u32,
        vaddr: u64,
        iova: u64,
        size: u64,
    }
    let (vaddr, size) = (ram.user_addr(offset), size as u64);
    let map = Map { argsz: 32, flags: READ_WRITE, vaddr, iova, size };
    // SAFETY: the request reads 32 bytes. The device may write into the range from now on: it lies in the RAM, whose bytes are
    // only ever reached by atomics and raw copies, and VFIO keeps the pages until they are unmapped or the container is closed.
    check(unsafe { libc::ioctl(container.as_raw_fd(), MAP_DMA as _, &raw const map) }).map(drop)
}
