//! The ports of a switch: a snapshot, replaced whole when a port comes or goes.

use std::fmt;
use std::sync::Arc;

use vmlan_frame::{Mirror, Port, Reason};

use crate::MAX_PORTS;
use crate::forward::Way;
use crate::policy::{Chosen, Domain, Form, Macs, Policy, Steer, Vlan};

/// Number of a port in its switch, below [`MAX_PORTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u16);

const MASK: u16 = 1023; // The bits of a port's number.
const _: () = assert!(MASK as usize + 1 == MAX_PORTS);

impl PortId {
    /// The `index`-th port; `None` past the last a switch can have.
    pub fn new(index: usize) -> Option<Self> {
        u16::try_from(index).ok().filter(|_| index < MAX_PORTS).map(Self)
    }

    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        let [a, b, ..] = bits.to_le_bytes();
        Self(u16::from_le_bytes([a, b]) & MASK)
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A port and what the switch needs to know of it.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Entry {
    pub name: Arc<str>,
    pub port: Arc<dyn Port>,
    /// Who watches it, and under which interface number.
    pub mirror: Option<(Arc<dyn Mirror>, u32)>,
    pub policy: Arc<Policy>,
}

/// All ports, by number.
#[derive(Clone, Default)]
pub struct Table {
    entries: Vec<Option<Entry>>,
    members: Vec<PortId>,
    /// Whether nothing limits what a port gets, by number: no limit, no turns at an uplink. So that
    /// the policies of many receivers need not be looked at.
    unlimited: Vec<bool>,
    /// Whether a port does not care whose frames it gets, by number.
    mixed: Vec<bool>,
    monitors: Vec<PortId>,
    mirrored: bool,
    watched: bool,
    all_open: bool,
    /// No port's reach is restricted, none is a monitor, none in a team.
    all_plain: bool,
    snoops: bool,
    teams: bool,
    narrow: bool,
}

impl Table {
    /// A table of `entries`; the index is the port's number. Entries past [`MAX_PORTS`] are left
    /// out.
    pub fn new(entries: Vec<Option<Entry>>) -> Self {
        let used = entries.iter().enumerate().filter(|(_, e)| e.is_some());
        let members: Vec<_> = used.filter_map(|(i, _)| PortId::new(i)).collect();
        let mirrored = entries.iter().flatten().any(|e| e.mirror.is_some());
        let policies = || entries.iter().flatten().map(|e| &*e.policy);
        let all_open = policies().all(|p| p.vlan == Vlan::Open);
        let teams = policies().any(|p| p.team.is_some());
        let all_plain = !teams && policies().all(|p| p.reach.is_all() && !p.monitor);
        let snoops = policies().any(|p| p.joined_only);
        let narrow = policies().any(|p| p.mtu.is_some());
        let watches = |e: &Entry| e.policy.watch.is_some();
        let monitors = members.iter().copied();
        let monitors: Vec<_> = monitors
            .filter(|p| entries.get(p.index()).is_some_and(|e| e.as_ref().is_some_and(watches)))
            .collect();
        let free = |p: &Policy| p.to.is_none() && p.uplink.is_none();
        let is = |what: &dyn Fn(&Entry) -> bool| -> Vec<bool> {
            entries.iter().map(|e| e.as_ref().is_some_and(what)).collect()
        };
        let unlimited = is(&|e| free(&e.policy));
        let mixed = is(&|e| free(&e.policy) && !e.port.steers_by_source());
        let sampled = policies().any(|p| p.sampling.is_some());
        let watched = mirrored || sampled || !monitors.is_empty();
        Self {
            entries,
            members,
            unlimited,
            mixed,
            monitors,
            mirrored,
            watched,
            all_open,
            all_plain,
            snoops,
            teams,
            narrow,
        }
    }

    /// A port by number.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Numbers of all ports.
    pub fn members(&self) -> &[PortId] {
        &self.members
    }

    /// True if the port gets all that there is for it.
    #[inline]
    pub(crate) fn is_unlimited(&self, id: PortId) -> bool {
        self.unlimited.get(id.index()).is_some_and(|free| *free)
    }

    /// True if frames of several sources can be handed to the port together.
    #[inline]
    pub(crate) fn takes_mixed(&self, id: PortId) -> bool {
        self.mixed.get(id.index()).is_some_and(|mixed| *mixed)
    }

    /// True if nothing but addresses, and limits of who gets them, decides what becomes of frames,
    /// and nobody watches.
    pub(crate) fn is_simple(&self) -> bool {
        self.all_open && !self.narrow && !self.watched
    }

    /// True if no port has VLAN settings.
    #[inline]
    pub(crate) fn all_open(&self) -> bool {
        self.all_open
    }

    /// True if some port gets only what it joined.
    #[inline]
    pub(crate) fn snoops(&self) -> bool {
        self.snoops
    }

    /// True if some port has a link of its own MTU.
    #[inline]
    pub(crate) fn narrow(&self) -> bool {
        self.narrow
    }

    /// True if some ports are a team.
    #[inline]
    pub(crate) fn teams(&self) -> bool {
        self.teams
    }

    /// True if the port `from` may send to the port `to`.
    #[inline]
    pub(crate) fn reaches(&self, from: (PortId, &Policy), to: (PortId, &Policy)) -> bool {
        self.all_plain || from.1.reach.covers(from, to)
    }

