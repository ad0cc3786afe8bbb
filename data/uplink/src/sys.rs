//! System calls that the standard library lacks. All unsafe code of this crate is here.

use std::ffi::OsStr;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use libc::{c_int, c_short, c_uint};
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

fn check(r: isize) -> io::Result<usize> {
    // Only -1 does not fit, and its cause is in errno.
    if let Ok(n) = usize::try_from(r) { Ok(n) } else { Err(io::Error::last_os_error()) }
}

fn check_int(r: c_int) -> io::Result<()> {
    if r >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn own(r: c_int) -> io::Result<OwnedFd> {
    check_int(r)?;
    // SAFETY: every caller passes the result of a call that makes a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(r) })
}

/// True if the directory that `path` is to be in is there. Where it is, ENOENT means one in which nothing can be
/// made, like /proc.
pub fn has_directory(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.as_os_str().is_empty() || dir.exists())
}

/// The effective user.
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Attaches a descriptor of `/dev/net/tun` to device `name` (`TUNSETIFF`).
pub(crate) fn tun_attach(tun: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<()> {
    let flags = c_short::try_from(flags).map_err(io::Error::other)?;
    let mut req = IfReq::new(name, flags)?;
    // SAFETY: TUNSETIFF reads and writes one ifreq (40 bytes), which `req` is.
    check_int(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut req) })
}

/// The present name of the device behind `tun` (`TUNGETIFF`); `EBADFD` once it is deleted.
pub(crate) fn tun_name(tun: BorrowedFd<'_>) -> io::Result<String> {
    let mut req = IfReq::new("", 0)?;
    // SAFETY: TUNGETIFF writes one ifreq.
    check_int(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNGETIFF, &raw mut req) })?;
    Ok(req.name())
}

/// Sets the length of the virtio-net header before each frame.
pub(crate) fn tun_set_header(tun: BorrowedFd<'_>, len: c_int) -> io::Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    check_int(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) })
}

/// Says which offloads we can read (`TUN_F_*`).
pub(crate) fn tun_set_offload(tun: BorrowedFd<'_>, bits: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check_int(unsafe {
        libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(bits))
    })
}

/// The `IFF_*` flags of interface `name`; `ENODEV` if there is none.
pub(crate) fn link_flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<c_int> {
    let mut req = IfReq::new(name, 0)?;
    // SAFETY: SIOCGIFFLAGS reads and writes one ifreq.
    check_int(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut req) })?;
    Ok(c_int::from(req.flags))
}

/// Sets interface `name` up.
pub(crate) fn link_set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = link_flags(socket, name)? | libc::IFF_UP;
    // The kernel's field is 16 bits without sign.
    let low = u16::try_from(flags & 0xffff).map_err(io::Error::other)?;
    let req = IfReq::new(name, c_short::from_ne_bytes(low.to_ne_bytes()))?;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    check_int(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const req) })
}

/// A non-blocking netlink socket that becomes readable whenever some link changes.
pub(crate) fn link_events() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let socket = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: an all-zero sockaddr_nl is a valid value of this plain C struct.
    let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    addr.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).map_err(io::Error::other)?;
    addr.nl_groups = u32::try_from(libc::RTMGRP_LINK).map_err(io::Error::other)?;
    bind_to(socket.as_fd(), &addr)?;
    Ok(socket)
}

fn bind_to<T>(socket: BorrowedFd<'_>, addr: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: `addr` is a sockaddr of `len` bytes, initialised by the caller.
    check_int(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(addr).cast(), len) })
}

