//! Checks that need all ports together: nothing has two owners, and what a port names exists.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use vmlan_frame::Mac;
use vmlan_switch::policy::{MAX_GROUPS, MAX_MEMBERS, Steer};

use super::reserved::{Networks, one_owner};
use crate::address::{Address, Direction, IpRule, Kind, LimitTable, PortName, Spec, WatchedPorts};
use crate::file::Config;
use crate::refusal::{Cause, Refusal};

/// What contradicts the rest. The text names value and reason, and says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The port whose address is in conflict.
    pub port: PortName,
    /// The key that is; `None`: its name or place.
    pub key: Option<&'static str>,
    cause: Cause,
    text: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: {}", self.port, self.text)
    }
}

impl From<Conflict> for Refusal {
    fn from(wrong: Conflict) -> Self {
        Self::new(wrong.cause, wrong.to_string())
    }
}

impl Conflict {
    /// The text, behind its place in the file `config` if it stands there.
    pub fn placed(&self, config: &Config) -> String {
        match config.place_of_port(&self.port, self.key) {
            Some(place) => format!("{place}: {self}"),
            None => self.to_string(),
        }
    }

    /// Refuses a change of port `changed`, which would take away what the port at `address` refers
    /// to.
    pub fn by(self, changed: &PortName, address: &Address) -> Refusal {
        let Some(key) = self.key else { return self.into() };
        let user = &self.port;
        let value = address.value(key).map(ToString::to_string).unwrap_or_default();
        if key == "ip" {
            let text = format!(
                "port {changed}: port {user} has ip={value}, which no nat: port would have then: \
                    change that first (`vmlan port set {user} ip=...`), or add another nat: port \
                    that has it"
            );
            return Refusal::new(Cause::Exists, text);
        }
        let fix = match key {
            "reach" => format!(
                "give another port member= of that group, or change this (`vmlan port set {user} \
                    reach=...`), first"
            ),
            "uplink" => format!("`vmlan port set {user} uplink=` first"),
            _ => format!("take it out there first (`vmlan port set {user} {key}=...`)"),
        };
        let text = format!("port {changed}: port {user} has {key}={value} and needs it: {fix}");
        Refusal::new(Cause::Exists, text)
    }
}

/// Shared limits by name.
pub type Limits = BTreeMap<PortName, LimitTable>;

/// All there is to refer to.
pub struct World<'a> {
    ports: BTreeMap<&'a PortName, &'a Address>,
    groups: BTreeSet<&'a PortName>,
    macs: HashMap<Mac, &'a PortName>,
    limits: &'a Limits,
    gateways: Networks<'a>,
}

fn names<'n>(what: &str, add: &str, names: impl Iterator<Item = &'n PortName>) -> String {
    let names: Vec<_> = names.map(PortName::as_str).collect();
    if names.is_empty() { add.to_owned() } else { format!("the {what} are {}", names.join(", ")) }
}

impl<'a> World<'a> {
    /// `named` are the groups that exist without a member.
    ///
    /// # Errors
    /// If two ports that are no team list one MAC address, two ports have one address kept for
    /// them, there are too many groups, or a team's members do not agree.
    pub fn new(
        ports: impl Iterator<Item = (&'a PortName, &'a Address)>,
        limits: &'a Limits,
        named: &'a BTreeSet<PortName>,
    ) -> Result<Self, Conflict> {
        let mut world = Self {
            ports: ports.collect(),
            groups: named.iter().collect(),
            macs: HashMap::new(),
            limits,
            gateways: Networks::default(),
        };
        world.gateways = Networks::of(world.ports.iter().map(|(name, a)| (*name, *a)));
        one_gateway(&world.ports)?;
        one_owner(&world.ports)?;
        alike_teams(&world.ports)?;
        for (name, address) in &world.ports {
            world.groups.extend(&address.policy().member);
            if world.groups.len() > MAX_GROUPS {
                let text =
                    format!("the switch would have more than {MAX_GROUPS} groups: use fewer");
                return Err(conflict(name, Some("member"), Cause::Invalid, text));
            }
            for mac in address.policy().macs.listed() {
                let other = world.macs.insert(*mac, name);
                if let Some(other) = other.filter(|other| !world.are_mates(name, other)) {
                    let text = format!(
                        "macs={mac}: port {other} lists it too: leave it out of one of them"
                    );
                    return Err(conflict(name, Some("macs"), Cause::Invalid, text));
                }
            }
        }
        Ok(world)
    }