    /// If a frame to all in `domain` from `source` is for `port`: whether it may go there.
    pub(crate) fn floods_to(
        &self,
        source: (PortId, &Policy),
        domain: Domain,
        port: PortId,
    ) -> Option<bool> {
        let there = |e: &&Entry| e.port.is_up() && e.policy.vlan.carries(domain);
        let entry = self.get(port).filter(|_| port != source.0).filter(there)?;
        (!entry.policy.monitor).then(|| self.reaches(source, (port, &entry.policy)))
    }

    /// The form in which `port` carries a frame to all in `domain` from `source`; `None` if it does
    /// not get it.
    pub fn form_of_flood(
        &self,
        source: (PortId, &Policy),
        domain: Domain,
        port: PortId,
    ) -> Option<Form> {
        let gets = self.floods_to(source, domain, port) == Some(true);
        self.get(port).filter(|_| gets)?.policy.vlan.form(domain)
    }

    /// Where a frame of `domain` from `source` goes whose destination lives behind `port`.
    #[inline]
    pub(crate) fn way_to(&self, source: (PortId, &Policy), domain: Domain, port: PortId) -> Way {
        if port == source.0 {
            return Way::Drop(Reason::SamePort);
        }
        if self.all_open && self.all_plain && self.get(port).is_some() {
            return Way::To(port);
        }
        // What was learned may be older than the ports' settings.
        let there = |e: &Entry| e.policy.vlan.carries(domain) && !e.policy.monitor;
        let Some(entry) = self.get(port).filter(|e| there(e)) else {
            return source.1.way_to_unknown();
        };
        if self.all_plain {
            return Way::To(port);
        }
        match &entry.policy.team {
            None => self.way_through(source, domain, (port, entry)),
            Some(team) if team.has(source.0) => Way::Drop(Reason::SamePort),
            Some(_) => Way::Team(port),
        }
    }

    /// Where a frame goes that is for `port`, if it may go there.
    fn way_through(
        &self,
        source: (PortId, &Policy),
        domain: Domain,
        (port, entry): (PortId, &Entry),
    ) -> Way {
        if self.reaches(source, (port, &entry.policy)) {
            return Way::To(port);
        }
        // The destination is behind another uplink: the frame leaves by the port's own.
        let there = |e: &Entry| e.policy.vlan.carries(domain) && !e.policy.monitor;
        let other = source.1.reach.uplink.filter(|_| entry.policy.uplink.is_some());
        match other.filter(|u| *u != source.0 && self.get(*u).is_some_and(there)) {
            Some(uplink) => Way::To(uplink),
            None => Way::Drop(Reason::Isolated),
        }
    }

    /// The member of `port`'s team that gets a frame of `domain`.
    fn chosen(&self, domain: Domain, port: PortId, frame: (&[u8], usize)) -> Chosen {
        let can = |port: PortId| {
            let entry = self.get(port);
            entry.is_some_and(|e| e.port.is_up() && e.policy.vlan.carries(domain))
        };
        let Some(policy) = self.get(port).map(|e| &e.policy) else { return Chosen::All };
        // Guests that share an address list it. What is behind a bond is learned.
        let guests = matches!(policy.source_check.macs, Macs::Listed(_));
        policy.team.as_ref().map_or(Chosen::All, |team| team.choose(frame, guests, can))
    }

    /// Where the frame of [`Way::Team`] goes from `source`, whose destination is behind `port` and
    /// its team.
    pub(crate) fn way_to_team(
        &self,
        source: (PortId, &Policy),
        domain: Domain,
        port: PortId,
        frame: (&[u8], usize),
    ) -> Way {
        match self.chosen(domain, port, frame) {
            Chosen::One(to) => match self.get(to) {
                Some(entry) => self.way_through(source, domain, (to, entry)),
                None => Way::Drop(Reason::Unknown),
            },
            // No member is up: the frame is lost at the one that it was last sent from.
            Chosen::Nobody if self.is_hashed(port) => Way::To(port),
            Chosen::All if self.is_hashed(port) => Way::WholeTeam(port),
            Chosen::All | Chosen::Nobody => Way::Drop(Reason::Unknown),
        }
    }

    /// The members of `port`'s team.
    pub(crate) fn mates(&self, port: PortId) -> impl Iterator<Item = PortId> {
        let team = self.get(port).and_then(|e| e.policy.team.as_ref());
        team.into_iter().flat_map(|team| team.ports())
    }

    fn is_hashed(&self, port: PortId) -> bool {
        let team = self.get(port).and_then(|e| e.policy.team.as_ref());
        team.is_some_and(|team| matches!(team.steer(), Steer::Hash(_)))
    }

    /// True if a frame to all from a port with `source` is for `port`, as far as that port's team
    /// decides: it is for one member, and for none if it comes from one.
    pub(crate) fn is_chosen(
        &self,
        source: &Policy,
        domain: Domain,
        port: PortId,
        frame: (&[u8], usize),
    ) -> bool {
        let Some(entry) = self.get(port).filter(|e| e.policy.team.is_some()) else { return true };
        match self.chosen(domain, port, frame) {
            _ if entry.policy.is_mate(source) => false,
            Chosen::One(to) => to == port,
            Chosen::All => true,
            Chosen::Nobody => false,
        }
    }

    /// Ports that are shown frames of others.
    pub(crate) fn monitors(&self) -> &[PortId] {
        &self.monitors
    }

    /// True if anybody watches any port: a capture, a monitor, a sampler.
    #[inline]
    pub(crate) fn watched(&self) -> bool {
        self.watched
    }

    /// True if some port is captured.
    #[inline]
    pub fn mirrored(&self) -> bool {
        self.mirrored
    }
}
