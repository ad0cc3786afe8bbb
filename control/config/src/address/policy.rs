//! What a port may do: the keys that all kinds but `pcap` have, typed.

use std::time::Duration;

use vmlan_switch::policy::Steer;

use super::values::Values;
use super::{IpRule, LimitTable, MacRule, PortName, VidList};

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
    /// The key of the limit that is shared with other ports.
    pub const fn limit_key(self) -> &'static str {
        let [.., limit] = self.keys();
        limit
    }

    /// Its keys: rate, frames, burst, limit.
    const fn keys(self) -> [&'static str; 4] {
        match self {
            Self::From => ["from_rate", "from_frames", "from_burst", "from_limit"],
            Self::To => ["to_rate", "to_frames", "to_burst", "to_limit"],
        }
    }
}

/// What a port may do, as its address says; nothing is looked up yet that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPolicy {
    /// `macs`: source MAC addresses.
    pub macs: MacRule,
    /// `ips`: IP addresses.
    pub ips: IpRule,
    /// `dhcp_guard`: it may not answer as a DHCP server.
    pub dhcp_guard: bool,
    /// `ra_guard`: it may not advertise itself as a router.
    pub ra_guard: bool,
    /// `member`: its groups.
    pub member: Vec<PortName>,
    /// `reach`: the groups it may send to; `None`: to all.
    pub reach: Option<Vec<PortName>>,
    /// `uplink`: the only uplink its traffic leaves by; `None`: any.
    pub uplink: Option<PortName>,
    /// Its broadcast domains.
    pub vlan: VlanRule,
    /// `broadcast_frames`: frames a second to everybody.
    pub broadcast_frames: Option<u64>,
    /// `multicast_frames`: frames a second to groups.
    pub multicast_frames: Option<u64>,
    /// `unknown_frames`: frames a second to unknown addresses.
    pub unknown_frames: Option<u64>,
    /// `unknown=drop`: what it sends to unknown addresses is dropped.
    pub drops_unknown: bool,
    /// `reserved=pass`: what it sends to reserved addresses is passed on.
    pub passes_reserved: bool,
    /// `multicast=joined`: it gets the multicast groups that it has joined.
    pub joined_only: bool,
    /// `team`, `steer`: its team, and how members are chosen there.
    pub team: Option<(PortName, Steer)>,
    /// `announce`: guests are announced to it; `None`: if it is an uplink.
    pub announce: Option<bool>,
    /// Limits of what it sends.
    pub from: PortLimit,
    /// Limits of what it is sent.
    pub to: PortLimit,
    /// `weight`: its share of switch and uplink in relation to others'.
    pub weight: u16,
    /// Whose frames it is shown; `None`: it takes part in switching.
    pub watch: Option<WatchRule>,
}

/// Limits of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLimit {
    /// The port's own.
    pub own: LimitTable,
    /// The name of one that it shares with others.
    pub shared: Option<PortName>,
}

/// What a port watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRule {
    /// `watch`: the ports.
    pub ports: WatchedPorts,
    /// `watch_vlan`: the VLAN.
    pub vlan: Option<u16>,
}

/// The ports that a port watches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WatchedPorts {
    All,
    Listed(Vec<PortName>),
}

/// Broadcast domains of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanRule {
    /// None: tags are payload.
    Open,
    /// `vlan`
    Access(u16),
    /// `trunk`, `native`; no list: all.
    Trunk(Option<VidList>, Option<u16>),
    /// `qinq`
    Qinq(u16),
    /// `qinq_trunk`; no list: all.
    QinqTrunk(Option<VidList>),
}

impl PortPolicy {
    pub(super) fn new(values: &Values) -> Self {
        Self {
            macs: values.macs("macs"),
            ips: values.ips("ips"),
            dhcp_guard: values.is_on("dhcp_guard"),
            ra_guard: values.is_on("ra_guard"),
            member: values.names("member").map(<[_]>::to_vec).unwrap_or_default(),
            reach: values.names_or_all("reach").flatten().map(<[_]>::to_vec),
            uplink: values.name("uplink"),
            vlan: VlanRule::new(values),
            broadcast_frames: values.count("broadcast_frames"),
            multicast_frames: values.count("multicast_frames"),
            unknown_frames: values.count("unknown_frames"),
            drops_unknown: values.word("unknown") == Some("drop"),
            passes_reserved: values.word("reserved") == Some("pass"),
            joined_only: values.word("multicast") == Some("joined"),
            team: values.name("team").map(|team| (team, values.steer("steer").unwrap_or_default())),
            announce: values.on("announce"),
            from: PortLimit::new(values, Direction::From),
            to: PortLimit::new(values, Direction::To),
            weight: values.short("weight").unwrap_or(1),
            watch: WatchRule::new(values),
        }
    }

    /// The limits of one direction.
    pub const fn limit(&self, direction: Direction) -> &PortLimit {
        match direction {
            Direction::From => &self.from,
            Direction::To => &self.to,
        }
    }

    /// True if the port watches others and takes no part in switching.
    pub const fn is_watcher(&self) -> bool {
        self.watch.is_some()
    }
}

impl PortLimit {
    fn new(values: &Values, direction: Direction) -> Self {
        let [rate, frames, burst, limit] = direction.keys();
        let own = LimitTable {
            rate: values.rate(rate),
            frames: values.count(frames),
            burst: values.time(burst).unwrap_or(BURST),
        };
        Self { own, shared: values.name(limit) }
    }
}

impl WatchRule {
    fn new(values: &Values) -> Option<Self> {
        let vlan = values.short("watch_vlan");
        let ports = match values.names_or_all("watch") {
            Some(None) => WatchedPorts::All,
            Some(Some(ports)) => WatchedPorts::Listed(ports.to_vec()),
            None if vlan.is_some() => WatchedPorts::Listed(Vec::new()),
            None => return None,
        };
        Some(Self { ports, vlan })
    }
}

impl VlanRule {
    fn new(values: &Values) -> Self {
        if let Some(vid) = values.short("vlan") {
            Self::Access(vid)
        } else if let Some(vids) = values.vids("trunk") {
            Self::Trunk(vids.cloned(), values.short("native"))
        } else if let Some(vid) = values.short("qinq") {
            Self::Qinq(vid)
        } else {
            values.vids("qinq_trunk").map_or(Self::Open, |vids| Self::QinqTrunk(vids.cloned()))
        }
    }
}
