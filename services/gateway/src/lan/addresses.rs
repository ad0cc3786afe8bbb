//! IPv6 addresses, which NICs take themselves, and who has them. A port keeps what it took first;
//! it has a few, and the gateway remembers no more for it, however many its guest invents.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use vmlan_config::gateway::{Lease, Network6};

use crate::counters::Reason;
use crate::link::{Mac, mac_text, parse_mac};
use crate::services::{Change, Who};

/// Addresses of one port: of several NICs, with some for privacy (RFC 8981).
const OF_PORT: usize = 16;
/// Addresses that a name stands for.
const NAMED: usize = 4;
/// Addresses in all.
const ALL: usize = 16_384;
/// Seconds for which one is remembered that is not seen.
const KEPT: u64 = 86_400;
/// Seconds after which the switch is told again that one is seen.
const TOLD: u64 = 3600;
/// Seconds for which an address that was seen makes no room for a new one of the same port, and for
/// which the switch is not told of it again: a guest would decide how often it is told.
const FRESH: u64 = 60;

#[derive(Debug)]
struct Address {
    mac: Mac,
    port: String,
    seen: u64,
    told: u64,
}

/// All addresses of IPv6. Times are seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    by_ip: HashMap<Ipv6Addr, Address>,
    by_port: HashMap<String, Vec<Ipv6Addr>>,
}

impl Addresses {
    /// One that was known to the gateway before this one. False: it is none of this LAN's.
    pub(crate) fn restore(&mut self, network: Network6, lease: &Lease) {
        let IpAddr::V6(ip) = lease.ip else { return };
        if let Some(mac) = parse_mac(&lease.mac).filter(|_| is_of(network, ip)) {
            let (seen, port) = (lease.expires.saturating_sub(KEPT), lease.port.clone());
            self.put(ip, Address { mac, port, seen, told: seen });
        }
    }

    fn put(&mut self, ip: Ipv6Addr, address: Address) {
        self.forget(ip);
        let own = self.by_port.entry(address.port.clone()).or_default();
        if own.len() < OF_PORT && self.by_ip.len() < ALL {
            own.push(ip);
            self.by_ip.insert(ip, address);
        }
    }

    /// Is it known that this NIC has `ip`? Then it was seen now.
    pub(crate) fn see(&mut self, ip: Ipv6Addr, mac: Mac, now: u64) -> bool {
        let known = self.by_ip.get_mut(&ip).filter(|a| a.mac == mac && now < a.told + TOLD);
        known.is_some_and(|address| {
            address.seen = now;
            true
        })
    }

    /// `who` says that it has `ip`: what the switch is to be told.
    ///
    /// # Errors
    /// It is another port's, or this port has enough.
    pub(crate) fn claim(
        &mut self,
        network: Network6,
        ip: Ipv6Addr,
        who: Who<'_>,
        now: u64,
    ) -> Result<Vec<Change>, Reason> {
        if !is_of(network, ip) {
            return Err(Reason::Foreign);
        }
        if let Some(old) = self.by_ip.get_mut(&ip) {
            // A NIC that moves takes its addresses along, and one that is made of a MAC address is
            // that NIC's, whoever was first.
            let made_of_mac =
                [network, Network6::local()].iter().any(|n| n.of_mac(who.mac.0) == ip);
            let may =
                old.port == who.port || old.mac == who.mac || made_of_mac || now >= old.seen + KEPT;
            if !may {
                return Err(Reason::Taken);
            }
            if old.port == who.port && now < old.told + FRESH {
                // A guest whose NICs take turns does not decide how often the switch is told.
                (old.mac, old.seen) = (who.mac, now);
                return Ok(Vec::new());
            }
        }
        let own = self.by_port.get(who.port).map_or(&[][..], Vec::as_slice);
        let mut changes = Vec::new();
        if own.len() >= OF_PORT && !own.contains(&ip) {
            let seen = |ip: &&Ipv6Addr| self.by_ip.get(*ip).map_or(0, |address| address.seen);
            let oldest = own.iter().min_by_key(seen).copied().ok_or(Reason::Addresses)?;
            if seen(&&oldest) + FRESH > now {
                return Err(Reason::Addresses);
            }
            self.forget(oldest);
            changes.push(Change::Released(oldest.into()));
        }
        if self.by_ip.len() >= ALL && !self.by_ip.contains_key(&ip) {
            // Of a port that has gone, most likely: nobody tells.
            let oldest = self.by_ip.iter().min_by_key(|(_, address)| address.seen);
            let old = oldest.filter(|(_, address)| now >= address.seen + FRESH);
            let gone = *old.ok_or(Reason::Addresses)?.0;
            self.forget(gone);
            changes.push(Change::Released(gone.into()));
        }
        let port = who.port.to_owned();
        self.put(ip, Address { mac: who.mac, port: port.clone(), seen: now, told: now });
        let mac = mac_text(who.mac);
        let lease = Lease { ip: ip.into(), mac, port, hostname: None, expires: now + KEPT };
        changes.push(Change::Given(lease));
        Ok(changes)
    }

    /// Whoever has `ip` has it no longer, as far as the gateway knows.
    pub(crate) fn forget(&mut self, ip: Ipv6Addr) -> bool {
        let Some(old) = self.by_ip.remove(&ip) else { return false };
        if let Some(own) = self.by_port.get_mut(&old.port) {
            own.retain(|other| *other != ip);
            if own.is_empty() {
                self.by_port.remove(&old.port);
            }
        }
        true
    }

