//! On which cores processes run.

use vmlan_harness::Pin;

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
    /// On the two cores between which a cache line's way is read. With two there is no choice, and
    /// the kernel places best: a worker that spins beside the threads that answer registers, on one
    /// core, makes each trip a wait for that core, and what does without trips looks better than it
    /// is.
    pub(crate) fn compared() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores <= 2 { Self::Free } else { Self::Apart }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_pinned_where() {
        assert!([Cores::Free, Cores::Apart].contains(&Cores::compared()));
        let pins = |cores: Cores| [None, Some("a"), Some("b")].map(|who| cores.of(who));
        assert_eq!(pins(Cores::Apart), [Pin::Last, Pin::First, Pin::First]);
        assert_eq!(pins(Cores::Receiver), [Pin::Last, Pin::Last, Pin::First]);
    }
}
