//! Which key refuses a frame, and what would help.

use vmlan_frame::Reason;
use vmlan_switch::{Check, Explanation, PortId, Verdict};

use vmlan_config::address::Address;

mod reach;

/// The ports of the switch: number, name, address.
#[derive(Debug)]
pub struct Known<'a> {
    /// In the order they were added.
    pub ports: Vec<(PortId, &'a str, &'a Address)>,
}

const VLAN: &[&str] = &["vlan", "trunk", "native", "qinq", "qinq_trunk"];

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
            Reason::NotParsed => self.not_parsed(by, told),
            Reason::DhcpGuard => self.guard(by, "dhcp_guard"),
            Reason::RaGuard => self.guard(by, "ra_guard"),
            Reason::Vlan => (
                self.keys(by, VLAN),
                format!(
                    "send it with a tag that the key names (untagged for vlan and native), or `vmlan port set {name}` another key"
                ),
            ),
            Reason::Isolated => self.isolated(source, told),
            Reason::Storm => (
                self.keys(by, &["broadcast_frames", "multicast_frames", "unknown_frames"]),
                "it may send more in a moment; if it must now, raise the key".into(),
            ),
            Reason::OverLimit => (
                self.limit(by, false),
                format!(
                    "it gets more in a moment; to raise it: `vmlan port set {name} KEY=VALUE`, or `vmlan limit set` for to_limit"
                ),
            ),
            Reason::LinkDown => {
                (None, format!("attach a VM to it (`vmlan vm-args {name}`), or start its driver"))
            }
            Reason::NotAllowed => self.pinned(told),
            Reason::NoReceiver => self.nobody(source, told),
            other => (None, plain(other).into()),
        }
    }

    fn spoofed(&self, reason: Reason, by: PortId, told: &Explanation) -> Mend {
        let name = self.name(by);
        let about_mac = reason == Reason::SpoofedMac;
        let key = if about_mac { self.keys(by, &["macs"]) } else { self.keys(by, &["ips"]) };
        match (key, &told.claim) {
            (key, None) if about_mac || reason == Reason::SpoofedIp => {
                let mend = "no frame can come from that address, whatever the key says: the guest must use its own";
                (key, mend.into())
            }
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
                self.keys(by, &told.keys),
                "what it tells in there must be about its own address".into(),
            ),
        }
    }

    fn guard(&self, by: PortId, key: &str) -> Mend {
        let mend = format!("if it may: `vmlan port set {} {key}=off`", self.name(by));
        (self.keys(by, &[key]), mend)
    }

    fn not_parsed(&self, by: PortId, told: &Explanation) -> Mend {
        let name = self.name(by);
        let away: Vec<_> = told.keys.iter().map(|key| format!("{key}=")).collect();
        let mut mend = format!(
            "under that only what is understood to its end passes; if this must: `vmlan port set {name} {}`",
            away.join(" ")
        );
        if told.steps.iter().any(|s| s.detail.ends_with("EtherType 0x88b5")) {
            mend += ". Without --ip-src and --ip-dst, `vmlan explain` asks about a frame of this EtherType, which is nobody's: give them";
        }
        (self.keys(by, &told.keys), mend)
    }

    /// There is nobody who takes such frames.
    fn nobody(&self, source: PortId, told: &Explanation) -> Mend {
        let refused = |check| {
            let steps = told.steps.iter().filter(move |s| s.check == check);
            steps.filter(|s| s.verdict == Verdict::Refuse).find_map(|s| s.port)
        };
        if let Some(down) = refused(Check::Link) {
            let name = self.name(down);
            let mend = format!(
                "{name} would take it, but is down: attach a VM to it (`vmlan vm-args {name}`), or start its driver"
            );
            return (None, mend);
        }
        let Some(other) = refused(Check::Vlan) else {
            return (None, plain(Reason::NoReceiver).into());
        };
        let (name, other_name) = (self.name(source), self.name(other));
        let own = told.steps.iter().find(|s| s.check == Check::Vlan && s.port.is_none());
        let domain = own.and_then(|s| s.detail.rsplit("it is in ").next()).unwrap_or_default();
        let theirs = self.keys(other, VLAN);
        let key = self
            .keys(source, VLAN)
            .or_else(|| theirs.as_ref().map(|key| format!("{other_name}: {key}")));
        let mend = match (domain.strip_prefix("vlan "), domain.strip_prefix("service vlan ")) {
            (Some(vid), _) => match self.keys(other, &["trunk"]) {
                Some(trunk) => format!("`vmlan port set {other_name} {trunk}+{vid}`"),
                None => format!("`vmlan port set {other_name} vlan={vid}`"),
            },
            (_, Some(vid)) => format!("`vmlan port set {other_name} qinq={vid}`"),
            _ => format!("`vmlan port set {name} {}`", theirs.unwrap_or_default()),
        };
        (key, format!("all others that are up are in other VLANs than {domain}: {mend}"))
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
