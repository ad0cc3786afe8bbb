//! System calls that `std` has no door for. The only file of this crate with `unsafe` in it.
//!
//! Every descriptor that comes out of here is owned already: no return path can leak it.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vmlan_ram::{Map, Mapping, Region, Window};

/// Descriptors taken with one `recvmsg`. A message may carry 8 (`wire::Request::fds`); the rest of the room is there
/// so that a sender of a few too many is told so, instead of being cut off by `MSG_CTRUNC`.
pub const MAX_FDS: usize = 16;

/// Bytes of a control message for [`MAX_FDS`] descriptors, in words, which aligns it for `cmsghdr`.
const CONTROL_WORDS: usize = (size_of::<libc::cmsghdr>() + MAX_FDS * size_of::<RawFd>()) / 8;

fn check(ret: c_int) -> io::Result<c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn own(ret: c_int) -> io::Result<OwnedFd> {
    let fd = check(ret)?;
    // SAFETY: each caller passes what the kernel has just returned as a new descriptor: nobody else
    // owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What one [`recv`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; 0 is the end of the stream.
    pub bytes: usize,
    /// More descriptors were sent than fit or than this process may open: the kernel threw some away.
    pub truncated: bool,
}

/// Receives into `buf` without waiting, and appends the descriptors that came along to `fds`.
///
/// # Errors
/// That of `recvmsg`.
pub fn recv(sock: BorrowedFd<'_>, buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<Received> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all zeros is a valid msghdr: nothing attached.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `msg` points at `iov` (over `buf`, borrowed exclusively) and `control`; both outlive the call.
    let got = unsafe { libc::recvmsg(sock.as_raw_fd(), &raw mut msg, flags) };
    let Ok(bytes) = usize::try_from(got) else {
        return Err(io::Error::last_os_error());
    };
    take_fds(&msg, fds);
    Ok(Received { bytes, truncated: msg.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Owns every descriptor in the control messages that the kernel wrote for `msg`.
fn take_fds(msg: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: called right after recvmsg, so msg_control holds msg_controllen bytes of the kernel's; the
    // macro answers null or a header within them.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(msg) };
    // SAFETY: not null means a header the kernel wrote, inside the control buffer.
    while let Some(record) = unsafe { head.as_ref() } {
        if record.cmsg_level == libc::SOL_SOCKET && record.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: the data of a record starts behind its header and ends at cmsg_len.
            let data = unsafe { libc::CMSG_DATA(head) }.cast::<RawFd>();
            let bytes = record.cmsg_len.saturating_sub(data as usize - head as usize);
            for i in 0..bytes / size_of::<RawFd>() {
                // SAFETY: descriptor i lies within cmsg_len; the kernel installed it for us just now and
                // nobody else owns it.
                fds.push(unsafe { OwnedFd::from_raw_fd(data.add(i).read_unaligned()) });
            }
        }
        // SAFETY: as for the first header.
        head = unsafe { libc::CMSG_NXTHDR(msg, head) };
    }
}

/// Sends `bytes`, and `fd` with the first of them, without waiting and without SIGPIPE. Returns how many bytes went.
///
/// # Errors
/// That of `sendmsg`.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if let Some(fd) = fd {
        const LEN: u32 = RawFd::BITS / 8;
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: computes only; one descriptor fits `control`, which has room for MAX_FDS.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(LEN) } as usize;
        // SAFETY: `control` is aligned and has room for a header and one descriptor, so the first
        // header and its data lie inside it.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const msg);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(LEN) as usize;
            libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `msg` points at `iov` and `control`, which outlive the call; sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(sock.as_raw_fd(), &raw const msg, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A descriptor that only names the file at `path` (O_PATH): a link itself, not what it points to.
///
/// # Errors
/// That of `open`.
pub fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a C string that outlives the call.
    own(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) })
}

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Bytes, a connection, a hang-up.
    Read,
    /// Room to send, a hang-up.
    Write,
}

/// Waits until one of `fds` is ready, at most `timeout`. Entry i of the answer says whether `fds[i]` is; all
/// false after the timeout or a signal. `None` entries are left out.
///
/// # Errors
/// That of `ppoll`.
pub fn poll<const N: usize>(
    fds: [Option<(BorrowedFd<'_>, Wait)>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut set = fds.map(|entry| match entry {
        Some((fd, Wait::Read)) => pollfd(fd.as_raw_fd(), libc::POLLIN),
        Some((fd, Wait::Write)) => pollfd(fd.as_raw_fd(), libc::POLLOUT),
        None => pollfd(-1, 0),
    });
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `set` has N entries, `limit` is null or a timespec that outlives the call; a null mask is allowed.
    let ret = unsafe { libc::ppoll(set.as_mut_ptr(), N as libc::nfds_t, limit, std::ptr::null()) };
    match check(ret) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(e) => Err(e),
        Ok(_) => Ok(set.map(|entry| entry.revents != 0)),
    }
}

