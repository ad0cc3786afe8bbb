//! On which cores processes run.

use vmlan_harness::Pin;

/// Which process runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// Where the kernel likes.
    Free,
    /// On the first and the last core, where the kernel likes.
    Two,
    /// The switch on the last core, the guests on the first.
    Apart,
    /// The guest on port `b` has the first core to itself; everybody else is on the last.
    Receiver,
}

impl Cores {
    /// On the two cores between which a cache line's way is read, as on a machine that has no more:
    /// there the kernel places best. Were the switch on one of them, a worker that spins would be
    /// beside the threads that answer registers: each trip would wait for that core, and what does
    /// without trips would look better than it is.
    pub(crate) fn compared() -> Self {
        Self::of_many(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of_many(cores: usize) -> Self {
        if cores <= 2 { Self::Free } else { Self::Two }
    }

    /// For the guest on this port, or who is there in a guest's place; `None`: the switch.
    pub(crate) fn of(self, port: Option<&str>) -> Pin {
        match (self, port) {
            (Self::Free, _) => Pin::Free,
            (Self::Two, _) => Pin::Ends,
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
            Self::Two => "the first and the last core, as the kernel schedules",
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
        assert!([Cores::Free, Cores::Two].contains(&Cores::compared()));
        assert_eq!([2, 3].map(Cores::of_many), [Cores::Free, Cores::Two]);
        let pins = |cores: Cores| [None, Some("a"), Some("b")].map(|who| cores.of(who));
        assert_eq!(pins(Cores::Two), [Pin::Ends; 3], "registers have two cores to be answered on");
        assert_eq!(pins(Cores::Apart), [Pin::Last, Pin::First, Pin::First]);
        assert_eq!(pins(Cores::Receiver), [Pin::Last, Pin::Last, Pin::First]);
    }
}
