//! CPU time of other processes; signals and timers of ours.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::sys;

/// User and system time that all threads of a process have used; `None` if it is gone.
#[must_use]
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    // proc(5): the command in parentheses may hold spaces; utime and stime are fields 14 and 15.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let per_second = u64::from(sys::ticks_per_second());
    Some(Duration::from_millis(ticks * 1000 / per_second))
}

/// The same to the nanosecond, of the threads that still run; `None` if the process is gone.
#[must_use]
pub(crate) fn run_time(pid: u32) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // Documentation/scheduler/sched-stats.rst: time on the CPU, time in the queue, number of slices.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        sum += Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
    }
    Some(sum)
}

/// A flag that SIGINT and SIGTERM raise.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
    }
    Ok(flag)
}

/// Lets this thread's sleeps, and those of threads it starts, end when they are due, instead of up to 50 us later: what plays a guest
/// keeps its driver's bounds on time (send combining), as a kernel would.
pub(crate) fn exact_timers() {
    // A kernel that refuses leaves the sleeps as they were.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use super::{cpu_time, run_time};
    use std::time::Duration;

    #[test]
    fn our_own_time_grows_with_our_work() {
        let pid = std::process::id();
        let (before, exact) = (cpu_time(pid).unwrap(), run_time(pid).unwrap());
        let mut sum = 0u64;
        while cpu_time(pid).unwrap() < before + Duration::from_millis(30) {
            sum = (0..100_000).fold(sum, |s, n: u64| std::hint::black_box(s ^ n));
        }
        let exact = run_time(pid).unwrap().saturating_sub(exact);
        assert!(exact > Duration::from_millis(10), "{exact:?}");
        assert!(cpu_time(u32::MAX).is_none() && run_time(u32::MAX).is_none());
    }
}
