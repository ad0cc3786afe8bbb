//! On which cores processes and threads run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a process may run; what it starts inherits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Where the kernel likes.
    #[default]
    Free,
    /// On the first core that this program may use.
    First,
    /// On the last one.
    Last,
    /// On these two, as the kernel likes.
    Ends,
    /// On the core of this number.
    Core(usize),
}

impl Pin {
    /// Runs `start` so that a process it starts is pinned: a child takes its parent's cores at
    /// birth. This thread has its own cores back afterwards.
    pub fn around<T>(self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self == Self::Free {
            return start();
        }
        let before = sched_getaffinity(None)?;
        self.this_thread()?;
        let started = start();
        sched_setaffinity(None, &before)?;
        started
    }

    /// Pins the calling thread for good.
    pub fn this_thread(self) -> io::Result<()> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let chosen = match self {
            Self::Free => return Ok(()),
            Self::First => [cores.next(), None],
            Self::Last => [cores.next_back(), None],
            Self::Ends => [cores.next(), cores.next_back()],
            Self::Core(core) => [Some(core), None],
        };
        // The kernel refuses an empty set, and a core that there is not.
        let mut set = CpuSet::new();
        for core in chosen.into_iter().flatten().filter(|core| *core < CpuSet::MAX_CPU) {
            set.set(core);
        }
        Ok(sched_setaffinity(None, &set)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_started_is_pinned() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).unwrap();
        for pin in [Pin::First, Pin::Last, Pin::Core(first)] {
            let within = pin.around(|| Ok(sched_getaffinity(None)?.count())).unwrap();
            assert_eq!(within, 1);
            assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        }
        let last = (0..CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).unwrap();
        let within = Pin::Ends.around(|| Ok(sched_getaffinity(None)?)).unwrap();
        assert!(within.is_set(first) && within.is_set(last));
        assert_eq!(within.count(), before.count().min(2));
        assert_eq!(Pin::Free.around(|| Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_core_that_there_is_not_is_refused() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            assert!(Pin::Core(core).around(|| Ok(())).is_err());
        }
    }
}
