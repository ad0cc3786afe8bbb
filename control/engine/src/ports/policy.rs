//! From words to policies: what the ports' keys, the shared limits and the groups make of each
//! port.
//!
//! Only what differs from what runs is put into force, in one step. What changes while frames move
//! goes on with the next policy: tokens and counters of limits, the MAC address seen first, the
//! queue before an uplink.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::Sampling;
use vmlan_switch::policy::{
    Domain, FirstMac, Groups, Limiter, Limits, MAX_GROUPS, Macs, Member, Policy, Prefix, Reach,
    SourceCheck, Steer, Storm, Team, Turns, VidSet, Vlan,
};
use vmlan_switch::{Fdb, PortId, PortSet, Watch};

use super::Entry;
use super::open::Opened;
use crate::action::Holder;
use crate::worker::Workers;
use vmlan_config::address::{
    Address, Direction, IpRule, LimitTable, MacRule, PortName, PortPolicy, VidList, VlanRule,
    WatchRule, WatchedPorts,
};
use vmlan_config::gateway::Network6;

mod limit;
mod pins;

use limit::{SLEEP, limiter, shared_limiter, storm_limit};
use pins::Pin;

/// What decides a port's policy: while none of it changes, neither does the policy.
#[derive(Clone)]
struct Inputs {
    id: PortId,
    policy: PortPolicy,
    /// With `ips=leased`: what it has of gateways.
    leased: Leased,
    reach: Reach,
    is_uplink: bool,
    shared: [Option<Arc<Limiter>>; 2],
    team: Option<Arc<Team>>,
    mtu: Option<u16>,
    watch: Option<Watch>,
    sampling: Option<Arc<Sampling>>,
}

/// What a port has of gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Leased {
    /// Addresses that it was given, or took.
    ips: BTreeSet<IpAddr>,
    /// Networks of which it may take addresses.
    free: Vec<Network6>,
}

/// A port's policy, and what outlives it.
#[derive(Clone, Default)]
pub(super) struct Kept {
    made: Option<(Inputs, Arc<Policy>)>,
    /// The workers have it.
    in_force: bool,
    pins: Vec<Pin>,
    /// What else was pinned to it when it was closed, and is pinned again when it is open.
    pinned: Vec<Pin>,
    pub(super) first: Arc<FirstMac>,
    queue: Option<Arc<Turns>>,
    /// Takes samples of what it sends.
    pub(super) sampling: Option<Arc<Sampling>>,
    holder: Option<Holder>,
}

impl Kept {
    /// Of a new port.
    pub(super) fn new(holder: Option<Holder>) -> Self {
        Self { holder, ..Self::default() }
    }

    /// It was held, and is not any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.is_closed())
    }

    /// It lasts as long as somebody holds it, or is about to go.
    pub(super) fn is_fleeting(&self) -> bool {
        self.holder.is_some()
    }

    pub(super) fn is_held(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| !holder.is_closed())
    }

    /// The port was closed, and all that the switch knew of it is forgotten.
    pub(super) fn closed(&mut self) {
        self.in_force = false;
        self.pins.clear();
        self.sampling = None;
        self.first.0.store(0, Ordering::Relaxed);
    }

    /// The addresses that its `macs` pin to it.
    pub(super) fn pins(&self) -> &[Pin] {
        &self.pins
    }

    /// These were pinned to it beside those, and are to be when it is open again.
    pub(super) fn keep_pinned(&mut self, pinned: impl IntoIterator<Item = Pin>) {
        self.pinned.extend(pinned);
    }

    pub(super) fn policy(&self) -> Option<&Arc<Policy>> {
        self.made.as_ref().map(|(_, policy)| policy)
    }
}

/// A limit that ports share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) table: LimitTable,
    pub(super) limiter: Arc<Limiter>,
}

/// What ports share: limits and groups.
#[derive(Clone, Default)]
pub(super) struct Rules {
    limits: BTreeMap<PortName, Shared>,
    /// Groups that exist without a member.
    pub(super) named: BTreeSet<PortName>,
    /// Groups by number.
    numbers: Vec<Option<PortName>>,
    teams: BTreeMap<PortName, Arc<Team>>,
}

impl Rules {
    /// The shared limits.
    pub(super) fn limits(&self) -> &BTreeMap<PortName, Shared> {
        &self.limits
    }

