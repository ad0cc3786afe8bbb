//! Which ports have joined which multicast groups, by what guests say in IGMP and MLD (RFC 4541).
//!
//! It concerns ports with [`Policy::joined_only`]: they get frames to a group only while they have
//! joined it. All other ports get all frames, as without snooping: that is where queriers and
//! routers are. Where no querier asks, nobody would join again, so everything is flooded.
//!
//! So what counts as asking decides who is cut off. A query counts if each host has to answer it
//! ([`Membership::Query`]) and each port with that policy is given it. Whoever was not asked gets
//! all groups: a port that is new, was down, has another VLAN.
//!
//! ```text
//!  membership (AtomicU64):   63 .. 56   55 .. 46   45 .. 33     32       31 .. 0
//!                             expiry      port      domain   is IPv6      group
//! ```
//!
//! A group is its IPv4 address, or 32 bits of a keyed hash of its IPv6 address. Expiry counts ticks
//! of two seconds, modulo 256; who is older than a lifetime is removed before it could look young
//! again. Workers look up and write without a lock.
//!
//! Reports are hostile. A port has at most [`MOST`] memberships; one that wants more, says what
//! cannot be read in a snapshot, or finds no room, gets all groups for a lifetime, which costs no
//! other port anything. A report that was lost or forged is outlived after a lifetime too.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vmlan_frame::headers::{ETHERTYPE_QINQ, ETHERTYPE_VLAN, Membership, Records};
use vmlan_frame::{Headers, Network, Reason};

use crate::policy::{Domain, Policy, Vlan};
use crate::{MAX_PORTS, PortId};

/// Nanoseconds of a tick.
const TICK_NS: u64 = 2_000_000_000;

/// Ticks after which a membership ends: 260 s (RFC 3376 section 8.4, RFC 3810 section 9.4).
const LIFETIME: u8 = 130;

/// Ticks after which a querier that is silent has gone: 255 s (RFC 3376 section 8.5).
const QUERIER: u64 = 128;

/// Ticks for which a group that was left is kept, for others behind the port to object: 2 s (RFC
/// 3376 section 8.8), and what a tick is inexact by.
const LEAVING: u8 = 2;

/// A port gets everything until something was heard from it, and then for a lifetime.
const UNTIL_HEARD: u64 = u64::MAX;

/// Memberships of a port.
const MOST: u32 = 64;

/// Ticks between two walks through the table.
const SWEEP: u64 = 8;

/// Ticks without a walk after which an old membership could look young.
const BLIND: u64 = 256 - LIFETIME as u64;

const SETS: usize = 2048;
const WAYS: usize = 8;
const DOMAINS: usize = 1 << 13;
const EXPIRY_SHIFT: u32 = 56;
const PORT_SHIFT: u32 = 46;
const DOMAIN_SHIFT: u32 = 33;
const IPV6: u64 = 1 << 32;
const MEMBERSHIP: u64 = (1 << EXPIRY_SHIFT) - 1;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// A querier of a domain.
#[derive(Debug, Default)]
struct Querier {
    /// The tick from which on whoever joined something has said so.
    answered: AtomicU64,
    /// The tick at which it is thought to have gone.
    gone: AtomicU64,
}

/// Who has joined what.
#[derive(Debug)]
pub(crate) struct Snooping {
    sets: Box<[Set]>,
    keys: [u64; 2],
    /// Memberships of each port.
    counts: Box<[AtomicU32]>,
    /// The ticks until which each port gets everything, or [`UNTIL_HEARD`].
    all: Box<[AtomicU64]>,
    /// Of each port that gets only what it joined a hash of its VLANs; 0 of all others.
    vlans: Box<[AtomicU64]>,
    /// Of IPv4 and IPv6.
    queriers: [Box<[Querier]>; 2],
    swept: AtomicU64,
}

/// A group in a domain: a membership without port and expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(u64);

/// Which ports a frame to a group address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    /// All.
    All,
    /// Those that are not restricted to what they joined: a report. A host that heard another's
    /// would not send its own (RFC 4541 section 2.1.1).
    Routers,
    /// Those, and the ones that joined this.
    Members(Group),
}

/// What a frame to a group address says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'h> {
    message: Option<Membership<'h>>,
    network: Network,
}

