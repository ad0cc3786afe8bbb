//! Policy: who may send what, where to, and how much.
//!
//! One [`Policy`] for each port, immutable, replaced whole with the table. What changes while
//! frames move (tokens, counters, the MAC address that was seen first) is in parts that a policy
//! shares with the one that replaces it.
//!
//! | part | question | when |
//! | --- | --- | --- |
//! | [`Limits`] `from` | has the port tokens? | first of all; else the frame stays in its ring |
//! | [`Vlan`] | which broadcast domain is it in? | first pass |
//! | [`SourceCheck`] | is the sender who it claims to be? | first pass |
//! | [`Table::reaches`](crate::Table::reaches) | may it go there? | first pass |
//! | [`Policy`] | may it go to unknown or reserved addresses? | first pass |
//! | [`Team`] | which of several ports that are one place? | first pass |
//! | [`Storm`] | are these too many frames to all? | first pass |
//! | [`Limits`] `to` | has the receiver tokens? | before its lock and its descriptors |
//! | [`Shares`], [`Turns`] | whose turn is it? | before a breath; when an uplink is full |
//!
//! # How exact
//!
//! - A limit passes, in any time `t`, at most `rate * t`, the burst, and one helping for each
//!   worker that spends; and no less, if it is looked at once in a burst (`bucket::tests::exact`,
//!   from 1 to 4 * 10^11 tokens per second).
//! - Over a second, through whole breaths, it is kept to 1 %, or to one frame where a frame is more
//!   (`tests::limits`, from 64 kbit/s to 400 Gbit/s).
//! - Another rate is in force with the next breath, and nothing is lost
//!   (`tests::limits::changed_while_running`).
//! - Whatever the clock does (stand still, go back, come to its end), never more than the burst
//!   passes, and never less than is owed is paid (`bucket::tests::any_clock`, against a model).
//! - A receiver over its limit is woken twice in a burst (`limit::tests::helpings_are_exact`).
//! - A worker's time is shared by weight to 2 % in a second, and to two of the cheapest breaths at
//!   any moment (`worker_time::tests`).
//! - An uplink's bytes are shared by weight to 2 % in half a second, and to 64 KiB of the heavier
//!   one at any moment (`turns::tests`, `tests::shares`).

mod bucket;
mod limit;
pub(crate) mod retag;
pub(crate) mod same_verdict;
mod source_check;
mod team;
#[cfg(test)]
mod tests;
mod turns;
mod vlan;
mod worker_time;

use std::sync::Arc;

pub use bucket::{Bucket, Rate};
pub use limit::{Budget, LimitCounters, Limiter, Limits};
pub use source_check::{FirstMac, Macs, Prefix, SourceCheck};
pub(crate) use team::Chosen;
pub use team::{MAX_MEMBERS, Member, ParseSteerError, Steer, Team};
pub use turns::Turns;
pub use vlan::{Domain, Form, VidSet, Vlan};
pub use worker_time::Shares;

use vmlan_frame::{Mac, Reason, Sampling};

use crate::forward::Way;
use crate::{PortId, Watch};

/// Groups a switch can have.
pub const MAX_GROUPS: usize = 64;

/// A set of groups, by number below [`MAX_GROUPS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups(pub u64);

/// Whom a port may send to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Groups it belongs to.
    pub member: Groups,
    /// Groups whose members it may send to; `None`: everybody.
    pub groups: Option<Groups>,
    /// The only uplink it uses; `None`: all.
    pub uplink: Option<PortId>,
}

impl Reach {
    /// True if it restricts nothing: the port may send to all.
    pub fn is_all(&self) -> bool {
        self.groups.is_none() && self.uplink.is_none()
    }

    /// True if the port may send to nobody: nothing is learned from it.
    #[inline]
    pub fn is_nobody(&self) -> bool {
        self.groups == Some(Groups(0)) && self.uplink.is_none()
    }

    /// True if the port `from`, whose reach this is, may send to `to`. Of several uplinks a port
    /// may send to its own only, and an uplink only to ports that use it. No port may send to a
    /// monitor.
    pub fn covers(&self, from: (PortId, &Policy), to: (PortId, &Policy)) -> bool {
        let own = self.uplink == Some(to.0);
        let group = own || self.groups.is_none_or(|g| g.0 & to.1.reach.member.0 != 0);
        let out = to.1.uplink.is_none() || own || self.uplink.is_none();
        let back = from.1.uplink.is_none() || to.1.reach.uplink.is_none_or(|u| u == from.0);
        group && out && back && !to.1.monitor
    }
}

