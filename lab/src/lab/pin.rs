//! On which cores processes run.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a process may run; what it starts inherits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    /// Where the kernel likes.
    Free,
    /// On the first core this program may use.
    First,
    /// On the last one.
    Last,
}

/// Which process runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Where the kernel likes.
    Free,
    /// The switch on the last core, the guests on the first.
    Apart,
    /// The guest on port `b` has the first core to itself; everybody else is on the last.
    Receiver,
}

impl Cores {
    /// For the guest on this port; `None`: the switch.
    pub(super) fn of(self, port: Option<&str>) -> Pin {
        match (self, port) {
            (Self::Free, _) => Pin::Free,
            (_, None) => Pin::Last,
            (Self::Receiver, Some(port)) if port != "b" => Pin::Last,
            _ => Pin::First,
        }
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Free => "cores as the kernel schedules",
            Self::Apart => "pinned: the switch on the last core, the guests on the first",
            Self::Receiver => {
                "pinned: the receiver alone on the first core, switch and sender on the last"
            }
        })
    }
}

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

    #[test]
    fn who_is_pinned_where() {
        let pins = |cores: Cores| [None, Some("a"), Some("b")].map(|who| cores.of(who));
        assert_eq!(pins(Cores::Free), [Pin::Free; 3]);
        assert_eq!(pins(Cores::Apart), [Pin::Last, Pin::First, Pin::First]);
        assert_eq!(pins(Cores::Receiver), [Pin::Last, Pin::Last, Pin::First]);
    }
}
