//! A VM's memory: regions that its VMM describes, turned into [`Map`]s.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use vmlan_keeper::Descriptor;
use vmlan_ram::{DirtyLog, Map, Mapping, Region};

use crate::address_space::Share;

/// Largest dirty log: 256 MiB stand for 8 TiB.
const MAX_LOG: u64 = 256 << 20;

/// What to tell whoever forgot to share the guest's memory with us.
pub const UNSHARED: &str = "guest memory is not shared: give the VM's memory backend share=on";

/// Where a region of guest memory is: for the guest, for the VMM, and in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RegionDesc {
    /// Guest-physical address.
    pub gpa: u64,
    pub size: u64,
    /// The VMM's address.
    pub uva: u64,
    pub offset: u64,
}

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum MemoryError {
    #[error(transparent)]
    Ram(#[from] vmlan_ram::MapError),
    /// Each page of such a file that is not in memory is read from a disk, by a worker, and its
    /// other ports wait.
    #[error(
        "the memory file is not in memory: give the VM memory by memfd, in /dev/shm or hugetlbfs \
         (or allow ext4, xfs, btrfs and f2fs by the port's key memory=disk)"
    )]
    NotRam,
    /// Pages of such a file come from another process or machine: touching one could hang a worker.
    #[error(
        "the memory file is neither memory nor on a local disk: use memfd, /dev/shm, hugetlbfs, \
         ext4, xfs, btrfs or f2fs"
    )]
    Remote,
    #[error(
        "{bytes:#x} bytes of guest memory in {regions} regions are more than is left for one VM \
         beside the others"
    )]
    TooMuch { bytes: u64, regions: u64 },
    #[error("no region of {size:#x} bytes at guest address {gpa:#x} is known")]
    Unknown { gpa: u64, size: u64 },
    #[error("a dirty log of {0} bytes is empty or too large")]
    LogSize(u64),
    #[error("cannot look at the memory file")]
    Io(#[from] io::Error),
}

/// The files that may hold a VM's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// Memory only: memfd, tmpfs, hugetlbfs.
    #[default]
    Ram,
    /// Also files on local disks. A worker that touches a page of one may wait for the disk.
    Disk,
}

impl Files {
    /// The file, if it is of such a kind. The port's keeper has looked at it.
    fn check(self, file: Descriptor) -> Result<OwnedFd, MemoryError> {
        match (self, file) {
            (_, Descriptor::Memory(fd)) | (Self::Disk, Descriptor::Disk(fd)) => Ok(fd),
            (Self::Ram, _) => Err(MemoryError::NotRam),
            (Self::Disk, _) => Err(MemoryError::Remote),
        }
    }
}

/// Maps the bytes `offset..offset + size` of a file that must be one of `files`. The mapping may be
/// larger than that. Returns it, and the offset in it at which the bytes begin.
pub fn map_file(
    fd: Descriptor,
    offset: u64,
    size: u64,
    files: Files,
) -> Result<(Arc<Mapping>, u64), MemoryError> {
    let fd = files.check(fd)?;
    let start = offset & !(vmlan_ram::page_size(fd.as_fd())? - 1);
    let inside = offset - start;
    let exact = inside.checked_add(size).ok_or(vmlan_ram::MapError::BadSize { size, offset })?;
    let mapping = Mapping::new(fd.as_fd(), start, exact)?;
    Ok((Arc::new(mapping), inside))
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// One VM's regions, and its dirty log.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    log: Option<Arc<DirtyLog>>,
    files: Files,
    /// Given back after the regions.
    share: Share,
}

impl Memory {
    /// No regions yet. Those that come are in such `files`.
    pub fn new(files: Files) -> Self {
        Self { files, ..Self::default() }
    }

    /// A region made from a message.
    pub fn region(&self, desc: RegionDesc, fd: Descriptor) -> Result<Region, MemoryError> {
        if desc.size == 0 {
            return Err(vmlan_ram::MapError::BadSize { size: 0, offset: desc.offset }.into());
        }
        self.check(desc.size, 1)?;
        let (mapping, inside) = map_file(fd, desc.offset, desc.size, self.files)?;
        Ok(Region::new(desc.gpa, desc.size, desc.uva, inside, mapping)?)
    }

