//! Who has which address. A NIC's address is found from its port's name, so it is the same after
//! everything was forgotten, unless somebody else has it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use vmlan_config::gateway::{Lease, Network};

use crate::link::{Mac, mac_text, parse_mac};

/// Seconds that an offer is kept for.
const OFFER: u64 = 10;
/// Offers of one port.
const OFFERS: usize = 16;
/// Leases of one port, as many as it has NICs at a time. One that takes turns with more does not
/// have all addresses.
const LEASES: usize = 16;
/// Seconds that an address which somebody found in use is not given.
const DECLINED: u64 = 60;

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Given(Lease),
    Released(IpAddr),
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub(crate) mac: Mac,
    pub(crate) port: &'a str,
}

#[derive(Debug)]
struct Offer {
    ip: Ipv4Addr,
    mac: Mac,
    port: String,
    until: u64,
}

#[derive(Debug)]
struct Held {
    mac: Mac,
    port: String,
    expires: u64,
    /// It made room for another NIC of its port. Nobody is told of it any more, but its NIC may be
    /// at work: until it expires others get it last.
    set_aside: bool,
}

impl Held {
    /// Is it a lease at this moment?
    fn is_live(&self, now: u64) -> bool {
        self.expires > now && !self.set_aside
    }
}

/// All leases. Times are seconds since 1970.
#[derive(Debug)]
pub(crate) struct Leases {
    network: Network,
    reserved: BTreeMap<String, Ipv4Addr>,
    by_ip: BTreeMap<Ipv4Addr, Held>,
    by_mac: HashMap<Mac, Ipv4Addr>,
    offers: Vec<Offer>,
    /// Addresses that were declined: by which port, and until when they are not given.
    declined: HashMap<Ipv4Addr, (String, u64)>,
}

impl Leases {
    /// None yet.
    pub(crate) fn new(network: Network, reserved: BTreeMap<String, Ipv4Addr>) -> Self {
        Self {
            network,
            reserved,
            by_ip: BTreeMap::new(),
            by_mac: HashMap::new(),
            offers: Vec::new(),
            declined: HashMap::new(),
        }
    }

    /// One that was given by the gateway before this one.
    pub(crate) fn restore(&mut self, lease: Lease) {
        let IpAddr::V4(ip) = lease.ip else { return };
        if let Some(mac) = parse_mac(&lease.mac).filter(|_| self.network.is_for_hosts(ip)) {
            let Lease { port, expires, .. } = lease;
            self.put(ip, Held { mac, port, expires, set_aside: false });
        }
    }

    /// Follows new reservations.
    pub(crate) fn reserve(&mut self, reserved: BTreeMap<String, Ipv4Addr>) {
        self.reserved = reserved;
    }

    fn put(&mut self, ip: Ipv4Addr, held: Held) {
        let mac = held.mac;
        if let Some(old) = self.by_mac.insert(mac, ip).filter(|old| *old != ip) {
            self.by_ip.remove(&old);
        }
        if let Some(other) = self.by_ip.insert(ip, held).filter(|other| other.mac != mac) {
            self.by_mac.remove(&other.mac);
        }
    }

    /// The address to offer; `wanted`: what the client would like. None: none is left.
    pub(crate) fn offer(
        &mut self,
        who: Who<'_>,
        wanted: Option<Ipv4Addr>,
        now: u64,
    ) -> Option<Ipv4Addr> {
        self.offers.retain(|offer| offer.until > now);
        self.offers.retain(|offer| offer.mac != who.mac);
        let ip = self.choose(who, wanted, now)?;
        let own = |offer: &&Offer| offer.port == who.port;
        if self.offers.iter().filter(own).count() >= OFFERS {
            let first = self.offers.iter().position(|offer| offer.port == who.port)?;
            self.offers.remove(first);
        }
        let (mac, port) = (who.mac, who.port.to_owned());
        self.offers.push(Offer { ip, mac, port, until: now + OFFER });
        Some(ip)
    }

    fn choose(&self, who: Who<'_>, wanted: Option<Ipv4Addr>, now: u64) -> Option<Ipv4Addr> {
        let reserved = self.reserved.get(who.port).copied();
        let reserved = reserved.filter(|ip| self.may_have(*ip, who, now));
        let before = self.by_mac.get(&who.mac).copied();
        let (first, last) = self.network.pool();
        let count = last.to_bits() - first.to_bits() + 1;
        let start = hash(who.port) % count;
        let nth = |n: u32| Ipv4Addr::from_bits(first.to_bits() + (start + n) % count);
        let pool = || (0..count).map(nth);
        let mut all = before.into_iter().chain(wanted).chain(pool());
        // Of those that are set aside the oldest, whose NIC is the likeliest to have gone.
        let oldest = || {
            let left = pool().filter(|ip| self.may_have(*ip, who, now));
            left.min_by_key(|ip| self.by_ip.get(ip).map(|held| held.expires))
        };
        reserved.or_else(|| all.find(|ip| self.is_free(*ip, who, now))).or_else(oldest)
    }

    /// May `who` have it without being in the way of a NIC that made room?
    fn is_free(&self, ip: Ipv4Addr, who: Who<'_>, now: u64) -> bool {
        let held = self.by_ip.get(&ip).filter(|held| held.mac != who.mac);
        self.may_have(ip, who, now) && held.is_none_or(|held| held.expires <= now)
    }