/// A non-blocking event counter.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes `event` readable. It cannot fail in a way that matters: a full counter is readable too.
pub(crate) fn notify(event: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: reads the 8 bytes of `one`.
    let _ = unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Reads and forgets what is there, up to a bound; `poll` will say if there is more.
pub(crate) fn drain(fd: BorrowedFd<'_>) {
    let mut buf = [0; 8192];
    for _ in 0..64 {
        if read(fd, &mut buf).is_err() {
            return;
        }
    }
}

/// `read(2)`.
#[inline]
pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writes at most buf.len() bytes to `buf`, exclusively ours.
    check(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
}

/// A descriptor to wait for.
pub(crate) fn pollfd(fd: BorrowedFd<'_>, events: c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits until one of `fds` is ready or the time is over. A signal ends it early.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) {
    let ms = timeout.map_or(-1, |t| c_int::try_from(t.as_millis()).unwrap_or(c_int::MAX));
    let n = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: `fds` has n initialised entries.
    let _ = unsafe { libc::poll(fds.as_mut_ptr(), n, ms) };
}

/// An unbound, non-blocking UNIX stream socket.
pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

fn unix_address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: an all-zero sockaddr_un is a valid value of this plain C struct.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(io::Error::other)?;
    let bytes = OsStr::as_bytes(path.as_os_str());
    if bytes.is_empty() || bytes.len() >= addr.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "path empty or over 107 bytes"));
    }
    for (dst, src) in addr.sun_path.iter_mut().zip(bytes) {
        *dst = libc::c_char::from_ne_bytes([*src]);
    }
    Ok(addr)
}

/// Gives `socket` the name `path`, and listens. The file's mode follows the mode that `fchmod` set on
/// the socket before, less the umask (Linux, `unix_bind_bsd`).
pub(crate) fn unix_listen(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    bind_to(socket, &unix_address(path)?)?;
    // SAFETY: no pointers.
    check_int(unsafe { libc::listen(socket.as_raw_fd(), 16) })
}

/// Connects `socket` to `path`: at once, or not (`EAGAIN` when the backlog is full).
pub(crate) fn unix_connect(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let addr = unix_address(path)?;
    let len = libc::socklen_t::try_from(size_of_val(&addr)).map_err(io::Error::other)?;
    // SAFETY: `addr` is an initialised sockaddr of `len` bytes.
    check_int(unsafe { libc::connect(socket.as_raw_fd(), (&raw const addr).cast(), len) })
}

/// Runs to be written by one system call, straight from where they lie: our own bytes or guest memory.
/// The guest may change its bytes while the kernel copies; that is garbage in its own frame.
pub(crate) struct Gather<'a, const N: usize> {
    iov: [MaybeUninit<libc::iovec>; N],
    len: usize,
    _runs: PhantomData<Slice<'a>>,
}

impl<'a, const N: usize> Gather<'a, N> {
    pub(crate) fn new() -> Self {
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
        let n = c_int::try_from(self.len).unwrap_or(0);
        // SAFETY: the first `len` entries are initialised by `add`; each names memory that stays
        // readable for 'a (a `Slice`'s promise); writev does not write to it.
        check(unsafe { libc::writev(fd.as_raw_fd(), self.iov.as_ptr().cast(), n) })
    }

    /// `sendmsg(2)`, never blocking and without SIGPIPE.
    pub(crate) fn send(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: an all-zero msghdr is a valid value: no name, no control data.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = self.iov.as_ptr().cast_mut().cast();
        msg.msg_iovlen = self.len as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: as for `write`; sendmsg only reads the message and its runs.
        check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const msg, flags) })
    }
}

/// Ends both directions of a connection, whoever else still holds the descriptor.
pub(crate) fn shutdown(fd: BorrowedFd<'_>) {
    // SAFETY: no pointers.
    let _ = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Moves the calling thread to a network namespace of its own.
#[cfg(test)]
pub(crate) fn unshare_net() -> io::Result<()> {
    // SAFETY: no pointers; affects this thread only.
    check_int(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Makes the calling thread an ordinary user: by the bare system call, since libc's changes all threads.
#[cfg(test)]
pub(crate) fn become_user(uid: libc::uid_t) -> io::Result<()> {
    // SAFETY: no pointers.
    let r = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
