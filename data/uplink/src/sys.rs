//! System calls that neither the standard library nor rustix has. All unsafe code of this crate is
//! here: requests to network interfaces, and writes that gather memory which others may change.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use libc::{c_int, c_short, c_uint};
use rustix::event::{EventfdFlags, PollFd, Timespec};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vmlan_ram::Slice;

/// `struct ifreq` (netdevice(7)) as far as we use it: a name and flags.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    flags: c_short,
    rest: [u8; 22],
}

impl IfReq {
    fn new(name: &str, flags: c_short) -> io::Result<Self> {
        let mut req = Self { name: [0; libc::IFNAMSIZ], flags, rest: [0; 22] };
        // One byte stays 0: the kernel wants the name terminated.
        let dst = req.name.get_mut(..name.len()).filter(|d| d.len() < libc::IFNAMSIZ);
        dst.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
        Ok(req)
    }

    fn name(&self) -> String {
        let bytes = self.name.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// A request of `ioctl` that reads or writes one `T`.
struct Request<T>(libc::Ioctl, PhantomData<fn(&mut T)>);

/// Attaches a descriptor of `/dev/net/tun` to a device.
const TUNSETIFF: Request<IfReq> = Request(libc::TUNSETIFF, PhantomData);
/// The present name of that device.
const TUNGETIFF: Request<IfReq> = Request(libc::TUNGETIFF, PhantomData);
/// Length of the virtio-net header before each frame.
const TUNSETVNETHDRSZ: Request<c_int> = Request(libc::TUNSETVNETHDRSZ, PhantomData);
/// Flags of an interface, read and written.
const SIOCGIFFLAGS: Request<IfReq> = Request(libc::SIOCGIFFLAGS as libc::Ioctl, PhantomData);
/// MTU of an interface, where flags have the low half of it.
const SIOCGIFMTU: Request<IfReq> = Request(libc::SIOCGIFMTU as libc::Ioctl, PhantomData);
const SIOCSIFFLAGS: Request<IfReq> = Request(libc::SIOCSIFFLAGS as libc::Ioctl, PhantomData);

fn ioctl<T>(fd: BorrowedFd<'_>, request: &Request<T>, arg: &mut T) -> io::Result<()> {
    // SAFETY: the requests above read and write one value of their type, which `arg` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request.0, std::ptr::from_mut(arg)) })?;
    Ok(())
}

/// A system call's result: -1 is the only negative one, and its cause is in errno.
fn check<T>(result: T) -> io::Result<usize>
where
    usize: TryFrom<T>,
{
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Attaches a descriptor of `/dev/net/tun` to device `name` (`TUNSETIFF`).
pub(crate) fn tun_attach(tun: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let flags = c_short::try_from(flags).map_err(io::Error::other)?;
    ioctl(tun, &TUNSETIFF, &mut IfReq::new(name, flags)?)
}

/// The present name of the device behind `tun` (`TUNGETIFF`); `EBADFD` once it is deleted.
pub(crate) fn tun_name(tun: BorrowedFd<'_>) -> io::Result<String> {
    let mut req = IfReq::new("", 0)?;
    ioctl(tun, &TUNGETIFF, &mut req)?;
    Ok(req.name())
}

/// Sets the length of the virtio-net header before each frame.
pub(crate) fn tun_set_header(tun: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    ioctl(tun, &TUNSETVNETHDRSZ, &mut { len })
}

/// Says which offloads we can read (`TUN_F_*`).
pub(crate) fn tun_set_offload(tun: BorrowedFd<'_>, bits: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(bits)) })?;
    Ok(())
}

/// The `IFF_*` flags of interface `name`; `ENODEV` if there is none.
pub(crate) fn link_flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<c_int> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFFLAGS, &mut req)?;
    Ok(c_int::from(req.flags))
}

/// The MTU of interface `name`; `ENODEV` if there is none.
pub(crate) fn link_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFMTU, &mut req)?;
    // An int at the place of the flags (netdevice(7)).
    let ([a, b], [c, d, ..]) = (req.flags.to_ne_bytes(), req.rest);
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Sets interface `name` up.
pub(crate) fn link_set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut req = IfReq::new(name, 0)?;
    ioctl(socket, &SIOCGIFFLAGS, &mut req)?;
    req.flags |= c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    ioctl(socket, &SIOCSIFFLAGS, &mut req)
}

