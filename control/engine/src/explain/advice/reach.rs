//! Whom a port may send to: which key refuses it, and what to do about it.

use vmlan_switch::{Check, Explanation, PortId, Step, Verdict};

use super::{Fix, Known};
use vmlan_config::address::Address;

/// What stands between two ports, in the order of `Reach::covers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Barrier {
    /// The receiver is a monitor.
    Monitor,
    /// It is in no group that the source reaches.
    Groups,
    /// It is an uplink, and the source uses another.
    Uplink,
    /// The source is an uplink, and it uses another.
    OtherUplink,
}

impl Known<'_> {
    fn address(&self, id: PortId) -> Option<&Address> {
        self.ports.iter().find(|p| p.0 == id).map(|p| p.2)
    }

    fn is_uplink(&self, name: &str) -> bool {
        self.ports.iter().any(|p| p.2.policy().uplink.as_ref().is_some_and(|u| u.as_str() == name))
    }

    fn barrier(&self, source: PortId, to: PortId) -> Option<Barrier> {
        let (from, there) = (self.address(source)?, self.address(to)?);
        let (name, to_name) = (self.name(source), self.name(to));
        if self.keys(to, &["watch", "watch_vlan"]).is_some() {
            return Some(Barrier::Monitor);
        }
        let own = from.policy().uplink.as_ref().is_some_and(|u| u.as_str() == to_name);
        let common = |groups: &[_]| groups.iter().any(|g| there.policy().member.contains(g));
        if !own && from.policy().reach.as_deref().is_some_and(|groups| !common(groups)) {
            return Some(Barrier::Groups);
        }
        if !own && from.policy().uplink.is_some() && self.is_uplink(to_name) {
            return Some(Barrier::Uplink);
        }
        let other = there.policy().uplink.as_ref().is_some_and(|u| u.as_str() != name);
        (other && self.is_uplink(name)).then_some(Barrier::OtherUplink)
    }

    /// The key that keeps `to` from getting what `source` sends, with its port, where `step` says
    /// that it does not get it.
    pub(in crate::explain) fn kept_out(
        &self,
        source: PortId,
        to: PortId,
        step: &Step,
    ) -> Option<String> {
        if step.check() != Check::Reach || step.verdict != Verdict::Refuse {
            return None;
        }
        let (port, key) = self.barrier_key(source, to, self.barrier(source, to)?);
        Some(format!("{}: {}", self.name(port), key?))
    }

    fn barrier_key(&self, source: PortId, to: PortId, of: Barrier) -> (PortId, Option<String>) {
        let (port, keys) = match of {
            Barrier::Monitor => (to, &["watch", "watch_vlan"][..]),
            Barrier::Groups => (source, &["reach"][..]),
            Barrier::Uplink => (source, &["uplink"][..]),
            Barrier::OtherUplink => (to, &["uplink"][..]),
        };
        (port, self.keys(port, keys))
    }

    /// A `reach`, an `uplink`, or being a monitor.
    pub(super) fn isolated(&self, source: PortId, explanation: &Explanation) -> Fix {
        let name = self.name(source);
        if !crate::explain::passed(explanation, Check::Source) {
            let text = format!("`{name}` may send only without that key");
            return (self.keys(source, &["watch", "watch_vlan"]), text);
        }
        let refused = |s: &&Step| s.check() == Check::Reach && s.verdict == Verdict::Refuse;
        let ports = explanation.steps.iter().filter(refused).filter_map(|s| s.port);
        let barriers = ports.filter_map(|to| Some((to, self.barrier(source, to)?)));
        let all: Vec<_> = barriers.filter(|(_, b)| *b != Barrier::Monitor).collect();
        let Some((to, barrier)) = all.first().copied() else {
            let key = self.keys(source, &["reach", "uplink"]);
            let text = "add a group of the receiver, or take the key away:";
            let text = match &key {
                Some(_) => format!("{text} `vmlan port set {name} reach=`"),
                None => "there is no port that it may send to".into(),
            };
            return (key, text);
        };
        let (by, key) = self.barrier_key(source, to, barrier);
        let key =
            key.map(|key| if by == source { key } else { format!("{}: {key}", self.name(by)) });
        let others = match all.len() - 1 {
            0 => String::new(),
            n => format!("; the same holds for {n} more"),
        };
        (key, self.open(source, to, barrier) + &others)
    }

    /// What takes the barrier away.
    fn open(&self, source: PortId, to: PortId, barrier: Barrier) -> String {
        let (name, to_name) = (self.name(source), self.name(to));
        match barrier {
            Barrier::Monitor => format!("{to_name} is a monitor, which gets copies only"),
            Barrier::Groups => self.join(source, to),
            Barrier::Uplink => {
                format!(
                    "{to_name} is not its uplink: `vmlan port set {name} uplink={to_name}`, \
                     or `uplink=` for all"
                )
            }
            Barrier::OtherUplink => {
                format!(
                    "{to_name} uses another uplink: `vmlan port set {to_name} uplink={name}`, \
                     or `uplink=` for all"
                )
            }
        }
    }

    fn join(&self, source: PortId, to: PortId) -> String {
        let (name, to_name) = (self.name(source), self.name(to));
        let groups = |all: &[vmlan_config::address::PortName]| {
            let names: Vec<_> = all.iter().map(|g| g.as_str().to_owned()).collect();
            names.join("+")
        };
        let members = self.address(to).map(|a| &*a.policy().member).unwrap_or_default();
        let reached =
            self.address(source).and_then(|a| a.policy().reach.as_deref()).unwrap_or_default();
        match (members, reached) {
            ([group, ..], []) => {
                format!(
                    "{to_name} is in {}: `vmlan port set {name} reach={}`",
                    groups(members),
                    group.as_str()
                )
            }
            ([group, ..], _) => format!(
                "{to_name} is in {}: `vmlan port set {name} reach={}+{}`",
                groups(members),
                groups(reached),
                group.as_str()
            ),
            ([], [group, ..]) => {
                format!(
                    "{to_name} is in no group: `vmlan port set {to_name} member={}`",
                    group.as_str()
                )
            }
            ([], []) => format!(
                "{to_name} is in no group: `vmlan port set {to_name} member=GROUP`, \
                 then `vmlan port set {name} reach=GROUP`"
            ),
        }
    }
}