/// Limits of frames to all, in frames per second from the port.
#[derive(Clone, Debug, Default)]
pub struct Storm {
    /// To ff:ff:ff:ff:ff:ff.
    pub broadcast: Option<Arc<Bucket>>,
    /// To other group addresses.
    pub multicast: Option<Arc<Bucket>>,
    /// To addresses that are not in the forwarding table.
    pub unknown: Option<Arc<Bucket>>,
}

/// What is allowed to a port.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Who it may claim to be.
    pub source_check: SourceCheck,
    /// Its broadcast domains.
    pub vlan: Vlan,
    /// Whom it may send to.
    pub reach: Reach,
    /// How much it may send to all.
    pub storm: Storm,
    /// What it sends to addresses that nobody knows is dropped.
    pub drops_unknown: bool,
    /// What it sends to reserved addresses ([`Mac::is_reserved`]) is passed on.
    pub passes_reserved: bool,
    /// Of the frames to multicast groups it gets those of groups that it has joined.
    pub joined_only: bool,
    /// Bytes of the longest IP packet that the link behind it carries; `None`: any.
    pub mtu: Option<u16>,
    /// How much it may send.
    pub from: Limits,
    /// How much may be sent to it.
    pub to: Limits,
    /// Its share of a worker's time, and of an uplink's bytes, in relation to other ports'.
    pub weight: u16,
    /// Set if the port is an uplink of some port: its bandwidth is shared by weight when it is
    /// full.
    pub uplink: Option<Arc<Turns>>,
    /// The team that it is a member of.
    pub team: Option<Arc<Team>>,
    /// It receives mirrored frames and nothing else, and may send nothing.
    pub monitor: bool,
    /// Which frames it receives as a monitor.
    pub watch: Option<Arc<Watch>>,
    /// Takes samples of what it sends. Goes on with the next policy.
    pub sampling: Option<Arc<Sampling>>,
}

impl Storm {
    /// True if nothing is limited.
    pub fn is_none(&self) -> bool {
        self.broadcast.is_none() && self.multicast.is_none() && self.unknown.is_none()
    }

    /// The limit of frames to `dst` that go to all, if there is one.
    #[inline]
    pub fn bucket(&self, dst: Mac) -> Option<&Bucket> {
        let bucket = match dst {
            Mac::BROADCAST => &self.broadcast,
            dst if dst.is_group() => &self.multicast,
            _ => &self.unknown,
        };
        bucket.as_deref()
    }
}

impl Policy {
    /// True if each frame of the port must be looked at, not only the first of a stream.
    #[inline]
    pub fn looks_at_each(&self) -> bool {
        !self.source_check.is_any() || !self.storm.is_none()
    }

    /// True if it is of one team with a port that has the policy `other`.
    pub(crate) fn is_mate(&self, other: &Self) -> bool {
        let teams = self.team.as_ref().zip(other.team.as_ref());
        teams.is_some_and(|(own, theirs)| Arc::ptr_eq(own, theirs))
    }

    /// Where frames of the port to the group address `dst` go.
    #[inline]
    pub(crate) fn way_to_group(&self, dst: Mac) -> Way {
        let dropped = dst.is_reserved() && !self.passes_reserved;
        if dropped { Way::Drop(Reason::Reserved) } else { Way::Flood }
    }

    /// Where frames of the port to an address go that is behind no port.
    #[inline]
    pub(crate) fn way_to_unknown(&self) -> Way {
        if self.drops_unknown { Way::Drop(Reason::Unknown) } else { Way::Flood }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            source_check: SourceCheck::default(),
            vlan: Vlan::default(),
            reach: Reach::default(),
            storm: Storm::default(),
            drops_unknown: false,
            passes_reserved: false,
            joined_only: false,
            mtu: None,
            from: Limits::default(),
            to: Limits::default(),
            weight: 1,
            uplink: None,
            team: None,
            monitor: false,
            watch: None,
            sampling: None,
        }
    }
}
