//! What the API says about a running switch, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use vmlan_config::address_change::KeyChange;

/// A port, as the API describes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct PortInfo {
    pub name: String,
    pub kind: String,
    /// Its address, with all keys that were given.
    pub address: String,
    /// Connected, and its driver is ready.
    pub up: bool,
    /// The MTU that its guest is to have: the port's own, or that of the narrowest link that the
    /// guest may send to, if it is below 1500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// What its kind has to say: state, features, queues.
    pub details: serde_json::Map<String, serde_json::Value>,
}

/// A limit that ports share, as the API describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LimitInfo {
    pub name: String,
    /// Bits a second.
    pub rate: Option<String>,
    /// Frames a second.
    pub frames: Option<String>,
    /// Time's worth of both that may come at once.
    pub burst: String,
    pub ports: Vec<String>,
}

/// An address that a gateway has given, as the API describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The gateway's port.
    pub net: String,
    /// The address.
    pub ip: String,
    /// The NIC that has it.
    pub mac: String,
    /// The port that the NIC is behind.
    pub port: String,
    /// What the guest calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Seconds until it ends.
    pub seconds: u64,
}

/// A port of the host that leads to a VM, as the API describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardInfo {
    /// The gateway's port.
    pub net: String,
    /// `PROTO:ADDRESS:PORT:VM:PORT`
    pub forward: String,
    /// `listening`, or what is wrong.
    pub state: String,
}

/// The export of samples, as the API describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SflowInfo {
    /// `off`, `exporting`, or what is wrong with the collector.
    pub state: String,
    /// `IP:PORT`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<String>,
    /// One frame in so many is sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<u32>,
    /// Seconds between counters; 0: none are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polling: Option<u32>,
    /// The switch's address in the samples, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Bytes kept of each sampled frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    pub samples: u64,
    /// Samples that found no room on their way to the collector.
    pub lost: u64,
    pub datagrams: u64,
    /// Datagrams that could not be sent, or were refused.
    pub failed: u64,
}

/// What applying a configuration file has changed: names of ports and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Applied {
    /// Nothing was done: this is what would be.
    pub dry_run: bool,
    pub added: Vec<String>,
    pub changed: Vec<String>,
    /// What of them, by port.
    #[serde(default)]
    pub changes: BTreeMap<String, Vec<KeyChange>>,
    /// Of these, ports closed and opened again.
    pub reopened: Vec<String>,
    /// Ports closed: they are not in the file.
    pub removed: Vec<String>,
    /// Ports that were not touched.
    pub unchanged: Vec<String>,
    pub limits_set: Vec<String>,
    pub limits_removed: Vec<String>,
    /// Sampling was started, changed or ended.
    pub sflow: bool,
    /// The configuration's generation after it: it counts changes since the switch was started.
    #[serde(default)]
    pub generation: u64,
}

impl Applied {
    /// True if nothing changes.
    pub fn is_nothing(&self) -> bool {
        let lists =
            [&self.added, &self.changed, &self.removed, &self.limits_set, &self.limits_removed];
        lists.into_iter().all(Vec::is_empty) && !self.sflow
    }
}

/// `GET /v1/apply`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Counts the changes of the configuration since the switch was started.
    pub generation: u64,
}

/// `GET /v1/process`: what the switch is as a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// As it sees itself: in a container, a number of that container's.
    pub pid: u32,
    /// Its release.
    pub version: String,
    /// So many seconds VMs' connections outlive it; none: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_for: Option<u64>,
    /// A service manager has started it, and starts it again.
    pub service: bool,
    /// It ends with the last port that somebody holds.
    pub while_held: bool,
    /// Names of ports that no next switch will have, since their users hold them by a connection
    /// to this one. All else it leaves to that, if it has `hold_for`; none: only what is
    /// configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleeting: Option<Vec<String>>,
    /// Where it was started.
    pub directory: String,
    /// What it was started with, behind `vmlan`.
    pub arguments: Vec<String>,
}

/// A line of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct FdbLine {
    pub mac: String,
    /// The VLAN in which it does; `null` if none.
    pub vlan: Option<u16>,
    /// The service VLAN in which it does; `null` if none.
    pub qinq: Option<u16>,
    pub port: String,
    /// Pinned: neither ages nor moves.
    pub r#static: bool,
    /// Seconds since it was last seen, to about a thirtieth of the ageing time; `null` if pinned.
    pub age: Option<u64>,
}
