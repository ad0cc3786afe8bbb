//! What a descriptor of a stranger is, as far as it is known to do no harm.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType};

/// Longest description of a descriptor that was not passed on.
pub const MAX_TEXT: usize = 96;

/// File systems whose pages are on this machine's disks. Others (FUSE, networks, and overlays that
/// may hide either) may need somebody's answer for whatever is done with them.
const DISKS: [i64; 4] = [
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
    libc::F2FS_SUPER_MAGIC,
];

/// A descriptor that a peer sent.
#[derive(Debug)]
pub enum Descriptor {
    /// Memory: a memfd, or a file on tmpfs or hugetlbfs.
    Memory(OwnedFd),
    /// A regular file on a local disk.
    Disk(OwnedFd),
    /// An eventfd.
    Event(OwnedFd),
    /// Something else, which was closed: what /proc calls it.
    Other(String),
}

/// The kinds of [`Descriptor`], as a byte on the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory = 0,
    Disk = 1,
    Event = 2,
    Other = 3,
}

impl Descriptor {
    /// Looks at `fd`. This may wait for whoever made it: a server must leave that to its keeper.
    pub fn of(fd: OwnedFd) -> Self {
        let mut text = [MaybeUninit::uninit(); MAX_TEXT];
        let (kind, text) = look(fd.as_fd(), &mut text);
        match kind {
            Kind::Memory => Self::Memory(fd),
            Kind::Disk => Self::Disk(fd),
            Kind::Event => Self::Event(fd),
            Kind::Other => Self::Other(String::from_utf8_lossy(text).into_owned()),
        }
    }

    /// `fd` gives the descriptor, if it is of a kind that has one. `None`: it did not.
    pub(crate) fn new(
        kind: Kind,
        text: &[u8],
        mut fd: impl FnMut() -> Option<OwnedFd>,
    ) -> Option<Self> {
        Some(match kind {
            Kind::Memory => Self::Memory(fd()?),
            Kind::Disk => Self::Disk(fd()?),
            Kind::Event => Self::Event(fd()?),
            Kind::Other => Self::Other(String::from_utf8_lossy(text).into_owned()),
        })
    }

    /// The descriptor, for error messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Memory(fd) | Self::Disk(fd) | Self::Event(fd) => {
                let mut text = [MaybeUninit::uninit(); MAX_TEXT];
                String::from_utf8_lossy(name(fd.as_fd(), &mut text)).into_owned()
            }
            Self::Other(text) => text.clone(),
        }
    }
}

/// What `fd` is, and what /proc calls it. Allocates nothing.
pub fn look<'t>(fd: BorrowedFd<'_>, text: &'t mut [MaybeUninit<u8>]) -> (Kind, &'t [u8]) {
    let text = name(fd, text);
    // Memory has seals. Asking for them asks no file system, as `fstatfs` does.
    let kind = if rustix::fs::fcntl_get_seals(fd).is_ok() {
        Kind::Memory
    } else if text == b"anon_inode:[eventfd]" {
        Kind::Event
    } else if text.first() == Some(&b'/') && is_on_disk(fd).unwrap_or(false) {
        Kind::Disk
    } else {
        Kind::Other
    };
    (kind, text)
}

fn name<'t>(fd: BorrowedFd<'_>, text: &'t mut [MaybeUninit<u8>]) -> &'t [u8] {
    const DIR: &[u8] = b"/proc/self/fd/";
    let number = rustix::path::DecInt::new(fd.as_raw_fd());
    let mut path = [0; 32];
    let bytes = DIR.iter().chain(number.as_bytes_with_nul());
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return b"?" };
    match rustix::fs::readlinkat_raw(CWD, path, text) {
        Ok((name, _)) => name,
        Err(_) => b"?",
    }
}

fn is_on_disk(fd: BorrowedFd<'_>) -> io::Result<bool> {
    if !DISKS.contains(&rustix::fs::fstatfs(fd)?.f_type) {
        return Ok(false);
    }
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_a_descriptor_is() {
        let memfd = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Descriptor::of(memfd), Descriptor::Memory(_)));
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(matches!(Descriptor::of(shm.into()), Descriptor::Memory(_)));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Descriptor::of(event), Descriptor::Event(_)));
        for path in ["/dev/null", "/proc/self/maps", "/dev/shm", "/"] {
            let found = Descriptor::of(File::open(path).unwrap().into());
            assert!(matches!(&found, Descriptor::Other(_)), "{path}: {found:?}");
        }
        let (pipe, _) = std::io::pipe().unwrap();
        assert!(
            matches!(Descriptor::of(pipe.into()), Descriptor::Other(t) if t.starts_with("pipe:"))
        );
        let path = File::options().read(true).open("/dev/null").unwrap();
        assert_eq!(Descriptor::of(path.into()).describe(), "/dev/null");
    }
}
