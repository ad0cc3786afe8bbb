//! Statistics: what `vmlan stats` and `GET /v1/stats` say, as JSON. What people are shown of them
//! is made in the program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vmlan_config::gateway::GatewayCounters;
use vmlan_frame::{Counters, Port, Snapshot};
use vmlan_switch::policy::Policy;

mod device;
mod limit;
pub use device::{Accesses, CsbStats, DeviceStats, Ratios, grown};
pub use limit::{LimitStats, PortLimits, SharedLimit};

/// Counters of all ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Stats {
    /// In the order the ports were added.
    pub ports: Vec<PortStats>,
    #[serde(default)]
    pub limits: Vec<SharedLimit>,
    #[serde(default)]
    pub fdb: FdbStats,
    /// `on` or `off`; `on, incomplete:` and what the kernel lacks. Empty: an older switch.
    #[serde(default)]
    pub sandbox: String,
}

/// Counters of the forwarding table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbStats {
    /// Times that a source address was not learned: the table, or its port's share of it, was full.
    pub unlearned: u64,
}

/// Counters of one port, all since it was added. The first six fields are a contract.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PortStats {
    pub name: String,
    pub kind: String,
    /// From the port into the switch.
    pub r#in: Flow,
    /// From the switch to the port.
    pub out: Flow,
    /// Frames dropped, by reason; reasons that did not occur are left out.
    pub drops: BTreeMap<String, u64>,
    /// Times the guest rang.
    pub doorbells: u64,
    /// Times the guest was interrupted.
    pub interrupts: u64,
    /// Connected, and its driver is ready.
    pub up: bool,
    /// Times the guest or its VMM broke the protocol.
    pub faults: u64,
    /// Nanoseconds that workers spent on frames from this port, delivery included.
    #[serde(default)]
    pub work_ns: u64,
    /// Times that a worker looked for frames of this port and there were none.
    #[serde(default)]
    pub empty_looks: u64,
    /// The port's own limits, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PortLimits>,
    /// Of a gateway only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayCounters>,
    /// Of an emulated NIC only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceStats>,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Flow {
    pub frames: u64,
    pub bytes: u64,
    pub batches: u64,
}

impl From<Snapshot> for Flow {
    fn from(s: Snapshot) -> Self {
        Self { frames: s.frames, bytes: s.bytes, batches: s.batches }
    }
}

impl PortStats {
    /// Reads the counters of `port`.
    pub fn read(name: &str, kind: &str, up: bool, port: &dyn Port) -> Self {
        port.count_doorbells();
        let mut stats = Self::of(name, kind, up, port.counters());
        let new = |d| DeviceStats::new(d, stats.frames(), stats.doorbells);
        stats.device = port.device().map(new);
        stats
    }

    /// From the counters of a port that is not an emulated NIC.
    pub fn of(name: &str, kind: &str, up: bool, counters: &Counters) -> Self {
        let (input, output) = counters.snapshot();
        Self {
            name: name.into(),
            kind: kind.into(),
            r#in: input.into(),
            out: output.into(),
            drops: counters.drops().map(|(r, n)| (r.name().to_owned(), n)).collect(),
            doorbells: input.notifications + counters.rx_doorbells.get(),
            interrupts: output.notifications + counters.tx_interrupts.get(),
            up,
            faults: counters.faults.get(),
            work_ns: counters.work_ns(),
            empty_looks: counters.empty_looks(),
            limits: None,
            gateway: None,
            device: None,
        }
    }

    /// With the counters of its own limits.
    #[must_use]
    pub fn limited(self, policy: &Policy) -> Self {
        Self { limits: PortLimits::read(policy), ..self }
    }

    /// Frames of both directions.
    pub fn frames(&self) -> u64 {
        self.r#in.frames + self.out.frames
    }

    /// Frames dropped for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}
