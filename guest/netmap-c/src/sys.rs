//! TAP devices: system calls that neither the standard library nor rustix has.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short};
use rustix::io::Errno;

/// `struct ifreq` (netdevice(7)) as far as it is used here: a name, then flags, or an address with
/// its type before it.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    kind: c_short,
    address: [u8; 6],
    rest: [u8; 16],
}

impl IfReq {
    fn new(name: &str, kind: c_short) -> Option<Self> {
        let mut request = Self { name: [0; libc::IFNAMSIZ], kind, address: [0; 6], rest: [0; 16] };
        // One byte stays 0: the kernel wants the name terminated.
        let to = request.name.get_mut(..name.len()).filter(|to| to.len() < libc::IFNAMSIZ)?;
        to.copy_from_slice(name.as_bytes());
        Some(request)
    }
}

/// A TAP device of frames as they are, which nobody waits for.
pub(crate) struct Tap {
    fd: OwnedFd,
    name: String,
}

impl Tap {
    /// Makes the device of this name (`%d` in it is a number of the kernel's choice), or attaches
    /// to the one that somebody has made, and gives it the address.
    ///
    /// # Errors
    /// EINVAL for a name that cannot be; else the system's, EPERM and EBUSY above all.
    pub(crate) fn open(name: &str, address: Option<[u8; 6]>) -> Result<Self, Errno> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let flags = c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap_or(0);
        let mut request = IfReq::new(name, flags).ok_or(Errno::INVAL)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let fd = OwnedFd::from(options.open("/dev/net/tun").map_err(errno)?);
        ioctl(fd.as_fd(), libc::TUNSETIFF, &mut request).map_err(errno)?;
        let bytes = request.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(bytes).into_owned();
        if let Some(address) = address {
            let kind = c_short::try_from(libc::ARPHRD_ETHER).unwrap_or(1);
            let mut request = IfReq { address, ..IfReq::new(&name, kind).ok_or(Errno::INVAL)? };
            ioctl(fd.as_fd(), libc::SIOCSIFHWADDR as libc::Ioctl, &mut request).map_err(errno)?;
        }
        Ok(Self { fd, name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn ioctl(fd: BorrowedFd<'_>, request: libc::Ioctl, arg: &mut IfReq) -> io::Result<c_int> {
    // SAFETY: the two requests above read and write one such structure.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(arg)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