/// A non-blocking netlink socket that becomes readable whenever some link changes.
pub(crate) fn link_events() -> io::Result<OwnedFd> {
    const LINKS: u32 = libc::RTMGRP_LINK.cast_unsigned();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 of netlink is NETLINK_ROUTE.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
    Ok(socket)
}

/// A non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes `event` readable. It cannot fail in a way that matters: a full counter is readable too.
pub(crate) fn notify(event: BorrowedFd<'_>) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Reads and forgets what is there, up to a bound; `poll` will say if there is more.
pub(crate) fn drain(fd: BorrowedFd<'_>) {
    let mut buf = [0; 8192];
    for _ in 0..64 {
        if rustix::io::read(fd, &mut buf).is_err() {
            return;
        }
    }
}

/// Waits until one of `fds` is ready or the time is over. A signal ends it early.
pub(crate) fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    // Longer than `Timespec` can say is as good as for ever.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    let _ = rustix::event::poll(fds, timeout.as_ref());
}

/// An unbound, non-blocking UNIX stream socket.
pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The address of the socket file `path`.
///
/// # Errors
/// If the path is empty or has more bytes than `sockaddr_un` holds.
pub(crate) fn unix_address(path: &Path) -> io::Result<SocketAddrUnix> {
    if !(1..108).contains(&path.as_os_str().as_bytes().len()) {
        let why = "the path is empty or longer than 107 bytes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(SocketAddrUnix::new(path)?)
}

/// Runs to be written by one system call, straight from where they lie: our own bytes or guest
/// memory. The guest may change its bytes while the kernel copies; that is garbage in its own
/// frame.
pub(crate) struct Gather<'a, const N: usize> {
    iov: [MaybeUninit<libc::iovec>; N],
    len: usize,
    _runs: PhantomData<Slice<'a>>,
}

impl<'a, const N: usize> Gather<'a, N> {
    pub(crate) fn new() -> Self {
        // What `writev` and `sendmsg` take at most (IOV_MAX).
        const { assert!(N <= 1024) };
        Self { iov: [const { MaybeUninit::uninit() }; N], len: 0, _runs: PhantomData }
    }

    /// True if `n` more runs fit.
    pub(crate) fn has_room(&self, n: usize) -> bool {
        self.len + n <= N
    }

    /// Appends a run. Ask [`Gather::has_room`] first: what does not fit is left out.
    #[inline]
    pub(crate) fn add(&mut self, run: Slice<'a>) {
        if let Some(slot) = self.iov.get_mut(self.len) {
            let (base, len) = run.as_raw();
            slot.write(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
            self.len += 1;
        }
    }

    /// `writev(2)`.
    #[inline]
    pub(crate) fn write(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // At most N, which `new` has checked.
        let n = c_int::try_from(self.len).map_err(io::Error::other)?;
        // SAFETY: the first `len` entries are initialised by `add`; each names memory that stays
        // readable for 'a (a `Slice`'s promise); writev does not write to it.
        check(unsafe { libc::writev(fd.as_raw_fd(), self.iov.as_ptr().cast(), n) })
    }
}

/// Makes the kernel refuse descriptors that anybody sends to `socket`, or to those accepted from it
/// (`SO_PASSRIGHTS`, Linux 6.16).
///
/// # Errors
/// That of `setsockopt`: the kernel is older.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PASSRIGHTS: c_int = 83; // From `asm-generic/socket.h`.
    let off: c_int = 0;
    let len = libc::socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: the option's value is an int, which `off` is, and which is only read.
    check(unsafe {
        let value = std::ptr::from_ref(&off).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, len)
    })?;
    Ok(())
}

/// Moves the calling thread to a network namespace of its own.
#[cfg(test)]
pub(crate) fn unshare_net() -> io::Result<()> {
    // SAFETY: no pointers; affects this thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    Ok(())
}
