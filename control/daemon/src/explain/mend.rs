//! Which key refuses a frame, and what would help.

use vmlan_frame::Reason;
use vmlan_switch::{Check, Explanation, PortId};

use crate::address::Address;

/// The ports of the switch: number, name, address.
#[derive(Debug)]
pub struct Known<'a> {
    /// In the order they were added.
    pub ports: Vec<(PortId, &'a str, &'a Address)>,
}

/// The key that decides, with its value, and the mend.
type Mend = (Option<String>, String);

impl Known<'_> {
    /// The name of a port.
    #[must_use]
    pub fn name(&self, id: PortId) -> &str {
        self.ports.iter().find(|p| p.0 == id).map_or("?", |p| p.1)
    }

    /// Those of `keys` that the port has, with their values.
    fn keys(&self, id: PortId, keys: &[&str]) -> Option<String> {
        let (_, _, address) = self.ports.iter().find(|p| p.0 == id)?;
        let said = |key: &&str| address.value(key).map(|value| format!("{key}={value}"));
        let all: Vec<_> = keys.iter().filter_map(said).collect();
        (!all.is_empty()).then(|| all.join(","))
    }

    /// The limits of a port: of what it sends, if `from`.
    pub(super) fn limit(&self, id: PortId, from: bool) -> Option<String> {
        let from_keys = ["from_rate", "from_frames", "from_limit"];
        self.keys(id, if from { &from_keys } else { &["to_rate", "to_frames", "to_limit"] })
    }

    /// Why frames of `source` are dropped at `by` for `reason`.
    pub(super) fn mend(
        &self,
        reason: Reason,
        by: PortId,
        source: PortId,
        told: &Explanation,
    ) -> Mend {
        let name = self.name(by);
        match reason {
            Reason::SpoofedMac | Reason::SpoofedIp | Reason::SpoofedArp | Reason::SpoofedNd => {
                self.spoofed(reason, by, told)
            }
            Reason::NotParsed => (
                self.keys(by, &["macs", "ips", "dhcp_guard", "ra_guard"]),
                "under these keys only what is understood to its end passes: take them away if it must".into(),
            ),
            Reason::DhcpGuard => self.guard(by, "dhcp_guard"),
            Reason::RaGuard => self.guard(by, "ra_guard"),
            Reason::Vlan => (
                self.keys(by, &["vlan", "trunk", "native", "qinq", "qinq_trunk"]),
                format!("send it with a tag that the key names (untagged for vlan and native), or `vmlan port set {name}` another key"),
            ),
            Reason::Isolated => self.isolated(source, told),
            Reason::Storm => (
                self.keys(by, &["broadcast_frames", "multicast_frames", "unknown_frames"]),
                "it may send more in a moment; if it must now, raise the key".into(),
            ),
            Reason::OverLimit => (
                self.limit(by, false),
                format!("it gets more in a moment; to raise it: `vmlan port set {name} KEY=VALUE`, or `vmlan limit set` for to_limit"),
            ),
            Reason::LinkDown => (None, format!("attach a VM to it (`vmlan vm-args {name}`), or start its driver")),
            Reason::NotAllowed => self.pinned(told),
            other => (None, plain(other).into()),
        }
    }

    fn spoofed(&self, reason: Reason, by: PortId, told: &Explanation) -> Mend {
        let name = self.name(by);
        let about_mac = reason == Reason::SpoofedMac;
        let key = if about_mac { self.keys(by, &["macs"]) } else { self.keys(by, &["ips"]) };
        match (key, &told.claim) {
            (Some(key), _) if key == "macs=first" => {
                let mend = "the first address is forgotten when the VM disconnects; to allow more than one, list them";
                (Some(key), mend.into())
            }
            (Some(key), Some(claim)) => {
                let none = key.ends_with("=none");
                let more = if none { format!("ips={claim}") } else { format!("{key}+{claim}") };
                (Some(key), format!("if it may have it: `vmlan port set {name} {more}`"))
            }
            (_, _) => (
                self.keys(by, &["macs", "ips"]),
                "what it tells in there must be about its own address".into(),
            ),
        }
    }

    fn guard(&self, by: PortId, key: &str) -> Mend {
        let mend = format!("if it may: `vmlan port set {} {key}=off`", self.name(by));
        (self.keys(by, &[key]), mend)
    }

    /// Somebody's `reach`, `uplink` or being a monitor.
    fn isolated(&self, source: PortId, told: &Explanation) -> Mend {
        let name = self.name(source);
        if !super::passed(told, Check::Source) {
            let mend = format!("frames come from `{name}` only without it");
            return (self.keys(source, &["watch", "watch_vlan"]), mend);
        }
        if let Some(key) = self.keys(source, &["reach", "uplink"]) {
            let mend = format!(
                "let it reach a group that the receiver is in: `vmlan port set {name} reach=GROUP`, and `member=GROUP` there"
            );
            return (Some(key), mend);
        }
        let of = |id: PortId| Some((id, self.keys(id, &["uplink", "watch", "watch_vlan"])?));
        match self.ports.iter().find_map(|p| of(p.0)) {
            Some((id, key)) => (
                Some(format!("{}: {key}", self.name(id))),
                format!(
                    "it uses another uplink, or takes no part: `vmlan port set {}`",
                    self.name(id)
                ),
            ),
            None => (None, "there is nobody that it may send to".into()),
        }
    }

    fn pinned(&self, told: &Explanation) -> Mend {
        // The step says where; a list of `macs` may have done it.
        let step = told.steps.iter().find(|s| s.check == Check::Learning);
        let mac = step.and_then(|s| s.detail.split(' ').next()).unwrap_or("MAC");
        let lists = |p: &&(PortId, &str, &Address)| {
            let macs = p.2.value("macs").map(ToString::to_string).unwrap_or_default();
            macs.split('+').any(|m| m == mac)
        };
        match self.ports.iter().find(lists) {
            Some((id, name, _)) => {
                let key = self.keys(*id, &["macs"]).unwrap_or_default();
                (Some(format!("{name}: {key}")), format!("take {mac} from the list of {name}"))
            }
            None => (None, format!("`vmlan fdb del {mac}`")),
        }
    }
}

fn plain(reason: Reason) -> &'static str {
    match reason {
        Reason::Runt | Reason::TooLong => "send a frame of 14 to 9216 bytes, tags included",
        Reason::BadSource => "give it a source address that can be somebody's",
        Reason::SamePort => "both are behind this port: there is nothing to be switched",
        Reason::NoReceiver => "bring up another port that takes such frames",
        _ => "see `vmlan stats`",
    }
}
