//! The system calls that `std` has no door for. Every descriptor is owned before anything can fail.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors that one vhost-user message can carry (the specification's limit is 8 regions; 32 is what peers accept).
pub const MAX_FDS: usize = 32;
/// Space for one control message with [`MAX_FDS`] descriptors, in `u64` words so that it is aligned for `cmsghdr`.
const CONTROL_WORDS: usize = 2 + MAX_FDS / 2 + 1;

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A non-blocking eventfd: the doorbell in one direction, the interrupt in the other.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// A new eventfd with count 0, close-on-exec and non-blocking.
    ///
    /// # Errors
    /// Whatever `eventfd(2)` reports (usually EMFILE).
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel has just returned `fd`; nobody else owns it.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Adds one to the count. A count that is already at its limit wakes the reader just as well, so that is no error.
    pub fn signal(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Takes the count and sets it to zero; 0 when nothing was signalled.
    #[must_use]
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
///
/// # Errors
/// Whatever `memfd_create(2)`, `ftruncate(2)` or `fcntl(F_ADD_SEALS)` reports.
pub fn sealed_memfd(len: u64) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a literal with its terminating zero.
    let fd = check(unsafe { libc::memfd_create(c"vmlan-driver-ram".as_ptr(), flags) })?;
    // SAFETY: the kernel has just returned `fd`; nobody else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: F_ADD_SEALS takes an int, no pointer.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Which of `fds` are ready: bit n is set when `fds[n]` can be read or has hung up. At most 64 are looked at.
///
/// # Errors
/// Whatever `poll(2)` reports; an interrupted call is an empty answer.
pub fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<u64> {
    const IDLE: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut set = [IDLE; 64];
    let used = fds.len().min(set.len());
    for (entry, fd) in set.iter_mut().zip(fds) {
        *entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    }
    let limit = timeout.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: i32::try_from(time.subsec_nanos()).unwrap_or(0).into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `set` holds at least `used` entries, `limit` is null or points to a timespec that outlives the call, and
    // a null signal mask is allowed.
    let ret =
        unsafe { libc::ppoll(set.as_mut_ptr(), used as libc::nfds_t, limit, std::ptr::null()) };
    match check(ret) {
        Ok(_) => Ok(set
            .iter()
            .enumerate()
            .fold(0, |bits, (n, entry)| if entry.revents == 0 { bits } else { bits | 1 << n })),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Calls again after a signal: with a timeout on the socket, the kernel does not.
fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn empty_msghdr() -> libc::msghdr {
    // SAFETY: msghdr is plain data for which all zeroes means "nothing attached".
    unsafe { std::mem::zeroed() }
}

/// Sends `bytes` with `fds` attached to the first of them; returns how many bytes went out. Never raises SIGPIPE.
///
/// # Errors
/// Whatever `sendmsg(2)` reports; `InvalidInput` for more than [`MAX_FDS`] descriptors.
pub fn send_with_fds(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = [0_u64; CONTROL_WORDS];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = empty_msghdr();
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = u32::try_from(size_of_val(fds)).map_err(io::Error::other)?;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE only computes; MAX_FDS bounds it below the size of `control`.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: msg_control points to `control`, aligned for cmsghdr and long enough for one header and `payload`
        // bytes (CONTROL_WORDS is computed from MAX_FDS, checked above), so the first header and its data are in it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(payload) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(head).cast(), fds.len());
        }
    }
    // SAFETY: `message` points to `iov` and `control`, which live across the call; sendmsg only reads `bytes`.
    retry(|| unsafe { libc::sendmsg(sock.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// Fills `bytes`, and appends the descriptors that came with them to `fds`.
///
/// # Errors
/// As [`recv_with_fds`]; `UnexpectedEof` when the peer hangs up before.
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

/// Receives up to `bytes.len()` bytes and the descriptors that came with them, all owned (and close-on-exec).
///
/// # Errors
/// Whatever `recvmsg(2)` reports, WouldBlock when the socket's read timeout has passed.
pub fn recv_with_fds(sock: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = empty_msghdr();
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `iov` (over `bytes`, exclusively borrowed) and `control`; both outlive the call.
    let got = retry(|| unsafe { libc::recvmsg(sock.as_raw_fd(), &raw mut message, flags) })?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled msg_controllen bytes of `control`; CMSG_FIRSTHDR answers null or a header within it.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: `head` is not null here, so it is a header the kernel wrote inside `control`; its cmsg_len bounds the
    // descriptors that follow it, each of which the kernel has just installed for us and nobody else owns. CMSG_NXTHDR
    // stays within msg_controllen.
    while let Some(record) = unsafe { head.as_ref() } {
        if record.cmsg_level == libc::SOL_SOCKET && record.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(head) }.cast::<RawFd>();
            let head_len = data as usize - head as usize;
            let count = record.cmsg_len.saturating_sub(head_len) / size_of::<RawFd>();
            for n in 0..count {
                // SAFETY: as above; the data may be unaligned for the compiler's knowledge, so read it unaligned.
                fds.push(unsafe { OwnedFd::from_raw_fd(data.add(n).read_unaligned()) });
            }
        }
        // SAFETY: as above.
        head = unsafe { libc::CMSG_NXTHDR(&raw const message, head) };
    }
    Ok((got, fds))
}

/// Monotonic time since some moment.
#[must_use]
pub fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time (user and system) that this process has used so far.
#[must_use]
pub fn process_cpu() -> Duration {
    // SAFETY: rusage is plain data; all zeroes is a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a writable rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } < 0 {
        return Duration::ZERO;
    }
    let part = |time: libc::timeval| {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Lets the calling thread run on one processor only.
///
/// # Errors
/// Whatever `sched_setaffinity(2)` reports: EINVAL for a processor that there is not, or that we may not use.
pub fn pin_to_cpu(cpu: u16) -> io::Result<()> {
    const BITS: usize = usize::BITS as usize;
    let mut set = [0_usize; 65_536 / BITS];
    set[usize::from(cpu) / BITS] = 1 << (usize::from(cpu) % BITS);
    // SAFETY: thread 0 is the caller; `set` holds size_of_val(&set) readable bytes, laid out as the kernel wants: native words.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) }).map(drop)
}

/// A set of descriptors that is one itself: it can be read while any of them can.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// Whatever `epoll_create1(2)` reports (usually EMFILE).
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel has just returned `fd`; nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor as bit `bit` (less than 64) of [`Self::ready`]; one that is in the set already gets another bit. It leaves
    /// the set when it is closed everywhere.
    ///
    /// # Errors
    /// Whatever `epoll_ctl(2)` reports.
    pub fn add(&self, fd: BorrowedFd<'_>, bit: usize) -> io::Result<()> {
        let events = u32::try_from(libc::EPOLLIN).map_err(io::Error::other)?;
        let mut event = libc::epoll_event { events, u64: bit as u64 };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is a valid epoll_event that outlives the call.
        let mut control = |what| check(unsafe { libc::epoll_ctl(set, what, fd, &raw mut event) });
        match control(libc::EPOLL_CTL_ADD) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                control(libc::EPOLL_CTL_MOD).map(drop)
            }
            done => done.map(drop),
        }
    }

    /// Takes a descriptor out of the set, if it is in it.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: EPOLL_CTL_DEL ignores the event.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// The bits of those that can be read now, or have hung up.
    ///
    /// # Errors
    /// Whatever `epoll_wait(2)` reports.
    pub fn ready(&self) -> io::Result<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let set = self.0.as_raw_fd();
        // SAFETY: `events` has room for 64 and outlives the call, which does not wait.
        let found = check(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, 0) })?;
        let found = usize::try_from(found).unwrap_or(0);
        Ok(events[..found].iter().fold(0, |bits, event| bits | 1 << (event.u64 & 63)))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that can be read once a time is over.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// Whatever `timerfd_create(2)` reports (usually EMFILE).
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create takes no pointers.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel has just returned `fd`; nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Can be read after `time` from now on; never, without one.
    ///
    /// # Errors
    /// Whatever `timerfd_settime(2)` reports.
    pub fn set(&self, time: Option<Duration>) -> io::Result<()> {
        const NEVER: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = time.map_or(NEVER, |time| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            // A zero would be "never".
            tv_nsec: i32::try_from(time.subsec_nanos().max(1)).unwrap_or(1).into(),
        });
        let new = libc::itimerspec { it_interval: NEVER, it_value: value };
        let fd = self.0.as_raw_fd();
        // SAFETY: `new` is a valid itimerspec that outlives the call; the old value is not asked for.
        check(unsafe { libc::timerfd_settime(fd, 0, &raw const new, std::ptr::null_mut()) })
            .map(drop)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