fn tick(now: u64) -> u64 {
    now / TICK_NS
}

#[allow(clippy::cast_possible_truncation)] // wanted: modulo 256
fn short(tick: u64) -> u8 {
    tick as u8
}

/// True if a membership has not expired.
#[inline]
fn lives(word: u64, tick: u64) -> bool {
    word != 0 && short(word >> EXPIRY_SHIFT).wrapping_sub(short(tick)) <= LIFETIME
}

fn with_expiry(word: u64, tick: u8) -> u64 {
    word & MEMBERSHIP | u64::from(tick) << EXPIRY_SHIFT
}

fn port_of(word: u64) -> PortId {
    PortId::from_bits(word >> PORT_SHIFT)
}

impl Snooping {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        let queriers = || (0..DOMAINS).map(|_| Querier::default()).collect();
        Self {
            sets: (0..SETS).map(|_| Set::default()).collect(),
            keys: [random.hash_one(1), random.hash_one(2) | 1],
            counts: (0..MAX_PORTS).map(|_| AtomicU32::new(0)).collect(),
            all: (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect(),
            vlans: (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect(),
            queriers: [queriers(), queriers()],
            swept: AtomicU64::new(0),
        }
    }

    /// Which ports a frame to a group address, from a port with `vlan`, is for, and what it says.
    /// Changes nothing.
    pub(crate) fn look<'h>(
        &self,
        (head, len): (&'h [u8], usize),
        (vlan, domain): (&Vlan, Domain),
        now: u64,
    ) -> (Cast, Said<'h>) {
        let headers = Headers::parse(head, len);
        if headers.tags > vlan.own_tag(head).is_some().into() {
            // Tags that are payload tell LANs apart which are one domain here.
            return (Cast::All, Said { message: None, network: headers.network });
        }
        let said = Said { message: headers.membership(head, len), network: headers.network };
        let cast = match said.message {
            Some(Membership::Report(_)) => Cast::Routers,
            Some(_) => Cast::All,
            None => {
                let group = headers.addresses(head).map(|(_, to)| to).filter(|to| is_kept(to));
                let known = group.filter(|_| self.is_asked(said.network, domain, now));
                known.map_or(Cast::All, |group| Cast::Members(self.group(group, domain)))
            }
        };
        (cast, said)
    }

    /// A frame that says this came from `port`. `asks_all`: it is given to all ports of the domain
    /// that get only what they joined.
    pub(crate) fn hear(
        &self,
        said: Said<'_>,
        (port, policy): (PortId, &Policy),
        domain: Domain,
        asks_all: impl FnOnce() -> bool,
        now: u64,
    ) {
        self.sweep(now);
        if self.all_until(port) == UNTIL_HEARD {
            self.give_all(port, tick(now));
        }
        match said.message {
            Some(Membership::Query { delay, general: true }) if asks_all() => {
                self.asked(said.network, domain, delay, now);
            }
            Some(Membership::Report(records)) if policy.joined_only => {
                self.reported(records, domain, port, now);
            }
            _ => {}
        }
    }

    /// True if a frame that is for `cast` is for `port`, which is restricted to what it joined.
    pub(crate) fn is_for(&self, cast: Cast, port: PortId, now: u64) -> bool {
        let now = tick(now);
        match cast {
            Cast::All => true,
            Cast::Routers => false,
            Cast::Members(group) => self.all_until(port) > now || self.has(group, port, now),
        }
    }

    /// Notes which ports get only what they joined, and in which VLANs. One for which that has
    /// changed has not been asked yet.
    pub(crate) fn restrict(&self, port: PortId, policy: &Policy) {
        let mut hasher = DefaultHasher::new();
        policy.vlan.hash(&mut hasher);
        let wanted = if policy.joined_only { hasher.finish() | 1 } else { 0 };
        let known = self.vlans.get(port.index());
        if known.is_some_and(|known| known.swap(wanted, Ordering::Relaxed) != wanted) {
            self.not_asked(port);
        }
    }

    /// Whoever is behind `port` from now on may have missed queries.
    pub(crate) fn not_asked(&self, port: PortId) {
        if let Some(all) = self.all.get(port.index()) {
            all.store(UNTIL_HEARD, Ordering::Relaxed);
        }
    }

    /// Forgets what was joined at `port`.
    pub(crate) fn forget(&self, port: PortId) {
        if self.count(port).is_some_and(|n| n.load(Ordering::Relaxed) > 0) {
            let words = self.sets.iter().flat_map(|set| &set.0);
            for word in words {
                let e = word.load(Ordering::Relaxed);
                if e != 0 && port_of(e) == port {
                    self.clear(word, e);
                }
            }
        }
        for of_ports in [&self.all, &self.vlans] {
            if let Some(of_port) = of_ports.get(port.index()) {
                of_port.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Memberships of `port`.
    pub(crate) fn joined(&self, port: PortId) -> u32 {
        self.count(port).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn count(&self, port: PortId) -> Option<&AtomicU32> {
        self.counts.get(port.index())
    }

    fn all_until(&self, port: PortId) -> u64 {
        self.all.get(port.index()).map_or(0, |until| until.load(Ordering::Relaxed))
    }

    fn querier(&self, network: Network, domain: Domain) -> Option<&Querier> {
        let [v4, v6] = &self.queriers;
        let queriers = if network == Network::Ipv6 { v6 } else { v4 };
        queriers.get(usize::from(domain.bits()))
    }

    /// True if a querier is there, and has had its answers.
    fn is_asked(&self, network: Network, domain: Domain, now: u64) -> bool {
        let now = tick(now);
        self.querier(network, domain).is_some_and(|q| {
            let answered = q.answered.load(Ordering::Relaxed);
            answered != 0 && answered <= now && now < q.gone.load(Ordering::Relaxed)
        })
    }

    fn asked(&self, network: Network, domain: Domain, delay: Duration, now: u64) {
        let Some(querier) = self.querier(network, domain) else { return };
        let ticks = tick(crate::nanos(delay)) + 2;
        let now = tick(now);
        // Answers that come later than what is known ends are waited for as the first ones are.
        let answered = now + ticks.min(QUERIER);
        if querier.gone.load(Ordering::Relaxed) <= answered {
            querier.answered.store(answered, Ordering::Relaxed);
        }
        querier.gone.store(now + QUERIER, Ordering::Relaxed);
    }

    fn reported(&self, records: Records<'_>, domain: Domain, port: PortId, now: u64) {
        let now = tick(now);
        for record in records {
            match record {
                Some((group, joined)) if is_kept(group) => {
                    let word = self.group(group, domain).0 | port.bits() << PORT_SHIFT;
                    if joined { self.join(word, now) } else { self.leave(word, now) }
                }
                Some(_) => {}
                None => self.give_all(port, now),
            }
        }
    }

    fn group(&self, address: &[u8], domain: Domain) -> Group {
        let domain = u64::from(domain.bits()) << DOMAIN_SHIFT;
        let group = match address.try_into() {
            Ok(v4) => u32::from_be_bytes(v4).into(),
            Err(_) => {
                IPV6 | address.chunks(8).fold(0, |hash, part| {
                    let part = part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                    self.mix(hash ^ part)
                }) >> 32
            }
        };
        Group(domain | group)
    }

    fn mix(&self, word: u64) -> u64 {
        let [a, b] = self.keys;
        let wide = u128::from(word ^ a) * u128::from(b);
        let [low, high] = [wide, wide >> 64].map(|half| half & u128::from(u64::MAX));
        u64::try_from(low ^ high).unwrap_or_default()
    }

    fn set(&self, membership: u64) -> &[AtomicU64] {
        let hash = usize::try_from(self.mix(membership & MEMBERSHIP) >> 40).unwrap_or_default();
        self.sets.get(hash % SETS).map_or(&[], |set| &set.0[..])
    }

    fn find(&self, membership: u64) -> Option<(&AtomicU64, u64)> {
        self.set(membership).iter().find_map(|word| {
            let e = word.load(Ordering::Relaxed);
            (e & MEMBERSHIP == membership & MEMBERSHIP).then_some((word, e))
        })
    }

    fn has(&self, group: Group, port: PortId, now: u64) -> bool {
        let found = self.find(group.0 | port.bits() << PORT_SHIFT);
        found.is_some_and(|(_, e)| lives(e, now)) && !self.is_blind(now)
    }

    /// A membership begins or goes on.
    fn join(&self, membership: u64, now: u64) {
        let port = port_of(membership);
        let wanted = with_expiry(membership, short(now).wrapping_add(LIFETIME));
        // Losing a race is fine: whoever won it has just said something about the same.
        if let Some((word, e)) = self.find(membership) {
            let _ = word.compare_exchange(e, wanted, Ordering::Relaxed, Ordering::Relaxed);
            return;
        }
        let Some(count) = self.count(port).filter(|n| n.load(Ordering::Relaxed) < MOST) else {
            return self.give_all(port, now);
        };
        let free = self.set(membership).iter().any(|word| {
            let order = Ordering::Relaxed;
            word.load(order) == 0 && word.compare_exchange(0, wanted, order, order).is_ok()
        });
        if free {
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.give_all(port, now);
        }
    }

    /// Somebody behind the port has left: the querier asks whether others are there.
    fn leave(&self, membership: u64, now: u64) {
        let Some((word, e)) = self.find(membership) else { return };
        let soon = with_expiry(membership, short(now).wrapping_add(LEAVING));
        if lives(e, now + u64::from(LEAVING)) {
            let _ = word.compare_exchange(e, soon, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn give_all(&self, port: PortId, now: u64) {
        if let Some(until) = self.all.get(port.index()) {
            until.store(now + u64::from(LIFETIME), Ordering::Relaxed);
        }
    }

    /// True if the table was not walked for so long that ages cannot be told.
    fn is_blind(&self, now: u64) -> bool {
        now.saturating_sub(self.swept.load(Ordering::Relaxed)) >= BLIND
    }

    /// Removes what has expired, now and then.
    fn sweep(&self, now: u64) {
        let now = tick(now);
        let swept = self.swept.load(Ordering::Relaxed);
        let due = now >= swept.saturating_add(SWEEP);
        let order = Ordering::Relaxed;
        if !due || self.swept.compare_exchange(swept, now, order, order).is_err() {
            return;
        }
        let blind = now - swept >= BLIND;
        for word in self.sets.iter().flat_map(|set| &set.0) {
            let e = word.load(Ordering::Relaxed);
            if e != 0 && (blind || !lives(e, now)) {
                self.clear(word, e);
            }
        }
    }

    fn clear(&self, word: &AtomicU64, old: u64) {
        let won = word.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if let Some(count) = self.count(port_of(old)).filter(|_| won) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What is known of a few ports and domains, for comparison.
    #[cfg(test)]
    pub(crate) fn state(&self) -> Vec<u64> {
        let words = self.sets.iter().flat_map(|set| &set.0).chain(self.all.iter().take(16));
        let queriers = self.queriers.iter().flat_map(|all| all.iter().take(16));
        let queriers = queriers.flat_map(|q| [&q.answered, &q.gone]);
        let all = words.chain(queriers).map(|word| word.load(Ordering::Relaxed));
        all.filter(|word| *word != 0).collect()
    }
}

/// Whether a port that is restricted to what it joined, and so is no router, may send a frame, to
/// whomever it is addressed: a router hears queries in frames to itself, too.
///
/// # Errors
/// [`Reason::MulticastGuard`] if it is a query, or what could be one: also behind more tags than
/// are read.
pub(crate) fn guard((head, len): (&[u8], usize)) -> Result<(), Reason> {
    let headers = Headers::parse(head, len);
    if matches!(headers.ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
        return Err(Reason::MulticastGuard);
    }
    match headers.membership(head, len) {
        Some(Membership::Query { .. } | Membership::Unclear) => Err(Reason::MulticastGuard),
        Some(Membership::Report(_)) | None => Ok(()),
    }
}

/// True for groups that are joined by reports. Those of the local link in IPv4 are not always (RFC
/// 4541 section 2.1.2), nor are "all nodes" and what stays in an interface in IPv6 (section 3).
fn is_kept(group: &[u8]) -> bool {
    match group {
        [224, 0, 0, _] => false,
        [first, _, _, _] => *first >> 4 == 14,
        [0xff, flags, rest @ ..] => {
            let all_nodes = rest
                .split_last()
                .is_some_and(|(last, zero)| *last == 1 && zero.iter().all(|b| *b == 0));
            flags & 15 > 1 && !(flags & 15 == 2 && all_nodes)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