    /// True if both ports are of one team: they may have the same addresses.
    fn are_mates(&self, one: &PortName, other: &PortName) -> bool {
        let team = |port| self.ports.get(port).and_then(|a| a.policy().team.as_ref());
        team(one).is_some_and(|(name, _)| team(other).is_some_and(|(other, _)| name == other))
    }

    /// Checks that all that `name` refers to is there, but not what may have gone meanwhile, and
    /// come again: the ports that a capture file which was like `old` watched as well, and the
    /// gateway of an address that was kept for it as well.
    pub fn check(
        &self,
        name: &PortName,
        address: &Address,
        old: Option<&Address>,
    ) -> Result<(), Conflict> {
        let bad = |key, text| Err(conflict(name, Some(key), Cause::Invalid, text));
        if let Some(text) = self.no_uplink(name, address) {
            return bad("uplink", text);
        }
        let mut reach = address.policy().reach.iter().flatten();
        if let Some(missing) = reach.find(|group| !self.groups.contains(group)) {
            let add = "add a port with member= of it, or [group.NAME] to the file";
            let fix = names("groups", add, self.groups.iter().copied());
            return bad("reach", format!("reach={missing}: there is no such group: {fix}"));
        }
        for direction in [Direction::From, Direction::To] {
            let key = direction.limit_key();
            let Some(limit) = &address.policy().limit(direction).shared else { continue };
            if !self.limits.contains_key(limit) {
                let add = "add it by [limit.NAME] or `vmlan limit set`";
                let fix = names("limits", add, self.limits.keys());
                return bad(key, format!("{key}={limit}: there is no such limit: {fix}"));
            }
        }
        let captured = captured(address);
        let captured = if old.map(self::captured) == Some(captured) { &[] } else { captured };
        for (key, list) in [("ports", captured), ("watch", watched(address))] {
            if let Some(text) = self.not_watched(name, key, list) {
                return bad(key, text);
            }
        }
        let is_new = old.and_then(Address::reserved) != address.reserved();
        match self.gateways.strays(address).filter(|_| is_new) {
            Some(text) => bad("ip", text),
            None => Ok(()),
        }
    }

    /// Checks that a gateway has the address that is kept for `name`, if that was so with those
    /// that were there `before`.
    pub fn check_kept(
        &self,
        name: &PortName,
        address: &Address,
        before: &Networks<'_>,
    ) -> Result<(), Conflict> {
        let strays = self.gateways.strays(address).filter(|_| before.strays(address).is_none());
        strays.map_or(Ok(()), |text| Err(conflict(name, Some("ip"), Cause::Invalid, text)))
    }

    /// What is wrong with the port's uplink.
    fn no_uplink(&self, name: &PortName, address: &Address) -> Option<String> {
        let uplink = address.policy().uplink.as_ref()?;
        let said = format!("uplink={uplink}:");
        if uplink == name {
            return Some(format!("{said} a port cannot be its own uplink: name another, or any"));
        }
        match self.ports.get(uplink) {
            None => {
                let ports = self.ports.iter().filter(|(n, a)| **n != name && takes_part(a));
                let fix = names("ports", "add it first", ports.map(|(n, _)| *n));
                Some(format!("{said} there is no such port: {fix}"))
            }
            Some(port) if !takes_part(port) => {
                Some(format!("{said} that port takes no part in switching: name another, or any"))
            }
            Some(_) => None,
        }
    }

    /// What is watched must be there: a mistyped name would show nothing.
    fn not_watched(&self, name: &PortName, key: &str, list: &[PortName]) -> Option<String> {
        let there = |n: &PortName| n != name && self.ports.get(n).is_some_and(|a| takes_part(a));
        let missing = list.iter().find(|n| !there(n))?;
        let ports = self.ports.keys().copied().filter(|n| there(n));
        let add = format!("add it first, or leave {key}= out to watch all that come");
        let fix = names("ports", &add, ports);
        Some(format!("{key}={missing}: there is no such port: {fix}"))
    }
}