    /// The shared limits as they were asked for.
    pub(super) fn tables(&self) -> BTreeMap<PortName, LimitTable> {
        self.limits.iter().map(|(name, shared)| (name.clone(), shared.table)).collect()
    }

    /// Sets the shared limits; counters go on where a name stays.
    pub(super) fn set_limits(&mut self, tables: &BTreeMap<PortName, LimitTable>, now: u64) {
        let old = std::mem::take(&mut self.limits);
        let new = tables.iter().filter_map(|(name, table)| {
            let running = old.get(name).map(|shared| &shared.limiter);
            let limiter = shared_limiter(*table, running, now)?;
            Some((name.clone(), Shared { table: *table, limiter }))
        });
        self.limits = new.collect();
    }

    /// Numbers the groups; one that stays keeps its number.
    fn number<'e>(&mut self, addresses: impl Iterator<Item = &'e Address>) {
        let named = |a: &'e Address| {
            let policy = a.policy();
            policy.member.iter().chain(policy.reach.iter().flatten())
        };
        let mut groups = self.named.clone();
        groups.extend(addresses.flat_map(named).cloned());
        self.numbers.resize(MAX_GROUPS, None);
        for slot in &mut self.numbers {
            slot.take_if(|name| !groups.contains(name));
        }
        for group in groups {
            if self.numbers.iter().flatten().any(|name| *name == group) {
                continue;
            }
            // There is room: `World` has counted them, except those whose last member is leaving.
            if let Some(free) = self.numbers.iter_mut().find(|slot| slot.is_none()) {
                *free = Some(group);
            }
        }
    }

    /// Makes the teams of these members; one whose members stay as they are is kept.
    fn gather(&mut self, members: BTreeMap<PortName, (Steer, Vec<Member>)>) {
        let mut old = std::mem::take(&mut self.teams);
        let team = |(name, (steer, members)): (PortName, (Steer, Vec<Member>))| {
            let same = old.remove(&name).filter(|team| team.is(steer, &members));
            (name, same.unwrap_or_else(|| Arc::new(Team::new(steer, members))))
        };
        self.teams = members.into_iter().map(team).collect();
    }

    fn bits(&self, groups: &[PortName]) -> Groups {
        let is = |slot: &Option<PortName>| slot.as_ref().is_some_and(|n| groups.contains(n));
        let set = self.numbers.iter().enumerate().filter(|(_, slot)| is(slot));
        Groups(set.fold(0, |bits, (i, _)| bits | 1 << i))
    }

    fn shared(&self, address: &Address, direction: Direction) -> Option<Arc<Limiter>> {
        let shared = self.limits.get(address.policy().limit(direction).shared.as_ref()?)?;
        Some(shared.limiter.clone())
    }
}

/// Makes the policies that `rules` and the ports' addresses ask for, and puts those that changed
/// into force.
///
/// # Errors
/// If an address cannot be pinned. Then nothing has changed.
pub(super) fn enforce(
    rules: &mut Rules,
    entries: &mut [Entry],
    workers: &Workers,
    fdb: &Fdb,
) -> Result<(), String> {
    let now = workers.now();
    rules.number(entries.iter().map(|e| &e.address));
    let ids: BTreeMap<PortName, PortId> =
        staying(entries).filter_map(|e| Some((e.name.clone(), e.id?))).collect();
    let uplinks: BTreeSet<PortId> = staying(entries)
        .filter_map(|e| ids.get(e.address.policy().uplink.as_ref()?).copied())
        .collect();
    pins::repin(entries, fdb)?;
    pins::restore(entries, fdb);
    let (mut leases, free) = (leases(entries), networks(entries));
    rules.gather(members(entries, &leases));
    let mut changed = Vec::new();
    for entry in entries.iter_mut() {
        let Some(id) = entry.id.filter(|_| !entry.leaving) else { continue };
        let mut inputs = Inputs::new(entry, id, rules, &ids, &uplinks);
        if inputs.policy.ips == IpRule::Leased {
            let ips = leases.remove(entry.name.as_str()).unwrap_or_default();
            inputs.leased = Leased { ips, free: free.clone() };
        }
        let kept = &mut entry.kept;
        if kept.in_force && kept.made.as_ref().is_some_and(|(old, _)| old.same(&inputs)) {
            continue;
        }
        if inputs.watch.is_some() {
            // Nothing lives behind a port that only watches.
            fdb.flush_port(id);
        }
        kept.queue = inputs
            .is_uplink
            .then(|| kept.queue.take().unwrap_or_else(|| Arc::new(Turns::patient(SLEEP))));
        let policy = Arc::new(inputs.policy(kept, now));
        kept.made = Some((inputs, policy.clone()));
        kept.in_force = true;
        changed.push((id, policy));
    }
    if !changed.is_empty() {
        workers.set_policies(changed);
    }
    Ok(())
}