    /// May `who` have it if no other is left?
    fn may_have(&self, ip: Ipv4Addr, who: Who<'_>, now: u64) -> bool {
        let is_other_port =
            |(port, reserved): (&String, &Ipv4Addr)| *reserved == ip && port != who.port;
        let leased = self.by_ip.get(&ip);
        let offered = self.offers.iter().any(|o| o.ip == ip && o.mac != who.mac && o.until > now);
        self.network.is_for_hosts(ip)
            && !self.reserved.iter().any(is_other_port)
            && leased.is_none_or(|held| held.mac == who.mac || !held.is_live(now))
            && self.declined.get(&ip).is_none_or(|(_, until)| *until <= now)
            && !offered
    }

    /// Gives `ip` to `who` until `expires`, if it may have it. A port that has an address reserved
    /// gets no other while that one is free; of one that has many leases the oldest is set aside.
    pub(crate) fn request(
        &mut self,
        who: Who<'_>,
        ip: Ipv4Addr,
        hostname: Option<String>,
        (now, expires): (u64, u64),
    ) -> Option<Vec<Change>> {
        let reserved = self.reserved.get(who.port).copied();
        let better = reserved.filter(|own| *own != ip);
        let better = better.is_some_and(|own| self.may_have(own, who, now));
        let meant = reserved == Some(ip)
            || self.offers.iter().any(|o| o.ip == ip && o.mac == who.mac && o.until > now);
        let free = self.is_free(ip, who, now) || meant && self.may_have(ip, who, now);
        if better || !free {
            return None;
        }
        self.offers.retain(|offer| offer.mac != who.mac);
        let port = who.port.to_owned();
        self.put(ip, Held { mac: who.mac, port: port.clone(), expires, set_aside: false });
        let mut changes = self.make_room(who, now);
        let lease = Lease { ip: ip.into(), mac: mac_text(who.mac), port, hostname, expires };
        changes.push(Change::Given(lease));
        Some(changes)
    }

    /// Sets those leases of a port's other NICs aside, the oldest ones, that are too many. Its
    /// reserved address stays.
    fn make_room(&mut self, who: Who<'_>, now: u64) -> Vec<Change> {
        let reserved = self.reserved.get(who.port);
        let live = self.by_ip.iter_mut();
        let live = live.filter(|(_, held)| held.port == who.port && held.is_live(now));
        let mut live: Vec<_> = live.collect();
        let many = live.len().saturating_sub(LEASES);
        live.retain(|(ip, held)| held.mac != who.mac && reserved != Some(*ip));
        live.sort_unstable_by_key(|(ip, held)| (held.expires, **ip));
        let aside = live.into_iter().take(many).map(|(ip, held)| {
            held.set_aside = true;
            Change::Released((*ip).into())
        });
        aside.collect()
    }

    /// A client gives its address back. True if it was its own.
    pub(crate) fn release(&mut self, mac: Mac, ip: Ipv4Addr) -> bool {
        let own = self.by_mac.get(&mac) == Some(&ip);
        if own {
            self.forget(ip);
        }
        own
    }

    /// Whoever has `ip` has it no longer.
    pub(crate) fn forget(&mut self, ip: Ipv4Addr) -> bool {
        let Some(held) = self.by_ip.remove(&ip) else { return false };
        self.by_mac.remove(&held.mac);
        true
    }

    /// A client found `ip` in use. One address at a time is put aside for the sake of one port.
    pub(crate) fn decline(&mut self, who: Who<'_>, ip: Ipv4Addr, now: u64) -> bool {
        let own = self.release(who.mac, ip)
            || self.offers.iter().any(|offer| offer.ip == ip && offer.mac == who.mac);
        if own {
            self.offers.retain(|offer| offer.mac != who.mac);
            self.declined.retain(|_, (port, until)| *until > now && port != who.port);
            self.declined.insert(ip, (who.port.to_owned(), now + DECLINED));
        }
        own
    }

    /// The address of a port, by its name in small letters; the newest if there are several.
    pub(crate) fn by_name(&self, name: &str, now: u64) -> Option<Ipv4Addr> {
        let reserved = || {
            let mut named = self.reserved.iter();
            named.find_map(|(port, ip)| port.eq_ignore_ascii_case(name).then_some(*ip))
        };
        let live = self.by_ip.iter().filter(|(_, held)| held.is_live(now));
        let own = live.filter(|(_, held)| held.port.eq_ignore_ascii_case(name));
        own.max_by_key(|(_, held)| held.expires).map(|(ip, _)| *ip).or_else(reserved)
    }

    /// The name of the port that has `ip`.
    pub(crate) fn by_address(&self, ip: Ipv4Addr, now: u64) -> Option<&str> {
        let live = self.by_ip.get(&ip).filter(|held| held.is_live(now));
        live.map(|held| held.port.as_str())
    }

    /// The NIC that has `ip`.
    pub(crate) fn mac_of(&self, ip: Ipv4Addr) -> Option<Mac> {
        self.by_ip.get(&ip).map(|held| held.mac)
    }

    /// How many addresses are leased at this moment.
    pub(crate) fn count(&self, now: u64) -> usize {
        self.by_ip.values().filter(|held| held.is_live(now)).count()
    }
}

/// FNV-1a: the same in every run.
fn hash(name: &str) -> u32 {
    let step = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, step)
}
