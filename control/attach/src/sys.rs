//! What needs `unsafe` code: signals that end system calls, and memory that is mapped anew. The
//! only file of this crate with `unsafe` in it.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use vmlan_ram::{Map, Mapping, Region, Slice, Window};

use crate::memory::sealed_memfd;

fn check(ret: c_int) -> io::Result<()> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where the next peek at `sock` begins (`SO_PEEK_OFF`, unix(7)). Each peek moves it on, and what
/// is received moves it back. 0 if none was ever made.
///
/// # Errors
/// That of the system.
pub fn peek_offset(sock: BorrowedFd<'_>) -> io::Result<usize> {
    let (mut place, mut len): (c_int, _) =
        (0, libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0));
    // SAFETY: `place` and `len` outlive the call, which writes at most `len` bytes to `place`.
    check(unsafe {
        let to = (&raw mut place).cast();
        let name = libc::SO_PEEK_OFF;
        libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len)
    })?;
    Ok(usize::try_from(place).unwrap_or(0))
}

/// Has the next peek at `sock` begin behind so many bytes.
///
/// # Errors
/// That of the system.
pub fn set_peek_offset(sock: BorrowedFd<'_>, place: c_int) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    // SAFETY: `place` outlives the call, which reads `len` bytes of it.
    check(unsafe {
        let from = (&raw const place).cast();
        libc::setsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, from, len)
    })
}

/// Sends bytes, and has the kernel note how many went in the first word of a file, by the same
/// system call (`sendmmsg`): its part of a call is completed before a thread that is killed ends.
///
/// The kernel is given a message and has the word for its note right behind it. The message says
/// which memory and which descriptors are sent, so it is to lie where nobody else can write to it.
/// Hence it ends with the last bytes of memory of ours, and the file is mapped behind that.
#[derive(Debug)]
pub struct Sending {
    map: Arc<Map>,
    notes: Window,
}

impl Sending {
    /// Bytes of ours in front of the file: a multiple of all page sizes there are.
    const OURS: usize = 1 << 16;

    /// By notes in the first `len` bytes of `file`.
    ///
    /// # Errors
    /// That of the system.
    pub fn noted_in(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let pages = SharedPages::new(Self::OURS + len)?.0;
        // As any memory of somebody else's it is checked.
        drop(SharedPages::of(file, len)?);
        pages.exchange_from(Self::OURS, file)?;
        let notes = pages.window(Self::OURS, len).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { map: pages.map, notes })
    }

    /// The file.
    pub fn notes(&self) -> &Window {
        &self.notes
    }

    /// Sends `bytes`, and `fd` with the first of them, without waiting and without SIGPIPE. For one
    /// thread at a time.
    ///
    /// # Errors
    /// That of the system: nothing was sent and nothing noted; or the note could not be stored.
    pub fn send(
        &self,
        sock: BorrowedFd<'_>,
        bytes: Slice<'_>,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let at = (Self::OURS - size_of::<libc::msghdr>()) as u64;
        let place = self.map.slice(at, size_of::<libc::mmsghdr>());
        let place = place.ok_or(io::ErrorKind::InvalidInput)?.as_raw().0;
        let place = place.cast_mut().cast::<libc::mmsghdr>();
        let (from, len) = bytes.as_raw();
        let mut part = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        let mut control = [0_u64; 4];
        // SAFETY: all zeros is a valid msghdr. `place` is an mmsghdr's length of mapped memory, and
        // aligned: it is a msghdr before a page. Its msghdr is in pages that no other process has,
        // and callers are one thread at a time. `control` is aligned, with room for the header of
        // one descriptor. `part` and `control` outlive the call, which reads them, the bytes of the
        // slice (mapped as long as that lives) and the msghdr, and stores a word behind that.
        let sent = unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            if let Some(fd) = fd {
                let size = c_uint::try_from(size_of::<c_int>()).unwrap_or(0);
                message.msg_control = (&raw mut control).cast();
                message.msg_controllen = libc::CMSG_SPACE(size) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as _;
                libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(fd.as_raw_fd());
            }
            (&raw mut (*place).msg_hdr).write(message);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // Not the library's function: musl's makes a call for each message, and notes itself.
            libc::syscall(libc::SYS_sendmmsg, sock.as_raw_fd(), place, 1, flags)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Ends blocking system calls of the thread that made it: a timer that signals this thread again
/// and again. The handler does nothing; it is there, without `SA_RESTART`, so that calls return
/// EINTR. The daemon's watchdog uses the same signal.
#[derive(Debug)]
pub struct Interrupter {
    /// A pointer, which keeps this value in its thread.
    timer: libc::timer_t,
}

impl Interrupter {
    /// A timer that does not run.
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

    /// Runs `call`, whose system call is interrupted each time `patience` has passed: the first
    /// signal may come just before it begins to wait.
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

/// Memory of ours whose address stays, while the file behind it can be exchanged. Whoever was given
/// the file before keeps memory that nobody looks at any more.
#[derive(Debug)]
pub struct SharedPages {
    map: Arc<Map>,
    len: usize,
}

impl SharedPages {
    /// `len` bytes of zeros, a multiple of the page size; and the file they are in.
    pub fn new(len: usize) -> io::Result<(Self, OwnedFd)> {
        let file = Self::file(len)?;
        Ok((Self::of(&file, len)?, file))
    }

    /// Those of a file.
    pub fn of(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(file.as_fd(), 0, len as u64).map_err(io::Error::other)?;
        let region = Region::new(0, len as u64, 0, 0, Arc::new(mapping));
        let map = Map::new(vec![region.map_err(io::Error::other)?], None);
        Ok(Self { map: Arc::new(map.map_err(io::Error::other)?), len })
    }

    fn file(len: usize) -> io::Result<OwnedFd> {
        sealed_memfd(c"vmlan-registers", len as u64)
    }

    pub fn window(&self, offset: usize, len: usize) -> Option<Window> {
        self.map.window(offset as u64, len, 4096)
    }

    /// Puts a fresh file of zeros behind the memory.
    ///
    /// # Errors
    /// That of the system: nothing has changed.
    pub fn renew(&self) -> io::Result<OwnedFd> {
        let file = Self::file(self.len)?;
        self.exchange(&file)?;
        Ok(file)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts `file` behind the memory, which is as long and sealed.
    ///
    /// # Errors
    /// That of the system: nothing has changed.
    pub fn exchange(&self, file: &OwnedFd) -> io::Result<()> {
        self.exchange_from(0, file)
    }

    /// The same with the memory from `offset` on, a multiple of the page size.
    fn exchange_from(&self, offset: usize, file: &OwnedFd) -> io::Result<()> {
        let rest = self.map.slice(offset as u64, self.len.saturating_sub(offset));
        let (at, len) = rest.map_or((std::ptr::null(), 0), |s| s.as_raw());
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: at..at + len is the mapping that `new` made, or its end, which `map` keeps alive
        // and nobody else has; all access to it is by the atomics of windows, which do not care
        // whose values they meet. The new file is as long, and sealed.
        unsafe { rustix::mm::mmap(at.cast_mut().cast(), len, prot, flags, file, 0)? };
        Ok(())
    }
}
