//! Which key refuses a frame, and what to do about it.

use vmlan_frame::Reason;
use vmlan_switch::policy::Domain;
use vmlan_switch::{
    Check, ClaimFault, ClaimSetting, Explanation, Finding, PortId, Unparsed, Verdict, WouldLearn,
};

use super::frame::ETHERTYPE_EXPERIMENT;
use super::sentence;
use vmlan_config::address::Address;

mod reach;

/// The ports of the switch: number, name, address.
#[derive(Debug)]
pub struct Known<'a> {
    /// In the order they were added.
    pub ports: Vec<(PortId, &'a str, &'a Address)>,
}

const VLAN: &[&str] = &["vlan", "trunk", "native", "qinq", "qinq_trunk"];

/// The key that decides, with its value, and what to do.
type Fix = (Option<String>, String);

impl Known<'_> {
    /// The name of a port.
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
    pub(super) fn fix(
        &self,
        reason: Reason,
        by: PortId,
        source: PortId,
        explanation: &Explanation,
    ) -> Fix {
        let name = self.name(by);
        match reason {
            Reason::SpoofedMac | Reason::SpoofedIp | Reason::SpoofedArp | Reason::SpoofedNd => {
                self.spoofed(reason, by, explanation)
            }
            Reason::NotParsed => self.not_parsed(by, explanation),
            Reason::DhcpGuard => self.guard(by, "dhcp_guard"),
            Reason::RaGuard => self.guard(by, "ra_guard"),
            Reason::Vlan => (
                self.keys(by, VLAN),
                format!(
                    "send it with a tag that the key names (untagged for vlan and native), or \
                     give the port other VLANs: `vmlan port set {name} KEY=VALUE`"
                ),
            ),
            Reason::Isolated => self.isolated(source, explanation),
            Reason::Unknown | Reason::Reserved | Reason::MulticastGuard => {
                self.not_for_all(reason, by)
            }
            Reason::Storm => (
                self.keys(by, &["broadcast_frames", "multicast_frames", "unknown_frames"]),
                "wait: it may send more in a moment; if it must send more, raise the key".into(),
            ),
            Reason::OverLimit => (
                self.limit(by, false),
                format!(
                    "wait: it gets more in a moment; to raise the limit: \
                     `vmlan port set {name} KEY=VALUE`, or `vmlan limit set` for to_limit"
                ),
            ),
            Reason::LinkDown => (None, self.bring_up(by)),
            Reason::TooLong if told_too_long(explanation) => (
                self.keys(by, &["mtu"]),
                "nothing, if its sender learns from ICMP; give the guest the link's MTU (mtu=, or \
                 DHCP), or the link a larger one"
                    .into(),
            ),
            Reason::NotAllowed => self.pinned(explanation),
            Reason::NoReceiver => self.nobody(source, explanation),
            other => (None, plain(other).into()),
        }
    }

    /// How a port that is down comes up.
    fn bring_up(&self, by: PortId) -> String {
        let name = self.name(by);
        let address = self.ports.iter().find(|p| p.0 == by).map(|p| p.2);
        match address.filter(|address| address.kind().is_interface()) {
            Some(address) => format!(
                "`ip link set {} up`, and its cable; `vmlan port list` says what is wrong with it",
                address.place()
            ),
            None => format!("attach a VM to it (`vmlan vm-args {name}`), or start its driver"),
        }
    }

    /// Frames that are not passed on to all.
    fn not_for_all(&self, reason: Reason, by: PortId) -> Fix {
        let name = self.name(by);
        match reason {
            Reason::Unknown => (
                self.keys(by, &["unknown"]),
                format!(
                    "the destination must send a frame first, or be pinned (`macs=`, `vmlan fdb \
                     add`); to flood: `vmlan port set {name} unknown=`"
                ),
            ),
            Reason::Reserved => (
                None,
                format!(
                    "nothing: no bridge passes it on; for a lab: `vmlan port set {name} \
                     reserved=pass`"
                ),
            ),
            _ => (
                self.keys(by, &["multicast"]),
                format!(
                    "queriers and routers belong on ports that get all groups: `vmlan port set \
                     {name} multicast=`"
                ),
            ),
        }
    }

    fn spoofed(&self, reason: Reason, by: PortId, explanation: &Explanation) -> Fix {
        let name = self.name(by);
        let about_mac = reason == Reason::SpoofedMac;
        let key = if about_mac { self.keys(by, &["macs"]) } else { self.keys(by, &["ips"]) };
        match (key, &explanation.claim) {
            (key, None) if about_mac || reason == Reason::SpoofedIp => {
                let text = "no frame can come from that address, whatever the key says: the guest \
                            must use its own";
                (key, text.into())
            }
            (Some(key), _) if key == "macs=first" => {
                let text = "the first address is forgotten when the VM disconnects; to allow more \
                            than one, list them";
                (Some(key), text.into())
            }
            (Some(key), _) if key == "ips=leased" => {
                let text = "the guest must use the address that DHCP gave it (see `vmlan lease \
                            list`)";
                (Some(key), text.into())
            }
            (Some(key), Some(claim)) => {
                let claim = sentence::claim(*claim);
                let none = key.ends_with("=none");
                let more = if none { format!("ips={claim}") } else { format!("{key}+{claim}") };
                (Some(key), format!("to allow the address: `vmlan port set {name} {more}`"))
            }
            (_, _) => (
                self.keys(by, &keys_of(&explanation.settings)),
                "the guest must send such messages about its own address only".into(),
            ),
        }
    }

    fn guard(&self, by: PortId, key: &str) -> Fix {
        let text = format!("to allow it: `vmlan port set {} {key}=off`", self.name(by));
        (self.keys(by, &[key]), text)
    }

    fn not_parsed(&self, by: PortId, explanation: &Explanation) -> Fix {
        let name = self.name(by);
        let keys = keys_of(&explanation.settings);
        let unset: Vec<_> = keys.iter().map(|key| format!("{key}=")).collect();
        let mut text = format!(
            "with that key only frames pass that are understood to their end; to allow all: \
             `vmlan port set {name} {}`",
            unset.join(" ")
        );
        let own = Unparsed::EtherType(ETHERTYPE_EXPERIMENT);
        let own = Finding::ClaimRefused(ClaimFault::NotParsed(own));
        if explanation.steps.iter().any(|s| s.finding == own) {
            text += ". `vmlan explain` itself made a frame of this EtherType, for want of \
                     --ip-src and --ip-dst: give them";
        }
        (self.keys(by, &keys), text)
    }

    /// No port is up that accepts such frames.
    fn nobody(&self, source: PortId, explanation: &Explanation) -> Fix {
        let refused = |check| {
            let steps = explanation.steps.iter().filter(move |s| s.check() == check);
            steps.filter(|s| s.verdict == Verdict::Refuse).find_map(|s| s.port)
        };
        if let Some(down) = refused(Check::Link) {
            let name = self.name(down);
            let fix = self.bring_up(down);
            return (None, format!("{name} would accept it, but is down: {fix}"));
        }
        match refused(Check::Vlan) {
            Some(other) => self.other_vlans(source, other, explanation.domain),
            None => (None, plain(Reason::NoReceiver).into()),
        }
    }

    /// No other port that is up is in `domain`; `other` is one of them.
    fn other_vlans(&self, source: PortId, other: PortId, domain: Domain) -> Fix {
        let (name, other_name) = (self.name(source), self.name(other));
        let theirs = self.keys(other, VLAN);
        let key = self
            .keys(source, VLAN)
            .or_else(|| theirs.as_ref().map(|key| format!("{other_name}: {key}")));
        let vid = domain.vid();
        let command = if domain == Domain::OPEN {
            format!("`vmlan port set {name} {}`", theirs.unwrap_or_default())
        } else if domain == Domain::service(vid) {
            format!("`vmlan port set {other_name} qinq={vid}`")
        } else if let Some(trunk) = self.keys(other, &["trunk"]) {
            format!("`vmlan port set {other_name} {trunk}+{vid}`")
        } else {
            format!("`vmlan port set {other_name} vlan={vid}`")
        };
        let domain = sentence::domain(domain);
        (key, format!("all others that are up are in other VLANs than {domain}: {command}"))
    }

    /// The source address is pinned to another port: by its `macs`, or by `fdb add`.
    fn pinned(&self, explanation: &Explanation) -> Fix {
        let pinned = explanation.steps.iter().find_map(|s| match s.finding {
            Finding::Learning(mac, WouldLearn::Pinned(port)) => Some((mac.to_string(), port)),
            _ => None,
        });
        let Some((mac, port)) = pinned else { return (None, "see `vmlan fdb list`".into()) };
        let name = self.name(port);
        let lists = |key: &String| key.trim_start_matches("macs=").split('+').any(|m| m == mac);
        match self.keys(port, &["macs"]).filter(lists) {
            Some(key) => {
                (Some(format!("{name}: {key}")), format!("take {mac} from the list of {name}"))
            }
            None => (None, format!("`vmlan fdb del {mac}`")),
        }
    }
}

/// True if a link is too narrow for the frame.
fn told_too_long(explanation: &Explanation) -> bool {
    explanation.steps.iter().any(|s| matches!(s.finding, Finding::TooLong(_)))
}

/// The keys of settings.
fn keys_of(settings: &[ClaimSetting]) -> Vec<&'static str> {
    let key = |setting: &ClaimSetting| match setting {
        ClaimSetting::Macs => "macs",
        ClaimSetting::Ips => "ips",
        ClaimSetting::DhcpGuard => "dhcp_guard",
        ClaimSetting::RaGuard => "ra_guard",
    };
    settings.iter().map(key).collect()
}

fn plain(reason: Reason) -> &'static str {
    match reason {
        Reason::Runt | Reason::TooLong => "send a frame of 14 to 65557 bytes, tags included",
        Reason::BadSource => "send it from a valid source address",
        Reason::SamePort => "nothing: both are behind this port, which the frame need not leave",
        Reason::NoReceiver => "bring up another port that accepts such frames",
        _ => "see `vmlan stats`",
    }
}
