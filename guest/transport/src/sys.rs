//! System calls that `std` does not offer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::time::ClockId;

/// Descriptors that one vhost-user message can carry: the specification's limit is 8 regions, and
/// 32 is what peers accept.
pub const MAX_FDS: usize = 32;

/// Descriptors that [`poll_readable`] looks at, as its answer has 64 bits.
const MAX_POLLED: usize = 64;

/// A non-blocking eventfd: the doorbell in one direction, the interrupt in the other.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// A new eventfd with count 0, close-on-exec and non-blocking.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?.into()))
    }

    /// Adds one to the count. A count that is already at its limit wakes the reader just as well,
    /// so that is not an error.
    pub fn signal(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Takes the count and sets it to zero; 0 when nothing was signalled.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes over an eventfd that somebody sent.
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A memfd of `len` bytes (a multiple of the page size) that can no longer shrink or grow.
pub fn sealed_memfd(len: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(c"vmlan-driver-ram", flags)?);
    file.set_len(len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Which of `fds` are ready: bit n is set when `fds[n]` can be read or has hung up. No more than 64
/// are looked at. Without a timeout it waits for ever.
///
/// # Errors
/// Whatever `poll(2)` reports. An interrupted call is an empty answer.
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<u64> {
    let Some(first) = fds.first() else {
        return poll(&mut [], timeout);
    };
    // Entries behind those that are used are not shown to the kernel.
    let mut set: [PollFd<'_>; MAX_POLLED] = std::array::from_fn(|_| wait_for(*first));
    for (to, fd) in set.iter_mut().zip(fds) {
        *to = wait_for(*fd);
    }
    poll(&mut set[..fds.len().min(MAX_POLLED)], timeout)
}

fn wait_for(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// The entries that are ready, one bit each; none after a signal.
fn poll(set: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<u64> {
    // A time that does not fit is so far away that it never comes.
    let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
    match rustix::event::poll(set, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => return Ok(0),
        other => other?,
    };
    let ready = set.iter().enumerate().filter(|(_, entry)| !entry.revents().is_empty());
    Ok(ready.fold(0, |bits, (n, _)| bits | 1 << n))
}

/// Sends `bytes` with `fds` attached to the first of them; returns how many bytes went out. Never
/// raises SIGPIPE. The descriptors are plain numbers so that tests can send some that nobody owns:
/// the kernel refuses those with EBADF.
///
/// # Errors
/// Whatever `sendmsg(2)` reports; `InvalidInput` for more than [`MAX_FDS`] descriptors.
pub fn send_with_fds(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    if fds.len() > MAX_FDS || fds.contains(&-1) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the borrows end with this call, which only shows their numbers to the kernel; -1,
    // which they must not be, was refused.
    let borrow = |fd: &RawFd| unsafe { BorrowedFd::borrow_raw(*fd) };
    let fds: Vec<_> = fds.iter().map(borrow).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(sock, &bytes, &mut control, SendFlags::NOSIGNAL) {
            // With a timeout on the socket, the kernel does not call again after a signal.
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Sends all of `bytes`, the descriptors with the first of them.
pub fn send_all(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let mut sent = send_with_fds(sock, bytes, fds)?;
    while sent < bytes.len() {
        sent += send_with_fds(sock, &bytes[sent..], &[])?;
    }
    Ok(())
}

/// Fills `bytes`, and appends the descriptors that came with them to `fds`.
///
/// # Errors
/// Those of [`recv_with_fds`], and `UnexpectedEof` when the peer hangs up before.
pub fn recv_all(sock: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let (got, more) = recv_with_fds(sock, &mut bytes[done..])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += got;
        fds.extend(more);
    }
    Ok(())
}

/// Receives up to `bytes.len()` bytes and the descriptors that came with them, all owned (and
/// close-on-exec).
///
/// # Errors
/// Whatever `recvmsg(2)` reports, WouldBlock when the socket's read timeout has passed.
pub fn recv_with_fds(sock: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let bytes = &mut [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(sock, bytes, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            done => break done?.bytes,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((got, fds))
}

/// Lets this thread's sleeps, and those of threads it starts, end when they are due, instead of up
/// to 50 us later: a program that plays a guest keeps its driver's bounds on time (send combining),
/// as a kernel would.
pub fn exact_timers() {
    // A kernel that refuses leaves the sleeps as they were.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// What a clock shows. None of the clocks used here shows a negative time.
fn clock(id: ClockId) -> Duration {
    Duration::try_from(rustix::time::clock_gettime(id)).unwrap_or_default()
}

/// Monotonic time since some moment.
pub fn monotonic() -> Duration {
    clock(ClockId::Monotonic)
}

/// CPU time (user and system) that all threads of this process have used so far.
pub fn process_cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Lets the calling thread run on one processor only.
///
/// # Errors
/// Whatever `sched_setaffinity(2)` reports: EINVAL for a processor that does not exist, or that
/// this process may not use.
pub fn pin_to_cpu(cpu: u16) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL.into());
    }
    set.set(cpu.into());
    Ok(sched_setaffinity(None, &set)?)
}

/// Has the kernel cut each send of a UDP socket into datagrams of `size` bytes (UDP_SEGMENT, "UDP
/// GSO", udp(7)); 0: not.
///
/// # Errors
/// That of setsockopt(2).
pub fn udp_segment(sock: BorrowedFd<'_>, size: u16) -> io::Result<()> {
    let size = libc::c_int::from(size);
    let len = libc::socklen_t::try_from(size_of_val(&size)).unwrap_or(0);
    // SAFETY: the pointer is to `len` bytes that the kernel only reads during the call.
    let done = unsafe {
        libc::setsockopt(
            sock.as_raw_fd(),
            libc::IPPROTO_UDP,
            libc::UDP_SEGMENT,
            std::ptr::from_ref(&size).cast(),
            len,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
