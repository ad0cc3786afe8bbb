//! System calls that `std` does not offer. The only file of this crate with `unsafe` in it.
//!
//! Every descriptor that comes out of here is owned already: no return path can leak it.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use vmlan_ram::{Map, Mapping, Region, Window};

/// Descriptors taken with one `recvmsg`. A message may carry 8 (`wire::Request::limits`); the rest
/// of the room is there so that a sender of a few too many is told so, instead of being cut off by
/// `MSG_CTRUNC`.
pub const MAX_FDS: usize = 16;

const NANOSECONDS: u64 = 1_000_000_000;

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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(sock, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Received { bytes: got.bytes, truncated: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// Sends `bytes`, and `fd` with the first of them, without waiting and without SIGPIPE. Returns how
/// many bytes went.
///
/// # Errors
/// That of `sendmsg`.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fd = fd.as_slice();
    if !fd.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fd)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(sock, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// A descriptor that only names the file at `path` (O_PATH): a link itself, not what it points to.
///
/// # Errors
/// That of `open`.
pub fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Bytes, a connection, a hang-up.
    Read,
    /// Room to send, a hang-up.
    Write,
}

/// Waits until one of `fds` is ready, at most `timeout`. Entry i of the answer says whether `fds[i]`
/// is; all false after the timeout or a signal. `None` entries are left out; there must be another.
///
/// # Errors
/// That of `ppoll`.
pub fn poll<const N: usize>(
    fds: [Option<(BorrowedFd<'_>, Wait)>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut present = fds.into_iter().flatten().map(|(fd, wait)| {
        let flags = match wait {
            Wait::Read => PollFlags::IN,
            Wait::Write => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(fd, flags)
    });
    let first = present.next().ok_or(io::ErrorKind::InvalidInput)?;
    // Those that are there, in order; what is behind them is not shown to the kernel.
    let mut set = std::array::from_fn::<_, N, _>(|_| first.clone());
    let mut count = 1;
    for (to, from) in set.iter_mut().skip(1).zip(present) {
        *to = from;
        count += 1;
    }
    // A time that does not fit is so far away that it never comes.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    match rustix::event::poll(set.get_mut(..count).unwrap_or_default(), timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => return Ok([false; N]),
        other => other?,
    };
    let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
    Ok(fds.map(|entry| entry.is_some() && ready.next().unwrap_or(false)))
}

/// A UNIX stream socket, non-blocking and close-on-exec.
///
/// # Errors
/// That of `socket`.
pub fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The address of a socket file. A path has at most 107 bytes (unix(7)).
fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > 107 || bytes.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has 1 to 107 bytes, none of them zero",
        ));
    }
    Ok(SocketAddrUnix::new(path)?)
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
    Ok(rustix::net::bind(sock, &address(path)?)?)
}

/// Lets `sock` take connections.
///
/// # Errors
/// That of `listen`.
pub fn listen(sock: BorrowedFd<'_>, backlog: c_int) -> io::Result<()> {
    Ok(rustix::net::listen(sock, backlog)?)
}

/// Ends what `sock` is for, whoever has descriptors of it still: nobody can connect to a listener any
/// more.
pub fn shutdown(sock: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(sock, Shutdown::Both);
}

/// Connects `sock` to `path` without waiting: a UNIX socket is connected at once or not at all.
///
/// # Errors
/// That of `connect`: `WouldBlock` if the listener's backlog is full.
pub fn connect(sock: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(sock, &address(path)?)?)
}

/// A non-blocking eventfd.
///
/// # Errors
/// That of `eventfd`.
pub fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds 1 to an eventfd of our own.
pub fn ring(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Makes reads and writes on `fd` fail rather than wait. The flag belongs to the open file, which a
/// peer that sent us the descriptor shares: it can clear it again.
///
/// # Errors
/// That of `fcntl`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if !flags.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    Ok(())
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

/// True if the pages of `fd` are this machine's own: memory or a local disk. On other file systems
/// (FUSE, networks, or overlays that may hide either) touching a mapping could block for ever.
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
    // Memory has seals. Asking for them asks no file system, as `fstatfs` does: a FUSE daemon need
    // not answer that.
    Ok(rustix::fs::fcntl_get_seals(fd).is_ok() || DISKS.contains(&rustix::fs::fstatfs(fd)?.f_type))
}

/// What a clock shows. None of those that are asked here ever shows a time before its beginning.
fn clock(id: ClockId) -> Duration {
    Duration::try_from(rustix::time::clock_gettime(id)).unwrap_or_default()
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CLOCK_MONOTONIC, in nanoseconds.
#[must_use]
pub fn monotonic() -> u64 {
    let now = clock(ClockId::Monotonic);
    now.as_secs() * NANOSECONDS + u64::from(now.subsec_nanos())
}

/// A timer on [`monotonic`]: readable once it has expired.
///
/// # Errors
/// That of `timerfd_create`.
pub fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Sets a timer to expire at `at` nanoseconds of [`monotonic`], instead of when it was to.
pub fn set_timer(timer: BorrowedFd<'_>, at: u64) {
    let at = at.max(1); // 0 would disarm it
    let it_value = Timespec {
        tv_sec: (at / NANOSECONDS).cast_signed(),
        tv_nsec: (at % NANOSECONDS).cast_signed(),
    };
    let once = Itimerspec { it_interval: Timespec::default(), it_value };
    let _ = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
}

/// A descriptor that becomes readable each time `fd` is written to, until [`take_edge`]. So `fd`
/// itself, which its sender can make such that reads block, need not be read.
///
/// # Errors
/// That of `epoll_create1` or `epoll_ctl`.
pub fn edge_watch(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&watch, fd, epoll::EventData::new_u64(0), events)?;
    Ok(watch)
}

/// True if there was a write since the last call.
#[must_use]
pub fn take_edge(watch: BorrowedFd<'_>) -> bool {
    let mut events = [MaybeUninit::uninit(); 1];
    let found = epoll::wait(watch, &mut events, Some(&Timespec::default()));
    found.is_ok_and(|(events, _)| !events.is_empty())
}

fn check(ret: c_int) -> io::Result<()> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends blocking system calls of the thread that made it: a timer that signals this thread again and
/// again. The handler does nothing; it is there, without `SA_RESTART`, so that calls return EINTR. The
/// daemon's watchdog uses the same signal.
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
        // SAFETY: all zeros is a valid sigaction, sigevent and (with sigemptyset) sigset_t. The
        // handler does nothing, so it may run anywhere. All pointers are to values that outlive the
        // calls.
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

    /// Runs `call`, whose system call is interrupted each time `patience` has passed: the first signal
    /// may come just before it begins to wait.
    pub fn during<T>(&self, patience: Duration, call: impl FnOnce() -> T) -> T {
        self.set(patience);
        let done = call();
        self.set(Duration::ZERO);
        done
    }

    fn set(&self, every: Duration) {
        let every = libc::timespec {
            tv_sec: every.as_secs().cast_signed(),
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

/// Memory of ours at an address that stays, in a file that can be exchanged: whoever was given the
/// file before keeps memory that nobody looks at any more.
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
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: at..at + len is the whole of the mapping that `new` made, which `map` keeps alive and
        // nobody else has; all access to it is by the atomics of windows, which do not care whose zeros
        // they meet. The new file is as long, and sealed.
        unsafe { rustix::mm::mmap(at.cast_mut().cast(), len, prot, flags, &file, 0)? };
        Ok(file)
    }
}