    /// The addresses of a port that others of the LAN may be told, by its name in small letters,
    /// those first that were seen last.
    pub(crate) fn by_name(&self, name: &str, network: Network6, now: u64) -> Vec<Ipv6Addr> {
        let own = self.by_port.iter().filter(|(port, _)| port.eq_ignore_ascii_case(name));
        let all = own.flat_map(|(_, list)| list).copied();
        let mut all: Vec<_> =
            all.filter(|ip| network.contains(*ip) && self.is_live(*ip, now)).collect();
        let seen = |ip: &Ipv6Addr| self.by_ip.get(ip).map_or(0, |address| address.seen);
        all.sort_by_key(|ip| std::cmp::Reverse(seen(ip)));
        all.truncate(NAMED);
        all
    }

    /// The port that has `ip`.
    pub(crate) fn by_address(&self, ip: Ipv6Addr, now: u64) -> Option<&str> {
        let address = self.by_ip.get(&ip).filter(|_| self.is_live(ip, now));
        address.map(|address| address.port.as_str())
    }

    /// The NIC that has `ip`.
    pub(crate) fn mac_of(&self, ip: Ipv6Addr) -> Option<Mac> {
        self.by_ip.get(&ip).map(|address| address.mac)
    }

    fn is_live(&self, ip: Ipv6Addr, now: u64) -> bool {
        self.by_ip.get(&ip).is_some_and(|address| now < address.seen + KEPT)
    }
}

fn is_of(network: Network6, ip: Ipv6Addr) -> bool {
    network.is_for_hosts(ip) || Network6::local().contains(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: Network6 = Network6 { first: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0) };

    fn who(n: u8, port: &str) -> Who<'_> {
        Who { mac: Mac([2, 0, 0, 0, 0, n]), port }
    }

    #[test]
    fn who_comes_first_has_an_address_unless_it_is_made_of_anothers_mac() {
        let mut all = Addresses::default();
        let (one, two) = (who(1, "vm1"), who(2, "vm2"));
        let claim =
            |all: &mut Addresses, ip, who, now| all.claim(LAN, ip, who, now).map(|c| c.len());
        assert_eq!(claim(&mut all, LAN.with(77), one, 0), Ok(1));
        assert_eq!(claim(&mut all, LAN.with(77), two, 9), Err(Reason::Taken));
        assert_eq!(all.by_address(LAN.with(77), 9), Some("vm1"));
        assert_eq!(claim(&mut all, LAN.with(77), two, KEPT), Ok(1), "a day later it is free");
        let twos = LAN.of_mac(two.mac.0);
        assert_eq!(claim(&mut all, twos, one, 10), Ok(1), "nobody is there yet");
        assert_eq!(claim(&mut all, twos, two, 11), Ok(1));
        assert_eq!(claim(&mut all, twos, one, 12), Err(Reason::Taken));
        assert_eq!(claim(&mut all, twos, who(2, "vm3"), 12), Ok(1), "the NIC has moved");
        for foreign in [LAN.gateway(), LAN.first, Ipv6Addr::LOCALHOST] {
            assert_eq!(claim(&mut all, foreign, one, 13), Err(Reason::Foreign));
        }
    }

    #[test]
    fn ports_that_have_gone_make_room_for_others() {
        let mut all = Addresses::default();
        let ports = u64::try_from(ALL).unwrap() + 100;
        for n in 0..ports {
            let port = format!("vm{n}");
            let changes = all.claim(LAN, LAN.with(100 + n), who(1, &port), n).unwrap();
            assert_eq!(changes.len(), if n < ports - 100 { 1 } else { 2 });
            assert_eq!(all.by_name(&port, LAN, n), [LAN.with(100 + n)]);
        }
        assert_eq!((all.by_ip.len(), all.by_port.len()), (ALL, ALL));
        assert_eq!(all.by_address(LAN.with(199), ports), None, "the oldest ones");
        let mut all = Addresses::default();
        for n in 0..u64::try_from(ALL).unwrap() {
            all.claim(LAN, LAN.with(100 + n), who(1, &format!("vm{n}")), 9).unwrap();
        }
        assert_eq!(all.claim(LAN, LAN.with(99), who(1, "new"), 10), Err(Reason::Addresses));
    }

    #[test]
    fn nics_that_take_turns_are_told_of_once_in_a_minute() {
        let mut all = Addresses::default();
        let mut told = 0;
        for n in 0..120 {
            let own = who(u8::try_from(n % 2).unwrap(), "vm1");
            told += all.claim(LAN, LAN.with(77), own, n).unwrap().len();
            assert_eq!(all.mac_of(LAN.with(77)), Some(own.mac));
        }
        assert_eq!(told, 2);
    }

    #[test]
    fn a_port_has_sixteen_addresses_and_new_ones_replace_those_not_seen() {
        let mut all = Addresses::default();
        let own = who(1, "vm1");
        for n in 0..16 {
            all.claim(LAN, LAN.with(100 + n), own, n).unwrap();
        }
        assert_eq!(all.claim(LAN, LAN.with(200), own, 20), Err(Reason::Addresses));
        assert!(all.see(LAN.with(100), own.mac, 50));
        let changes = all.claim(LAN, LAN.with(200), own, 61).unwrap();
        assert_eq!(changes.first(), Some(&Change::Released(LAN.with(101).into())));
        assert_eq!(all.by_name("vm1", LAN, 61)[..1], [LAN.with(200)]);
        assert_eq!(all.by_name("vm1", LAN, 61).len(), NAMED);
        all.claim(LAN, LAN.with(300), who(2, "vm2"), 61).unwrap();
        assert_eq!(all.by_name("vm2", LAN, 61), [LAN.with(300)], "neighbours have their own");
        all.claim(LAN, Network6::local().with(9), who(2, "vm2"), 61).unwrap();
        assert_eq!(all.by_name("vm2", LAN, 61).len(), 1, "no name stands for a link-local one");
    }
}