/// Members of teams, by the name of the team.
fn members(
    entries: &[Entry],
    leases: &BTreeMap<String, BTreeSet<IpAddr>>,
) -> BTreeMap<PortName, (Steer, Vec<Member>)> {
    let mut teams = BTreeMap::new();
    for entry in staying(entries) {
        let policy = entry.address.policy();
        let (Some(id), Some((team, steer))) = (entry.id, &policy.team) else { continue };
        let member = Member {
            port: id,
            name: entry.name.as_str().into(),
            weight: policy.weight,
            ips: prefixes(policy, leases.get(entry.name.as_str()), false).unwrap_or_default(),
        };
        let team = teams.entry(team.clone()).or_insert((*steer, Vec::new()));
        team.1.push(member);
    }
    teams
}

/// Networks of IPv6 that guests may take addresses of.
fn networks(entries: &[Entry]) -> Vec<Network6> {
    let own = |entry: &Entry| match &entry.opened {
        Opened::Nat(nat) => nat.network6(),
        _ => None,
    };
    let mut all: Vec<_> = staying(entries).filter_map(own).collect();
    if !all.is_empty() {
        all.push(Network6::local());
    }
    all
}

/// Addresses that guests have of gateways, by the name of the port that has them.
fn leases(entries: &[Entry]) -> BTreeMap<String, BTreeSet<IpAddr>> {
    let mut all: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for entry in staying(entries) {
        let Opened::Nat(nat) = &entry.opened else { continue };
        for lease in nat.leases() {
            all.entry(lease.port.clone()).or_default().insert(lease.ip);
        }
    }
    all
}

fn staying(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|e| !e.leaving)
}

impl Inputs {
    fn new(
        entry: &Entry,
        id: PortId,
        rules: &Rules,
        ids: &BTreeMap<PortName, PortId>,
        uplinks: &BTreeSet<PortId>,
    ) -> Self {
        let (address, policy) = (&entry.address, entry.address.policy());
        // One that is lost, for it could not be opened again, is none, as is the port itself.
        // Without any it would use all.
        let uplink = |name: &PortName| ids.get(name).copied().unwrap_or(id);
        let watch = |rule: &WatchRule| Watch {
            ports: match &rule.ports {
                WatchedPorts::All => PortSet::ALL,
                WatchedPorts::Listed(names) => {
                    PortSet::new(names.iter().filter_map(|n| ids.get(n)).copied())
                }
            },
            domain: rule.vlan.map(Domain::customer),
        };
        Self {
            id,
            reach: Reach {
                member: rules.bits(&policy.member),
                groups: policy.reach.as_ref().map(|groups| rules.bits(groups)),
                uplink: policy.uplink.as_ref().map(uplink),
            },
            is_uplink: uplinks.contains(&id),
            shared: [Direction::From, Direction::To].map(|d| rules.shared(address, d)),
            team: policy.team.as_ref().and_then(|(team, _)| rules.teams.get(team)).cloned(),
            mtu: entry.mtu(),
            watch: policy.watch.as_ref().map(watch),
            sampling: entry.kept.sampling.clone(),
            policy: policy.clone(),
            leased: Leased::default(),
        }
    }

    fn same(&self, other: &Self) -> bool {
        let both = self.shared.iter().zip(&other.shared);
        self.id == other.id
            && self.reach == other.reach
            && self.is_uplink == other.is_uplink
            && self.watch == other.watch
            && self.mtu == other.mtu
            && same(&self.team, &other.team)
            && same(&self.sampling, &other.sampling)
            && both.into_iter().all(|(a, b)| same(a, b))
            && self.policy == other.policy
            && self.leased == other.leased
    }