    /// The regions of a whole table. Nothing is mapped if together they are more than a VM may
    /// have.
    pub fn regions(
        &self,
        table: Vec<(RegionDesc, Descriptor)>,
    ) -> Result<Vec<Region>, MemoryError> {
        self.check(sum(table.iter().map(|(desc, _)| desc.size)), table.len() as u64)?;
        table.into_iter().map(|(desc, fd)| self.region(desc, fd)).collect()
    }

    /// Refuses more than this VM may have.
    fn check(&self, bytes: u64, regions: u64) -> Result<(), MemoryError> {
        let fits = self.share.may_have(bytes, regions);
        if fits { Ok(()) } else { Err(MemoryError::TooMuch { bytes, regions }) }
    }

    /// Replaces all regions, if they make a map.
    ///
    /// # Errors
    /// [`MemoryError`]: nothing has changed.
    pub fn replace(&mut self, regions: Vec<Region>) -> Result<(), MemoryError> {
        Map::new(regions.clone(), None)?;
        let (bytes, count) = (sum(regions.iter().map(Region::size)), regions.len() as u64);
        if !self.share.take(bytes, count) {
            return Err(MemoryError::TooMuch { bytes, regions: count });
        }
        self.regions = regions;
        Ok(())
    }

    /// Adds a region, if it fits the others.
    ///
    /// # Errors
    /// [`MemoryError`]: nothing has changed.
    pub fn add(&mut self, region: Region) -> Result<(), MemoryError> {
        let mut regions = self.regions.clone();
        regions.push(region);
        self.replace(regions)
    }

    /// Removes the region that is described exactly so.
    ///
    /// # Errors
    /// [`MemoryError::Unknown`].
    pub fn remove(&mut self, desc: RegionDesc) -> Result<(), MemoryError> {
        let same = |r: &Region| (r.gpa(), r.size(), r.uva()) == (desc.gpa, desc.size, desc.uva);
        let at = self.regions.iter().position(same);
        let at = at.ok_or(MemoryError::Unknown { gpa: desc.gpa, size: desc.size })?;
        self.regions.remove(at);
        // Less than before is never refused.
        let _ = self.share.take(self.bytes(), self.regions.len() as u64);
        Ok(())
    }

    /// Takes a dirty log.
    pub fn set_log(&mut self, fd: Descriptor, offset: u64, size: u64) -> Result<(), MemoryError> {
        if size == 0 || size > MAX_LOG {
            return Err(MemoryError::LogSize(size));
        }
        let (mapping, inside) = map_file(fd, offset, size, Files::Ram)?;
        let log = DirtyLog::new(mapping, inside, size).ok_or(MemoryError::LogSize(size))?;
        self.log = Some(Arc::new(log));
        Ok(())
    }

    /// True if the VMM gave a dirty log.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(Region::size).sum()
    }

    /// A map of all regions. Writes to it are noted in the dirty log if `log` is true.
    ///
    /// # Errors
    /// [`MemoryError::Ram`]: never for regions that were checked by `replace`.
    pub fn snapshot(&self, log: bool) -> Result<Arc<Map>, MemoryError> {
        let log = self.log.clone().filter(|_| log);
        Ok(Arc::new(Map::new(self.regions.clone(), log)?))
    }
}

/// A memfd of `len` zero bytes whose size nobody can change any more.
///
/// # Errors
/// That of `memfd_create`, `ftruncate` or `fcntl`.
pub fn sealed_memfd(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.set_len(len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/null` is refused as soon as somebody tries to map it: here nobody must.
    #[test]
    fn a_table_that_is_too_large_is_refused_before_anything_is_mapped() {
        let table = |size| {
            let region = |i| {
                let fd = Descriptor::of(File::open("/dev/null").unwrap().into());
                (RegionDesc { gpa: i * size, size, uva: i * size, offset: 0 }, fd)
            };
            Memory::default().regions((0..8).map(region).collect())
        };
        assert!(
            matches!(table(2 << 40), Err(MemoryError::TooMuch { bytes, .. }) if bytes == 16 << 40)
        );
        let tried = table(1 << 30);
        assert!(matches!(tried, Err(MemoryError::NotRam)), "{tried:?}");
    }
}
