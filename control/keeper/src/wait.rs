//! Waiting for a line, not for ever.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time between two looks whether to give up.
const SLICE: Duration = Duration::from_millis(20);

/// How much of the time that a slice took does not count. A machine that stands still (it is moved,
/// or it is a VM whose host has no time) keeps those we wait for from answering, too.
fn late(took: Duration) -> Duration {
    took.saturating_sub(5 * SLICE)
}

/// Waits until `fd` is readable or at its end.
///
/// # Errors
/// `TimedOut` at `deadline`, or later by as long as the machine stood still; `Interrupted` if
/// `stop` says so, or that of `poll`.
pub fn readable(
    fd: BorrowedFd<'_>,
    mut deadline: Instant,
    stop: impl Fn() -> bool,
) -> io::Result<()> {
    loop {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        if is_ready(fd, PollFlags::IN, left.min(SLICE))? {
            return Ok(());
        }
        if stop() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        deadline += late(now.elapsed());
    }
}

/// True if nobody has the other end any more.
pub fn is_at_end(fd: BorrowedFd<'_>) -> bool {
    is_ready(fd, PollFlags::empty(), Duration::ZERO).unwrap_or(true)
}

/// Waits for `events`, an error or a hang-up.
fn is_ready(fd: BorrowedFd<'_>, events: PollFlags, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).unwrap_or_default();
    match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&time)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_stands_still_takes_no_patience() {
        for busy in [Duration::ZERO, SLICE, 5 * SLICE] {
            assert_eq!(late(busy), Duration::ZERO);
        }
        assert_eq!(late(Duration::from_secs(60)), Duration::from_secs(60) - 5 * SLICE);
    }
}
