//! System calls that only a PCI device needs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::mapping::Mapping;
use crate::memory::Ram;

/// Locks a file for this process; false when another one has it. The lock goes with the file.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// A socket to the kernel's routing tables, connected to nobody: what is written goes to the
/// kernel.
pub(super) fn rtnetlink() -> io::Result<File> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    // NETLINK_ROUTE is protocol 0.
    Ok(rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?.into())
}

/// A memfd made of 2 MiB huge pages.
pub(super) fn huge_memfd(len: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = File::from(rustix::fs::memfd_create(c"vmlan-pci-ram", flags)?);
    file.set_len(len as u64)?;
    Ok(file)
}

/// Gives a part of a memfd's memory back.
pub(super) fn punch(file: &File, offset: usize, len: usize) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, mode, offset as u64, len as u64)?)
}

/// Keeps the pages of a range where they are: a pipe that holds them does not let the kernel move
/// them. Dropping the two ends lets go.
pub(super) fn pin(mapping: &Mapping, start: usize, len: usize) -> io::Result<Vec<OwnedFd>> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    rustix::pipe::fcntl_setpipe_size(&write, len.next_power_of_two())?;
    let mut done = 0;
    while done < len {
        match mapping.splice(write.as_fd(), start + done, len - done)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            got => done += got,
        }
    }
    Ok(vec![read, write])
}

/// What a request of VFIO (`linux/vfio.h`) takes and changes.
#[derive(Debug)]
pub(super) enum Request<'a> {
    /// VFIO_CHECK_EXTENSION: is there such a kind of IOMMU?
    CheckExtension(u32),
    /// VFIO_SET_IOMMU: uses such a kind of IOMMU.
    SetIommu(u32),
    /// VFIO_GROUP_GET_STATUS: length in bytes, flags.
    GroupStatus(&'a mut [u32; 2]),
    /// VFIO_GROUP_SET_CONTAINER: puts a group into a container.
    SetContainer(&'a File),
    /// VFIO_DEVICE_GET_REGION_INFO: size and place of a region; the first word is the length.
    RegionInfo(&'a mut [u32; 8]),
    /// VFIO_DEVICE_SET_IRQS with up to two words of data: how interrupts are delivered. The first
    /// word is the length.
    SetIrqs(&'a [u32; 7]),
    /// VFIO_IOMMU_MAP_DMA: shows memory to the device.
    MapDma(&'a MapDma),
    /// VFIO_GROUP_GET_DEVICE_FD: opens a device of a group by its name.
    DeviceFd(&'a CStr),
}

/// The argument of VFIO_IOMMU_MAP_DMA.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MapDma {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// Makes a request of VFIO; what it answers.
pub(super) fn vfio(file: &File, request: Request<'_>) -> io::Result<i32> {
    let fd;
    let number = |number: u32| std::ptr::without_provenance_mut(number as usize);
    let (code, argument): (libc::c_ulong, *mut libc::c_void) = match request {
        Request::CheckExtension(kind) => (0x3b65, number(kind)),
        Request::SetIommu(kind) => (0x3b66, number(kind)),
        Request::GroupStatus(words) => {
            words[0] = 8;
            (0x3b67, words.as_mut_ptr().cast())
        }
        Request::SetContainer(container) => {
            fd = container.as_raw_fd();
            (0x3b68, (&raw const fd).cast_mut().cast())
        }
        Request::DeviceFd(name) => (0x3b6a, name.as_ptr().cast_mut().cast()),
        Request::RegionInfo(words) => {
            words[0] = 32;
            (0x3b6c, words.as_mut_ptr().cast())
        }
        Request::SetIrqs(words) => (0x3b6e, words.as_ptr().cast_mut().cast()),
        Request::MapDma(map) => (0x3b71, std::ptr::from_ref(map).cast_mut().cast()),
    };
    // SAFETY: an argument is a number, or points to what this request reads (an int, a string that
    // ends in a zero, structures that begin with their length in bytes) and writes (at most the
    // length in the first word, to words that are borrowed mutably); all outlive the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), code as _, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The device of this name in a group.
pub(super) fn vfio_device(group: &File, name: &CStr) -> io::Result<File> {
    let fd = vfio(group, Request::DeviceFd(name))?;
    // SAFETY: the kernel has just returned `fd`; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Lets the IOMMU show `size` bytes of `ram`, from `offset` on, at `iova` to the device, which may
/// write there from now on: like every device, into memory that is only reached by atomics and
/// copies. VFIO keeps the pages until they are unmapped or the container is closed.
pub(super) fn vfio_map(
    container: &File,
    ram: &Ram,
    (offset, size): (usize, usize),
    iova: u64,
) -> io::Result<()> {
    const READ_WRITE: u32 = 3;
    assert!(offset + size <= ram.size());
    let (vaddr, size) = (ram.user_addr(offset), size as u64);
    let map = MapDma { argsz: 32, flags: READ_WRITE, vaddr, iova, size };
    vfio(container, Request::MapDma(&map)).map(drop)
}