    fn policy(&self, kept: &Kept, now: u64) -> Policy {
        let old = kept.policy();
        let policy = &self.policy;
        let limits = |direction, running: Option<&Limits>, shared: &Option<_>| Limits {
            own: limiter(policy.limit(direction).own, running.and_then(|l| l.own.as_ref()), now),
            shared: Option::clone(shared),
        };
        let [from, to] = &self.shared;
        Policy {
            source_check: claims(policy, &self.leased, &kept.first),
            vlan: vlan(&policy.vlan),
            reach: self.reach.clone(),
            storm: storm(policy, old.map(|p| &p.storm), now),
            drops_unknown: policy.drops_unknown,
            passes_reserved: policy.passes_reserved,
            joined_only: policy.joined_only,
            mtu: self.mtu,
            from: limits(Direction::From, old.map(|p| &p.from), from),
            to: limits(Direction::To, old.map(|p| &p.to), to),
            weight: policy.weight,
            uplink: kept.queue.clone(),
            team: self.team.clone(),
            monitor: policy.is_watcher(),
            watch: self.watch.clone().map(Arc::new),
            sampling: self.sampling.clone(),
        }
    }
}

fn same<T>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    a.as_ref().map(Arc::as_ptr) == b.as_ref().map(Arc::as_ptr)
}

fn claims(policy: &PortPolicy, leased: &Leased, first: &Arc<FirstMac>) -> SourceCheck {
    let free = leased.free.iter().map(|net| Prefix { address: net.first.into(), bits: 64 });
    SourceCheck {
        macs: match &policy.macs {
            MacRule::Any => Macs::Any,
            MacRule::First => Macs::First(first.clone()),
            MacRule::Listed(list) => Macs::Listed(list.as_slice().into()),
        },
        ips: prefixes(policy, Some(&leased.ips), !leased.free.is_empty()),
        free: (policy.ips == IpRule::Leased).then(|| free.collect()),
        dhcp_guard: policy.dhcp_guard,
        ra_guard: policy.ra_guard,
    }
}

/// The IP addresses of a port that has been given `leased`; `None`: any. `six`: a gateway has an
/// IPv6 network.
fn prefixes(
    policy: &PortPolicy,
    leased: Option<&BTreeSet<IpAddr>>,
    six: bool,
) -> Option<Arc<[Prefix]>> {
    let prefix = |range: &vmlan_config::address::IpRange| Prefix {
        address: range.address,
        bits: range.bits,
    };
    let ip = |address: IpAddr| Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } };
    match &policy.ips {
        IpRule::Any => None,
        IpRule::Listed(list) => Some(list.iter().map(prefix).collect()),
        // 0.0.0.0 and :: are nobody's source. That some address is listed lets pass what a guest
        // needs to get one: DHCP, and with IPv6 its link-local address.
        IpRule::Leased => {
            let short = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let long = six.then_some(Ipv6Addr::UNSPECIFIED.into());
            let all = leased.into_iter().flatten().copied().chain([short]).chain(long);
            Some(all.map(ip).collect())
        }
    }
}

fn vlan(rule: &VlanRule) -> Vlan {
    let vids =
        |list: &Option<VidList>| list.as_ref().map_or_else(VidSet::all, |l| VidSet::new(l.iter()));
    match *rule {
        VlanRule::Open => Vlan::Open,
        VlanRule::Access(vid) => Vlan::Access(vid),
        VlanRule::Trunk(ref list, native) => Vlan::Trunk { tagged: vids(list), native },
        VlanRule::Qinq(vid) => Vlan::Qinq(vid),
        VlanRule::QinqTrunk(ref list) => Vlan::QinqTrunk(vids(list)),
    }
}

fn storm(policy: &PortPolicy, old: Option<&Storm>, now: u64) -> Storm {
    let limit = |frames, old: Option<&Arc<_>>| storm_limit(frames, old, now);
    Storm {
        broadcast: limit(policy.broadcast_frames, old.and_then(|s| s.broadcast.as_ref())),
        multicast: limit(policy.multicast_frames, old.and_then(|s| s.multicast.as_ref())),
        unknown: limit(policy.unknown_frames, old.and_then(|s| s.unknown.as_ref())),
    }
}
