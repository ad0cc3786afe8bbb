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
            self.put(ip, Held { mac, port: lease.port, expires: lease.expires });
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
        let before = self.by_mac.get(&who.mac).copied();
        let known = reserved.into_iter().chain(before).chain(wanted);
        let mut known = known.filter(|ip| self.is_free(*ip, who, now));
        known.next().or_else(|| {
            let (first, last) = self.network.pool();
            let count = last.to_bits() - first.to_bits() + 1;
            let start = hash(who.port) % count;
            let nth = |n: u32| Ipv4Addr::from_bits(first.to_bits() + (start + n) % count);
            (0..count).map(nth).find(|ip| self.is_free(*ip, who, now))
        })
    }

    /// May `who` have it?
    fn is_free(&self, ip: Ipv4Addr, who: Who<'_>, now: u64) -> bool {
        let is_other_port =
            |(port, reserved): (&String, &Ipv4Addr)| *reserved == ip && port != who.port;
        let leased = self.by_ip.get(&ip);
        let offered = self.offers.iter().any(|o| o.ip == ip && o.mac != who.mac && o.until > now);
        self.network.is_for_hosts(ip)
            && !self.reserved.iter().any(is_other_port)
            && leased.is_none_or(|held| held.mac == who.mac || held.expires <= now)
            && self.declined.get(&ip).is_none_or(|(_, until)| *until <= now)
            && !offered
    }

    /// Gives `ip` to `who` until `expires`, if it may have it. A port that has an address reserved
    /// gets no other while that one is free; one that has many leases loses the oldest.
    pub(crate) fn request(
        &mut self,
        who: Who<'_>,
        ip: Ipv4Addr,
        hostname: Option<String>,
        (now, expires): (u64, u64),
    ) -> Option<Vec<Change>> {
        let reserved = self.reserved.get(who.port).filter(|own| **own != ip);
        let better = reserved.is_some_and(|own| self.is_free(*own, who, now));
        if better || !self.is_free(ip, who, now) {
            return None;
        }
        self.offers.retain(|offer| offer.mac != who.mac);
        let port = who.port.to_owned();
        self.put(ip, Held { mac: who.mac, port: port.clone(), expires });
        let mut changes = self.make_room(who, now);
        let lease = Lease { ip: ip.into(), mac: mac_text(who.mac), port, hostname, expires };
        changes.push(Change::Given(lease));
        Some(changes)
    }

    /// Forgets those leases of a port's other NICs, the oldest ones, that are too many.
    fn make_room(&mut self, who: Who<'_>, now: u64) -> Vec<Change> {
        let others = self
            .by_ip
            .iter()
            .filter(|(_, held)| held.port == who.port && held.mac != who.mac && held.expires > now);
        let mut others: Vec<_> = others.map(|(ip, held)| (held.expires, *ip)).collect();
        others.sort_unstable();
        let many = (others.len() + 1).saturating_sub(LEASES);
        let forgotten = others.into_iter().take(many).map(|(_, ip)| {
            self.forget(ip);
            Change::Released(ip.into())
        });
        forgotten.collect()
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
        let live = self.by_ip.iter().filter(|(_, held)| held.expires > now);
        let own = live.filter(|(_, held)| held.port.eq_ignore_ascii_case(name));
        own.max_by_key(|(_, held)| held.expires).map(|(ip, _)| *ip).or_else(reserved)
    }

    /// The name of the port that has `ip`.
    pub(crate) fn by_address(&self, ip: Ipv4Addr, now: u64) -> Option<&str> {
        let live = self.by_ip.get(&ip).filter(|held| held.expires > now);
        live.map(|held| held.port.as_str())
    }

    /// The NIC that has `ip`.
    pub(crate) fn mac_of(&self, ip: Ipv4Addr) -> Option<Mac> {
        self.by_ip.get(&ip).map(|held| held.mac)
    }

    /// How many addresses are leased at this moment.
    pub(crate) fn count(&self, now: u64) -> usize {
        self.by_ip.values().filter(|held| held.expires > now).count()
    }
}

/// FNV-1a: the same in every run.
fn hash(name: &str) -> u32 {
    let step = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, step)
}