/// Guests take the first address that they are offered: a broadcast domain has one gateway.
fn one_gateway(ports: &BTreeMap<&PortName, &Address>) -> Result<(), Conflict> {
    let gateways: Vec<_> = ports.iter().filter(|(_, a)| a.kind() == Kind::Nat).collect();
    for (n, (name, address)) in gateways.iter().enumerate() {
        let same =
            |other: &&(&&PortName, &&Address)| other.1.policy().vlan == address.policy().vlan;
        if let Some((other, _)) = gateways.iter().take(n).find(same) {
            let text = format!(
                "{} is a gateway of the same broadcast domain: leave one out, or put them into \
                 VLANs (vlan=)",
                other
            );
            return Err(conflict(name, None, Cause::Invalid, text));
        }
    }
    Ok(())
}

/// Members of a team choose each other in one way, and by address only if they have some.
fn alike_teams(ports: &BTreeMap<&PortName, &Address>) -> Result<(), Conflict> {
    let mut teams = BTreeMap::new();
    for (name, address) in ports {
        let bad = |key, text| Err(conflict(name, Some(key), Cause::Invalid, text));
        let Some((team, steer)) = &address.policy().team else { continue };
        if *steer == Steer::Ip && matches!(address.policy().ips, IpRule::Any) {
            let text = "steer=ip wants ips= beside it: which packets are for this member?";
            return bad("steer", text.to_owned());
        }
        let (first, own, members) = teams.entry(team).or_insert((name, steer, 0));
        *members += 1;
        if own != &steer {
            let text = format!(
                "steer={steer}: port {first} of the same team has steer={own}: change one of them"
            );
            return bad("steer", text);
        }
        if *members > MAX_MEMBERS {
            let text = format!("team={team}: it would have more than {MAX_MEMBERS} members");
            return bad("team", text);
        }
    }
    Ok(())
}

/// The ports that a capture file names.
fn captured(address: &Address) -> &[PortName] {
    match address.spec() {
        Spec::Pcap(pcap) => pcap.ports.as_deref().unwrap_or_default(),
        _ => &[],
    }
}

/// The ports that a watching port names.
fn watched(address: &Address) -> &[PortName] {
    match address.policy().watch.as_ref().map(|rule| &rule.ports) {
        Some(WatchedPorts::Listed(ports)) => ports,
        _ => &[],
    }
}

/// Capture files and ports that watch do not.
fn takes_part(address: &Address) -> bool {
    address.kind() != Kind::Pcap && !address.policy().is_watcher()
}

pub(super) fn conflict(
    port: &PortName,
    key: Option<&'static str>,
    cause: Cause,
    text: String,
) -> Conflict {
    Conflict { port: port.clone(), key, cause, text }
}

/// No name and no place may come twice: found out before anything is opened.
pub fn no_doubles<'a>(
    ports: impl Iterator<Item = (&'a PortName, &'a Address)>,
) -> Result<(), Conflict> {
    let mut seen = BTreeSet::new();
    let mut places = HashMap::new();
    for (name, address) in ports {
        if !seen.insert(name) {
            let text = "the name is given twice: choose another".to_owned();
            return Err(conflict(name, None, Cause::Exists, text));
        }
        if let Some(other) = places.insert(address.site(), name) {
            let text = format!(
                "'{}' is the place of port {other} already: give it its own",
                address.place()
            );
            return Err(conflict(name, None, Cause::Exists, text));
        }
    }
    Ok(())
}

/// Checks everything that a switch is to have, or has if it is `running`.
pub fn check_all<'a>(
    ports: impl Iterator<Item = (&'a PortName, &'a Address)> + Clone,
    limits: &'a Limits,
    named: &'a BTreeSet<PortName>,
    running: bool,
) -> Result<(), Conflict> {
    no_doubles(ports.clone())?;
    let world = World::new(ports.clone(), limits, named)?;
    ports
        .into_iter()
        .try_for_each(|(name, address)| world.check(name, address, running.then_some(address)))
}
