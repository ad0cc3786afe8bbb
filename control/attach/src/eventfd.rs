//! Doorbells and interrupts: eventfds that the front end hands over.
//!
//! A write to an eventfd waits while its counter is full, unless the open file is non-blocking. We make it so, but
//! the front end shares the open file, and can clear the flag and fill the counter at any time
//! (`reliability.md` F8). What stands in its way: whoever watches the workers interrupts one that hangs in such a
//! write by a signal, the write then ends with EINTR, and [`Call`] never writes to that descriptor again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmlan_nic::Interrupt;

use crate::sys;

/// Why a descriptor is no doorbell.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is something else: writing to a pipe, a terminal or a file could block or do harm.
    #[error("the descriptor is no eventfd but `{0}`")]
    NotEventFd(String),
    /// It could not be looked at.
    #[error("cannot look at the descriptor")]
    Io(#[from] io::Error),
}

/// Checks that `fd` is an eventfd, and makes it non-blocking.
///
/// # Errors
/// [`Error`].
pub fn check(fd: OwnedFd) -> Result<OwnedFd, Error> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let link = link.to_string_lossy();
    if link != "anon_inode:[eventfd]" {
        return Err(Error::NotEventFd(link.into_owned()));
    }
    sys::set_nonblocking(fd.as_fd())?;
    Ok(fd)
}

/// How often an eventfd was written to since it was last read, by what /proc tells of it: looking changes nothing,
/// and cannot block. 0 if it cannot be told.
#[must_use]
pub fn count(fd: BorrowedFd<'_>) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let info = info.unwrap_or_default();
    let value = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    value.and_then(|v| u64::from_str_radix(v.trim(), 16).ok()).unwrap_or(0)
}

#[derive(Debug, Default)]
struct Line {
    fd: Option<Arc<File>>,
    held: bool,
    pending: bool,
}

/// The interrupt of one ring. The descriptor may be exchanged while the ring runs: VMMs do so to mask it.
#[derive(Debug, Default)]
pub struct Call {
    line: Mutex<Line>,
    raised: AtomicU64,
    stuck: AtomicBool,
    /// 0: writes are quick. Else one more than the slow ones in succession.
    slow: AtomicU32,
}

/// A write that takes longer is looked at more closely. It may only have been preempted.
const SUSPECT: Duration = Duration::from_micros(500);

/// Writes of that much CPU time in succession until the front end is given up.
const SLOW: u32 = 4;

impl Call {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on interrupts go to `fd`; to nobody if `None`. One that hung stays stuck whatever it is given: else a
    /// front end could park one worker after the other.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.line().fd = fd.map(|fd| Arc::new(fd.into()));
    }

    /// Only notes interrupts until [`Call::release`]. The attach thread is watched by nobody: while it has a port's
    /// locks it must make no write that could hang, or it would take the workers that wait for them along.
    pub fn hold(&self) {
        self.line().held = true;
    }

    /// Raises what was noted. Call without locks.
    pub fn release(&self) {
        let mut line = self.line();
        line.held = false;
        let (pending, fd) = (std::mem::take(&mut line.pending), line.fd.clone());
        drop(line);
        if let (true, Some(fd)) = (pending, fd) {
            let _ = sys::set_nonblocking(fd.as_fd());
            self.raise();
        }
    }

    /// Raises the interrupt from a thread that nobody watches: what the front end has done to the descriptor meanwhile is
    /// undone first. Call without locks.
    pub fn raise_unwatched(&self) {
        let fd = self.line().fd.clone();
        if let Some(fd) = fd {
            let _ = sys::set_nonblocking(fd.as_fd());
            self.raise();
        }
    }

    /// Interrupts raised so far.
    #[must_use]
    pub fn raised(&self) -> u64 {
        self.raised.load(Ordering::Relaxed)
    }

    /// True once a write hung or failed: the front end has broken the descriptor, and its port must be stopped.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// A write wakes whoever waits for the eventfd, and a front end can make that hundreds of thousands of epoll
    /// watches: 20 ms of a worker's time for each interrupt, which no signal ends. CPU time tells it from a worker that
    /// was preempted; asking for it costs two system calls, so it is asked for only when a write seemed slow.
    fn timed<T>(&self, write: impl FnOnce() -> T) -> T {
        let slow = self.slow.load(Ordering::Relaxed);
        if slow == 0 {
            let start = Instant::now();
            let done = write();
            self.slow.store(u32::from(start.elapsed() > SUSPECT), Ordering::Relaxed);
            return done;
        }
        let start = sys::thread_time();
        let done = write();
        let again = sys::thread_time().saturating_sub(start) > SUSPECT;
        self.slow.store(if again { slow + 1 } else { 0 }, Ordering::Relaxed);
        if again && slow >= SLOW {
            self.stuck.store(true, Ordering::Relaxed);
        }
        done
    }

    /// The descriptor to write to now; `None` if there is none, or the interrupt was noted.
    fn target(&self) -> Option<Arc<File>> {
        let mut line = self.line();
        line.pending |= line.held;
        if line.held { None } else { line.fd.clone() }
    }
}

impl Interrupt for Call {
    fn raise(&self) {
        if self.is_stuck() {
            return;
        }
        // The lock is not held during the write: exchanging the descriptor must not wait for it.
        let Some(fd) = self.target() else { return };
        self.raised.fetch_add(1, Ordering::Relaxed);
        match self.timed(|| (&*fd).write(&1u64.to_ne_bytes())) {
            // WouldBlock: the counter is full, so an interrupt is pending already.
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.stuck.store(true, Ordering::Relaxed),
        }
    }
}