fn pollfd(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// A UNIX stream socket, non-blocking and close-on-exec.
///
/// # Errors
/// That of `socket`.
pub fn unix_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// The address of a socket file, with its length. A path has at most 107 bytes (unix(7)).
fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut addr: libc::sockaddr_un = unsafe { zeroed() };
    addr.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default();
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= addr.sun_path.len() || bytes.is_empty() || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has 1 to 107 bytes, none of them zero",
        ));
    }
    for (to, from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed() as libc::c_char;
    }
    Ok((addr, libc::socklen_t::try_from(size_of_val(&addr)).unwrap_or_default()))
}

/// Checks that `path` can be a socket's.
///
/// # Errors
/// `InvalidInput` with the reason.
pub fn check_path(path: &Path) -> io::Result<()> {
    address(path).map(drop)
}

/// Gives `sock` the file `path`, which must not exist.
///
/// # Errors
/// That of `bind`; `InvalidInput` for a path that does not fit.
pub fn bind(sock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (addr, len) = address(path)?;
    // SAFETY: `addr` is a sockaddr_un of `len` bytes that outlives the call.
    check(unsafe { libc::bind(sock.as_raw_fd(), (&raw const addr).cast(), len) }).map(drop)
}

/// Lets `sock` take connections.
///
/// # Errors
/// That of `listen`.
pub fn listen(sock: BorrowedFd<'_>, backlog: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(sock.as_raw_fd(), backlog) }).map(drop)
}

/// Ends what `sock` is for, whoever has descriptors of it still: nobody can connect to a listener any more.
pub fn shutdown(sock: BorrowedFd<'_>) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Connects `sock` to `path` without waiting: a UNIX socket is connected at once or not at all.
///
/// # Errors
/// That of `connect`: `WouldBlock` if the listener's backlog is full.
pub fn connect(sock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (addr, len) = address(path)?;
    // SAFETY: as for `bind`.
    check(unsafe { libc::connect(sock.as_raw_fd(), (&raw const addr).cast(), len) }).map(drop)
}

/// A non-blocking eventfd.
///
/// # Errors
/// That of `eventfd`.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec, exclusively ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    let (s, ns) = (u64::try_from(t.tv_sec), u32::try_from(t.tv_nsec));
    Duration::new(s.unwrap_or(0), ns.unwrap_or(0))
}

/// Makes reads and writes on `fd` fail rather than wait. The flag belongs to the open file, which a peer that
/// sent us the descriptor shares: it can clear it again.
///
/// # Errors
/// That of `fcntl`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    if flags & libc::O_NONBLOCK != 0 {
        return Ok(());
    }
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// A memfd of `len` zero bytes whose size nobody can change any more.
///
/// # Errors
/// That of `memfd_create`, `ftruncate` or `fcntl`.
pub fn sealed_memfd(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is a C string that outlives the call.
    let file = std::fs::File::from(own(unsafe { libc::memfd_create(name.as_ptr(), flags) })?);
    file.set_len(len)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

/// True if the pages of `fd` are this machine's own: memory or a local disk. On other file systems (FUSE, networks, or
/// overlays that may hide either) touching a mapping could block for ever.
///
/// # Errors
/// That of `fstatfs`.
pub fn is_local(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const DISKS: [i64; 6] = [
        libc::EXT4_SUPER_MAGIC,
        libc::XFS_SUPER_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        libc::TMPFS_MAGIC,
        libc::HUGETLBFS_MAGIC,
    ];
    // Memory has seals. Asking for them asks no file system, as `fstatfs` does: a FUSE daemon need not answer that.
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
        return Ok(true);
    }
    let mut st = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `st` has room for a statfs.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), st.as_mut_ptr()) })?;
    // SAFETY: fstatfs succeeded, so it filled `st`.
    let kind = unsafe { st.assume_init() }.f_type;
    Ok(DISKS.contains(&kind))
}

/// CLOCK_MONOTONIC, in nanoseconds.
#[must_use]
pub fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec, exclusively ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// A timer on [`monotonic`]: readable once it has expired.
///
/// # Errors
/// That of `timerfd_create`.
pub fn timer() -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: no pointers.
    own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })
}

