//! On which cores processes run.

use vmlan_harness::Pin;

/// Which process runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// The switch on the last core, the guests on the first.
    Apart,
    /// The guest on port `b` has the first core to itself; everybody else is on the last.
    Receiver,
}

impl Cores {
    /// For the guest on this port; `None`: the switch.
    pub(super) fn of(self, port: Option<&str>) -> Pin {
        match (self, port) {
            (_, None) => Pin::Last,
            (Self::Receiver, Some(port)) if port != "b" => Pin::Last,
            _ => Pin::First,
        }
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
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
        let pins = |cores: Cores| [None, Some("a"), Some("b")].map(|who| cores.of(who));
        assert_eq!(pins(Cores::Apart), [Pin::Last, Pin::First, Pin::First]);
        assert_eq!(pins(Cores::Receiver), [Pin::Last, Pin::Last, Pin::First]);
    }
}
