//! On which cores processes run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a process may run; what it starts inherits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pin {
    /// Where the kernel likes.
    Free,
    /// On the first core this program may use.
    First,
    /// On the last one.
    Last,
}

/// Who is pinned, for the report.
pub(crate) const PINNED: &str = "pinned: the switch on the last core, the guests on the first";
/// The same for the default.
pub(crate) const FREE: &str = "cores as the kernel schedules";

impl Pin {
    /// Runs `start` so that a process it starts is pinned. A child takes its parent's cores at birth: nobody has to be quick.
    pub(super) fn around<T>(self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self == Self::Free {
            return start();
        }
        let all = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let core = if self == Self::First { cores.next() } else { cores.next_back() };
        let mut one = CpuSet::new();
        one.set(core.unwrap_or(0));
        sched_setaffinity(None, &one)?;
        let started = start();
        sched_setaffinity(None, &all)?;
        started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_started_is_pinned() {
        let before = sched_getaffinity(None).unwrap();
        for pin in [Pin::First, Pin::Last] {
            let within = pin.around(|| Ok(sched_getaffinity(None)?.count())).unwrap();
            assert_eq!(within, 1);
            assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        }
        assert_eq!(Pin::Free.around(|| Ok(7)).unwrap(), 7);
    }
}
