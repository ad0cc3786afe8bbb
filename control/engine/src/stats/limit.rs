//! What limits count: those of one port and direction, and those that several ports share.

use serde::{Deserialize, Serialize};
use vmlan_switch::policy::{Limiter, Limits, Policy};

use super::device::grown;

/// Frames that came to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LimitStats {
    /// Those that passed or were dropped.
    pub offered: u64,
    pub passed: u64,
    /// Times that a frame was left in its sender's ring.
    pub held: u64,
    pub dropped: u64,
}

/// The limits of a port's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLimits {
    /// Of frames from the port into the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<LimitStats>,
    /// Of frames from the switch to the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<LimitStats>,
}

/// A limit that ports share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SharedLimit {
    pub name: String,
    pub ports: Vec<String>,
    /// What it counted.
    #[serde(flatten)]
    pub counts: LimitStats,
}

impl LimitStats {
    /// Reads the counters of `limiter`.
    pub fn read(limiter: &Limiter) -> Self {
        let c = &limiter.counters;
        let (passed, held, dropped) = (c.passed.get(), c.held.get(), c.dropped.get());
        Self { offered: passed + dropped, passed, held, dropped }
    }

    /// By the words used for them.
    pub fn outcomes(self) -> [(&'static str, u64); 4] {
        let Self { offered, passed, held, dropped } = self;
        [("offered", offered), ("passed", passed), ("held", held), ("dropped", dropped)]
    }

    /// What was counted since `old`.
    pub fn since(self, old: Self) -> Self {
        Self {
            offered: grown(self.offered, old.offered),
            passed: grown(self.passed, old.passed),
            held: grown(self.held, old.held),
            dropped: grown(self.dropped, old.dropped),
        }
    }
}

impl PortLimits {
    /// Reads the counters of a port's own limits; `None` if it has none.
    pub fn read(policy: &Policy) -> Option<Self> {
        let own = |l: &Limits| l.own.as_deref().map(LimitStats::read);
        let limits = Self { from: own(&policy.from), to: own(&policy.to) };
        (limits != Self::default()).then_some(limits)
    }

    /// By the words used for the directions.
    pub fn directions(self) -> impl Iterator<Item = (&'static str, LimitStats)> {
        let both = [("from", self.from), ("to", self.to)];
        both.into_iter().filter_map(|(direction, counts)| Some((direction, counts?)))
    }
}
