//! Doorbells and interrupts: eventfds that the front end hands over.
//!
//! A write to an eventfd waits while its counter is full, unless the open file is non-blocking. We make it so, but
//! the front end shares the open file, and can clear the flag and fill the counter at any time
//! (`reliability.md` F8). So nobody writes to one whom nobody interrupts: the workers have a watchdog, a port's own thread a
//! timer ([`guard_thread`]). The signal ends the write with EINTR, and [`Call`] never writes to that descriptor again.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmlan_nic::Interrupt;

use crate::limit::IrqLimit;
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

thread_local! {
    static GUARD: OnceCell<sys::Interrupter> = const { OnceCell::new() };
}

/// How long a port's own thread may take for one write.
const PATIENCE: Duration = Duration::from_millis(50);

/// Sees to it that no [`Call`] can keep the calling thread for ever.
///
/// # Errors
/// That of the system: this thread must not raise interrupts.
pub fn guard_thread() -> io::Result<()> {
    let timer = sys::Interrupter::new()?;
    GUARD.with(|guard| guard.set(timer)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Writes to `fd`, and is interrupted if that takes too long and this is a port's own thread.
fn write(fd: &File) -> io::Result<usize> {
    let one = || {
        let mut fd = fd;
        fd.write(&1u64.to_ne_bytes())
    };
    GUARD.with(|guard| match guard.get() {
        Some(timer) => timer.during(PATIENCE, one),
        None => one(),
    })
}

/// What the interrupts of one port cost those who raise them, whoever is connected to it: else a front end would begin
/// afresh by coming again, or by exchanging its descriptor.
///
/// A write wakes whoever waits for the eventfd, and a front end can make that hundreds of thousands of epoll watches:
/// 50 ms of a worker's time for each interrupt, which no signal ends. CPU time tells it from a worker that was preempted;
/// asking for it costs system calls, so it is asked for only for a while after a write that seemed slow.
#[derive(Debug, Default)]
pub struct Account {
    /// Until then, on [`sys::monotonic`], writes are measured in CPU time.
    measured: AtomicU64,
    debt: Mutex<Debt>,
    broken: AtomicBool,
}

/// CPU time of slow writes that is not forgiven yet.
#[derive(Debug, Default)]
struct Debt {
    time: Duration,
    writes: u32,
    at: Duration,
}

/// A write that takes longer is looked at more closely. It may only have been preempted.
const SUSPECT: Duration = Duration::from_micros(500);

/// How long to look closely: what the first write of a crowd costs unseen is had that often at most.
const MEASURED: Duration = Duration::from_secs(10);

/// A front end that owes that much CPU time, of more than [`SLOW`] writes, is given up.
const DEBT: Duration = Duration::from_millis(5);

/// A single write may have been charged with what the machine did meanwhile.
const SLOW: u32 = 3;

/// What is forgiven: 5 ms in each second. What others do to a port is forgotten after 10 s.
const FORGIVEN: u32 = 200;
const MOST: Duration = Duration::from_millis(50);

impl Account {
    /// True once after a write hung, failed, or was one too many that was slow.
    #[must_use]
    pub fn take_broken(&self) -> bool {
        self.is_broken() && self.broken.swap(false, Ordering::Relaxed)
    }

    /// True until it is taken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Makes a write. False: it was one slow write too many.
    fn timed<T>(&self, write: impl FnOnce() -> T) -> (T, bool) {
        let start = sys::monotonic();
        let before = (start < self.measured.load(Ordering::Relaxed)).then(sys::thread_time);
        let done = write();
        let now = sys::monotonic();
        let slow = Duration::from_nanos(now.saturating_sub(start)) > SUSPECT;
        (done, !slow || self.charge(Duration::from_nanos(now), before))
    }

    /// Looks at a write that seemed slow: `before` is the thread's CPU time at its beginning, if that was asked for.
    #[cold]
    fn charge(&self, now: Duration, before: Option<Duration>) -> bool {
        let used = before.map(|before| sys::thread_time().saturating_sub(before));
        if used.is_some_and(|used| used <= SUSPECT) {
            return true;
        }
        let until = u64::try_from((now + MEASURED).as_nanos()).unwrap_or(u64::MAX);
        self.measured.store(until, Ordering::Relaxed);
        let mut debt = self.debt.lock().unwrap_or_else(PoisonError::into_inner);
        used.is_none_or(|used| debt.add(now, used))
    }
}

impl Debt {
    /// True if that is tolerable.
    fn add(&mut self, now: Duration, used: Duration) -> bool {
        self.time = self.time.saturating_sub(now.saturating_sub(self.at) / FORGIVEN);
        if self.time.is_zero() {
            self.writes = 0;
        }
        self.at = now;
        self.time = (self.time + used).min(MOST);
        self.writes = self.writes.saturating_add(1);
        self.time <= DEBT || self.writes <= SLOW
    }
}

/// The interrupt of one ring. The descriptor may be exchanged while the ring runs: VMMs do so to mask it.
#[derive(Debug, Default)]
pub struct Call {
    line: Mutex<Line>,
    raised: AtomicU64,
    stuck: AtomicBool,
    account: Arc<Account>,
    /// The port's limit, and this one's number there.
    limit: Option<(Arc<IrqLimit>, u8)>,
}

impl Call {
    /// One of the port that has this account.
    #[must_use]
    pub fn new(account: Arc<Account>) -> Self {
        Self { account, ..Self::default() }
    }

    /// One that the port's limit holds for, as number `who`.
    #[must_use]
    pub fn limited(account: Arc<Account>, limit: Arc<IrqLimit>, who: u8) -> Self {
        Self { account, limit: Some((limit, who)), ..Self::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on interrupts go to `fd`; to nobody if `None`. One that hung stays stuck whatever it is given: else a
    /// front end could park one worker after the other.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.line().fd = fd.map(|fd| Arc::new(fd.into()));
    }

    /// Only notes interrupts until [`Call::release`]. While the attach thread has a port's locks it must make no write
    /// that could hang until its timer ends it, or it would take the workers that wait for them along.
    pub fn hold(&self) {
        self.line().held = true;
    }

    /// Raises what was noted. Call without locks.
    pub fn release(&self) {
        let mut line = self.line();
        line.held = false;
        let pending = std::mem::take(&mut line.pending);
        drop(line);
        if pending {
            self.raise();
        }
    }

    /// Delivers what the limit held back. Call without locks.
    pub fn deliver(&self) {
        if let Some(fd) = self.target() {
            self.write(&fd);
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

    #[cold]
    fn break_off(&self) {
        self.stuck.store(true, Ordering::Relaxed);
        self.account.broken.store(true, Ordering::Relaxed);
    }

    /// The descriptor to write to now; `None` if there is none, or the interrupt was noted.
    fn target(&self) -> Option<Arc<File>> {
        if self.is_stuck() {
            return None;
        }
        let mut line = self.line();
        line.pending |= line.held;
        if line.held { None } else { line.fd.clone() }
    }

    /// The lock is not held: exchanging the descriptor must not wait for it.
    fn write(&self, fd: &File) {
        self.raised.fetch_add(1, Ordering::Relaxed);
        let (done, tolerable) = self.account.timed(|| write(fd));
        // WouldBlock: the counter is full, so an interrupt is pending already.
        let failed = done.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock);
        if failed || !tolerable {
            self.break_off();
        }
    }
}

impl Interrupt for Call {
    fn raise(&self) -> bool {
        // One that reaches nobody, or not yet, uses up nothing of the limit.
        let Some(fd) = self.target() else { return true };
        let admitted = self.limit.as_ref().is_none_or(|(limit, who)| limit.admits(*who));
        if admitted {
            self.write(&fd);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_writes_are_forgiven_with_time_only() {
        let ms = Duration::from_millis;
        let slow = |every, used| {
            let mut debt = Debt::default();
            (1..100).take_while(|i| debt.add(every * *i, used)).count()
        };
        assert_eq!(slow(ms(1), ms(50)), 3, "a crowd");
        assert_eq!(slow(ms(2000), ms(50)), 3, "with pauses");
        assert_eq!(slow(ms(1), ms(1)), 5, "a small crowd");
        assert_eq!(slow(ms(500), ms(1)), 99, "a machine with its own troubles");
        assert_eq!(slow(ms(11_000), ms(50)), 99, "50 ms in 11 s");
    }

    #[test]
    fn a_thread_has_one_guard() {
        let guard = || std::thread::spawn(|| (guard_thread().is_ok(), guard_thread().is_err()));
        assert_eq!(guard().join().unwrap(), (true, true));
    }
}
