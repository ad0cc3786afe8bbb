//! Clocks, and the timer of a port: it delivers the interrupts that were held back.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use vmlan_nic::notify::moderate::Clock;

const NANOSECONDS: u64 = 1_000_000_000;

/// What a clock shows. None of those that are asked here ever shows a time before its beginning.
fn clock(id: ClockId) -> Duration {
    Duration::try_from(rustix::time::clock_gettime(id)).unwrap_or_default()
}

/// CPU time that the calling thread has used.
pub fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic() -> u64 {
    let now = clock(ClockId::Monotonic);
    now.as_secs() * NANOSECONDS + u64::from(now.subsec_nanos())
}

/// A timerfd on [`monotonic`], which the port's thread watches.
#[derive(Debug)]
pub struct Timer(File);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> std::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?.into()))
    }

    /// To poll: readable once the timer has expired.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes its expiry.
    pub fn take(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl Clock for Timer {
    fn now(&self) -> u64 {
        monotonic()
    }

    /// It expires at `at` nanoseconds of [`monotonic`], instead of when it was to.
    fn set_timer(&self, at: u64) {
        let at = at.max(1); // 0 would disarm it
        let it_value = Timespec {
            tv_sec: (at / NANOSECONDS).cast_signed(),
            tv_nsec: (at % NANOSECONDS).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        let _ = rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once);
    }
}