/// Sets a timer to expire at `at` nanoseconds of [`monotonic`], instead of when it was to.
pub fn set_timer(timer: BorrowedFd<'_>, at: u64) {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = at.max(1); // 0 would disarm it
    let it_value = libc::timespec {
        tv_sec: libc::time_t::try_from(at / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: i64::try_from(at % 1_000_000_000).unwrap_or(0),
    };
    let spec = libc::itimerspec { it_interval: zero, it_value };
    let flags = libc::TFD_TIMER_ABSTIME;
    // SAFETY: `spec` outlives the call; the old value is not asked for.
    unsafe {
        libc::timerfd_settime(timer.as_raw_fd(), flags, &raw const spec, std::ptr::null_mut())
    };
}

/// Ends blocking system calls of the thread that made it: a timer that signals this thread again and again. The handler does
/// nothing; it is there, without `SA_RESTART`, so that calls return EINTR. The daemon's watchdog uses the same signal.
#[derive(Debug)]
pub struct Interrupter {
    /// A pointer, which keeps this value in its thread.
    timer: libc::timer_t,
}

impl Interrupter {
    /// A timer that does not run.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> io::Result<Self> {
        const SIGNAL: c_int = libc::SIGUSR1;
        extern "C" fn nothing(_: c_int) {}
        // SAFETY: all zeros is a valid sigaction, sigevent and (with sigemptyset) sigset_t. The handler does nothing, so it
        // may run anywhere. All pointers are to values that outlive the calls.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            check(libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()))?;
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::ptr::null_mut();
            let clock = libc::CLOCK_MONOTONIC;
            check(libc::timer_create(clock, &raw mut event, &raw mut timer))?;
            Ok(Self { timer })
        }
    }

    /// Runs `call`, whose system call is interrupted each time `patience` has passed: the first signal may come just
    /// before it begins to wait.
    pub fn during<T>(&self, patience: Duration, call: impl FnOnce() -> T) -> T {
        self.set(patience);
        let done = call();
        self.set(Duration::ZERO);
        done
    }

    fn set(&self, every: Duration) {
        let every = libc::timespec {
            tv_sec: libc::time_t::try_from(every.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: i64::from(every.subsec_nanos()),
        };
        let spec = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer is ours until drop; `spec` outlives the call.
        unsafe { libc::timer_settime(self.timer, 0, &raw const spec, std::ptr::null_mut()) };
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and not used any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// A descriptor that becomes readable each time `fd` is written to, until [`take_edge`]. So `fd` itself, which its
/// sender can make such that reads block, need not be read.
///
/// # Errors
/// That of `epoll_create1` or `epoll_ctl`.
pub fn edge_watch(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let watch = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 0 };
    let (ep, fd) = (watch.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: `event` outlives the call.
    check(unsafe { libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
    Ok(watch)
}

/// True if there was a write since the last call.
#[must_use]
pub fn take_edge(watch: BorrowedFd<'_>) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: `event` has room for the one event asked for.
    unsafe { libc::epoll_wait(watch.as_raw_fd(), &raw mut event, 1, 0) > 0 }
}

/// Memory of ours at an address that stays, in a file that can be exchanged: whoever was given the file before keeps
/// memory that nobody looks at any more.
#[derive(Debug)]
pub struct SharedPages {
    map: Arc<Map>,
    len: usize,
}

impl SharedPages {
    /// `len` bytes of zeros, a multiple of the page size; and the file they are in.
    ///
    /// # Errors
    /// That of the system.
    pub fn new(len: usize) -> io::Result<(Self, OwnedFd)> {
        let file = Self::file(len)?;
        let mapping = Mapping::new(file.as_fd(), 0, len as u64).map_err(io::Error::other)?;
        let region = Region::new(0, len as u64, 0, 0, Arc::new(mapping));
        let map = Map::new(vec![region.map_err(io::Error::other)?], None);
        Ok((Self { map: Arc::new(map.map_err(io::Error::other)?), len }, file))
    }

    fn file(len: usize) -> io::Result<OwnedFd> {
        sealed_memfd(c"vmlan-registers", len as u64)
    }

    /// `len` bytes at `offset`.
    #[must_use]
    pub fn window(&self, offset: usize, len: usize) -> Option<Window> {
        self.map.window(offset as u64, len, 4096)
    }

    /// Puts a fresh file of zeros behind the memory.
    ///
    /// # Errors
    /// That of the system: nothing has changed.
    pub fn renew(&self) -> io::Result<OwnedFd> {
        let file = Self::file(self.len)?;
        let (at, len) = self.map.slice(0, self.len).map_or((std::ptr::null(), 0), |s| s.as_raw());
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: at..at + len is the whole of the mapping that `new` made, which `map` keeps alive and nobody else
        // has; all access to it is by the atomics of windows, which do not care whose zeros they meet. The new file is
        // as long, and sealed.
        let p = unsafe { libc::mmap(at.cast_mut().cast(), len, prot, flags, file.as_raw_fd(), 0) };
        if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(file) }
    }
}

/// Adds 1 to an eventfd of our own.
pub fn ring(eventfd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` holds 8 bytes for the length of the call.
    unsafe { libc::write(eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}
