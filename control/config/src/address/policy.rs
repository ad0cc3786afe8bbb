//! What an address says of what its port may do.

use std::time::Duration;

use super::{Address, IpRange, MacRule, PortName, Value, VidList};

/// Burst if none is given.
pub const BURST: Duration = Duration::from_millis(10);

/// Of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the port into the switch.
    From,
    /// From the switch to the port.
    To,
}

impl Direction {
    /// Its words: rate, frames, burst, limit.
    const fn keys(self) -> [&'static str; 4] {
        match self {
            Self::From => ["from_rate", "from_frames", "from_burst", "from_limit"],
            Self::To => ["to_rate", "to_frames", "to_burst", "to_limit"],
        }
    }
}

/// Broadcast domains of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanRule<'a> {
    /// None: tags are payload.
    Open,
    /// `vlan`
    Access(u16),
    /// `trunk`, `native`; no list: all.
    Trunk(Option<&'a VidList>, Option<u16>),
    /// `qinq`
    Qinq(u16),
    /// `qinq_trunk`; no list: all.
    QinqTrunk(Option<&'a VidList>),
}

impl Address {
    /// `macs`
    #[must_use]
    pub fn macs(&self) -> &MacRule {
        match self.values.get("macs") {
            Some(Value::Macs(macs)) => macs,
            _ => &MacRule::Any,
        }
    }

    /// `ips`; `None`: any.
    #[must_use]
    pub fn ips(&self) -> Option<&[IpRange]> {
        match self.values.get("ips")? {
            Value::Ips(ips) => ips.as_deref(),
            _ => None,
        }
    }

    /// `member`
    #[must_use]
    pub fn member(&self) -> &[PortName] {
        match self.values.get("member") {
            Some(Value::Names(groups)) => groups,
            _ => &[],
        }
    }

    /// `reach`; `None`: all.
    #[must_use]
    pub fn reach(&self) -> Option<&[PortName]> {
        match self.values.get("reach")? {
            Value::Some(groups) => groups.as_deref(),
            _ => None,
        }
    }

    /// `uplink`; `None`: any.
    #[must_use]
    pub fn uplink(&self) -> Option<&PortName> {
        match self.values.get("uplink")? {
            Value::Name(port) => port.as_ref(),
            _ => None,
        }
    }

    /// `vlan`, `trunk` and `native`, `qinq`, `qinq_trunk`
    #[must_use]
    pub fn vlan(&self) -> VlanRule<'_> {
        let vids = |key| match self.values.get(key) {
            Some(Value::Vids(vids)) => Some(vids.as_ref()),
            _ => None,
        };
        if let Some(vid) = self.short("vlan") {
            VlanRule::Access(vid)
        } else if let Some(vids) = vids("trunk") {
            VlanRule::Trunk(vids, self.short("native"))
        } else if let Some(vid) = self.short("qinq") {
            VlanRule::Qinq(vid)
        } else {
            vids("qinq_trunk").map_or(VlanRule::Open, VlanRule::QinqTrunk)
        }
    }

    /// `from_rate`, `from_frames`, `from_burst`, or the same with `to`.
    #[must_use]
    pub fn limit(&self, direction: Direction) -> super::LimitTable {
        let [rate, frames, burst, _] = direction.keys();
        super::LimitTable {
            rate: self.rate(rate),
            frames: self.count(frames),
            burst: self.time(burst).unwrap_or(BURST),
        }
    }

    /// `from_limit` or `to_limit`
    #[must_use]
    pub fn shared_limit(&self, direction: Direction) -> Option<&PortName> {
        let [.., limit] = direction.keys();
        match self.values.get(limit)? {
            Value::Name(name) => name.as_ref(),
            _ => None,
        }
    }

    fn rate(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Rate(bits) => Some(*bits),
            _ => None,
        }
    }

    /// The value of a key that takes a count.
    #[must_use]
    pub fn count(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Count(n) => Some(*n),
            _ => None,
        }
    }

    /// True if the port watches others and takes no part in switching.
    #[must_use]
    pub fn is_watcher(&self) -> bool {
        ["watch", "watch_vlan"].iter().any(|key| self.values.get(key).is_some())
    }

    /// The ports it watches; the inner `None`: all.
    #[must_use]
    pub fn watch(&self) -> Option<Option<&[PortName]>> {
        match self.values.get("watch")? {
            Value::Some(ports) => Some(ports.as_deref()),
            _ => None,
        }
    }

    /// The VLAN it watches.
    #[must_use]
    pub fn watch_vlan(&self) -> Option<u16> {
        self.short("watch_vlan")
    }
}
