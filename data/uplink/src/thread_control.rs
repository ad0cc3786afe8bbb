//! What the control threads share: how they are woken and stopped, and locks that outlive a panic.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::sys;

/// Looks at a taken lock before a frame or a record is given up: some microseconds.
const SPINS: u32 = 256;

/// Longest wait for a thread that was told to end.
pub(crate) const CLOSE: Duration = Duration::from_millis(800);

/// Wakes a control thread that sleeps in `poll`, or tells it to end.
#[derive(Debug)]
pub(crate) struct Wake {
    event: OwnedFd,
    stop: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { event: sys::eventfd()?, stop: AtomicBool::new(false) })
    }

    pub(crate) fn wake(&self) {
        sys::notify(self.event.as_fd());
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes note of all wake-ups so far.
    pub(crate) fn clear(&self) {
        // One read takes all there is, or nothing.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Sleeps for `time`, or until it is stopped.
    pub(crate) fn sleep(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.stopped() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sys::poll(&mut [PollFd::new(&self.event, PollFlags::IN)], Some(left));
            self.clear();
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Counts who wants a lock that a busy worker takes again and again: while it is not 0, pulls
/// stand back.
#[derive(Debug, Default)]
pub(crate) struct Wanted(AtomicUsize);

impl Wanted {
    /// Locks `m` for the control thread, with pulls standing back meanwhile.
    pub(crate) fn lock<'a, T>(&self, m: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let guard = lock(m);
        self.0.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Locks `m` for a pull, if nobody else has it or waits for it.
    pub(crate) fn try_lock<'a, T>(&self, m: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        if self.0.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match m.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits until `end` for a thread that has been told to end. False: it hangs in a system call, and
/// is left behind.
pub(crate) fn join(thread: JoinHandle<()>, end: Instant) -> bool {
    while !thread.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(200));
    }
    let finished = thread.is_finished();
    if finished {
        // A panic in it has been reported by the runtime.
        let _ = thread.join();
    }
    finished
}

/// Locks `m`. The states behind our locks are valid between any two statements, so a panic
/// elsewhere does not spoil them.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `m`, unless it stays taken: its holder copies one frame or record, or was put to sleep.
pub(crate) fn try_lock<T>(m: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..SPINS {
        match m.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}
