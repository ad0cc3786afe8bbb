//! What comes of an IPv6 packet: neighbour discovery, advertisements of the router, stateless DHCP.
//! All else is as with IPv4.

use std::net::{Ipv6Addr, SocketAddr};

use smoltcp::time::Instant;
use smoltcp::wire::{IpProtocol, UdpPacket};
use vmlan_config::gateway::{Dns, FromGateway, Network6};

use super::Gateway;
use crate::counters::Reason;
use crate::lan::Whose;
use crate::link::ndisc::{self, Advert, Discovery};
use crate::link::{self, Ip, Link, Mac, Packet};
use crate::nat::{To, leads_out_by_ipv6};
use crate::services::dhcp::labels;
use crate::services::router::LIFETIME;
use crate::services::{Change, Who, dhcpv6};

/// Messages of neighbour discovery (RFC 4861).
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

impl Gateway {
    /// Its link-local address.
    fn local(&self) -> Ipv6Addr {
        Network6::local().of_mac(self.mac.0)
    }

    pub(super) fn ipv6(
        &mut self,
        mac: Mac,
        (from, to): (Ipv6Addr, Ipv6Addr),
        ip: &Ip<'_>,
        link: &mut dyn Link,
        now: Instant,
    ) -> To {
        let Some(network) = self.setup.network6 else { return To::Done };
        let own = to == network.gateway() || to == self.local();
        let ours = own || to.is_multicast();
        let discovers = |kind: &u8| ip.protocol == IpProtocol::Icmpv6 && DISCOVERY.contains(kind);
        if ours && ip.payload.first().is_some_and(discovers) {
            return self.discovery(mac, (from, network), ip, link, now);
        }
        if ip.protocol == IpProtocol::Udp
            && (own || to == dhcpv6::SERVERS)
            && let Ok(datagram) = UdpPacket::new_checked(ip.payload)
            && datagram.dst_port() == dhcpv6::SERVER
        {
            return self.dhcpv6(mac, from, datagram.payload(), link);
        }
        if to.is_multicast() {
            return To::Done;
        }
        let local = Network6::local().contains(from);
        let is_own = from == self.local();
        if is_own || !(network.is_for_hosts(from) || local && own) {
            return To::Refused(Reason::Foreign);
        }
        // Who sends is seen, but need not be asked for: nothing depends on it here.
        match self.claim(mac, from, network, now) {
            To::Refused(Reason::Taken) => To::Refused(Reason::Taken),
            _ => self.packet(mac, own, ip, link, now),
        }
    }

    /// A NIC says that it has an address.
    fn claim(&mut self, mac: Mac, ip: Ipv6Addr, network: Network6, now: Instant) -> To {
        let seconds = self.guests.seconds;
        if self.guests.addresses.see(ip, mac, seconds) {
            return To::Done;
        }
        let port = match self.stations.whose(mac, now) {
            Whose::Port(port) => port,
            Whose::Wait => return To::Hold,
            Whose::Refused(reason) => return To::Refused(reason),
        };
        let who = Who { mac, port: self.stations.name(port) };
        match self.guests.addresses.claim(network, ip, who, seconds) {
            Ok(changes) => {
                self.news.extend(changes.into_iter().map(told));
                To::Done
            }
            Err(reason) => To::Refused(reason),
        }
    }

    fn discovery(
        &mut self,
        mac: Mac,
        (from, network): (Ipv6Addr, Network6),
        ip: &Ip<'_>,
        link: &mut dyn Link,
        now: Instant,
    ) -> To {
        let said = match ndisc::discovery(ip, mac) {
            Ok(said) => said,
            Err(reason) => return To::Refused(reason),
        };
        let own = [network.gateway(), self.local()];
        let is_own = |target| own.contains(&target);
        if is_own(from) {
            return To::Refused(Reason::Taken);
        }
        // What a guest has, or is about to take: unless somebody else says otherwise to it.
        let claimed = match said {
            Discovery::Who(target) if from.is_unspecified() && !is_own(target) => Some(target),
            Discovery::Have(target) if is_own(target) => return To::Refused(Reason::Taken),
            Discovery::Have(target) => Some(target),
            Discovery::Who(_) | Discovery::Router => Some(from).filter(|ip| !ip.is_unspecified()),
            Discovery::Other => return To::Done,
        };
        match claimed.map(|ip| self.claim(mac, ip, network, now)) {
            None | Some(To::Done) => {}
            // It has more addresses than are remembered: it is answered all the same.
            Some(To::Refused(reason @ Reason::Addresses)) => self.counters.refuse(reason),
            Some(to) => return to,
        }
        let ends = Packet { from: self.mac, to: mac };
        match said {
            Discovery::Who(target) if is_own(target) => {
                let frame = ndisc::advertisement(ends, target, from);
                link.send(&frame, link::Offload::default());
                self.counters.answer("neighbour");
            }
            // All may as well hear what one without an address asks for.
            Discovery::Router if from.is_unspecified() => self.router.hurry(now),
            Discovery::Router => {
                self.advertise((mac, from), network, link);
                self.counters.answer("router");
            }
            _ => {}
        }
        To::Done
    }

    /// Tells all what the router says, when it is time.
    pub(super) fn advertise_when_due(&mut self, link: &mut dyn Link, now: Instant) {
        if let Some(network) = self.setup.network6
            && link.room() > 0
            && self.router.is_due(now)
        {
            self.advertise((ndisc::group(ndisc::ALL_NODES), ndisc::ALL_NODES), network, link);
        }
    }

    /// Says what a guest needs to take an address. Guests are told of a way out if there is one:
    /// else each of their connections would wait in vain before it tries IPv4.
    fn advertise(&self, (mac, to): (Mac, Ipv6Addr), network: Network6, link: &mut dyn Link) {
        let leads_out = self.setup.allow.is_some() && leads_out_by_ipv6();
        let search = labels(&self.setup.domain);
        let names = (network.gateway(), search.as_slice(), LIFETIME.into());
        let advert = Advert {
            way_out: if leads_out { LIFETIME } else { 0 },
            mtu: self.setup.mtu,
            prefix: network.first,
            names: (self.setup.dns != Dns::Off).then_some(names),
        };
        let frame = ndisc::router(Packet { from: self.mac, to: mac }, self.local(), to, advert);
        link.send(&frame, link::Offload::default());
    }

    fn dhcpv6(&mut self, mac: Mac, from: Ipv6Addr, message: &[u8], link: &mut dyn Link) -> To {
        let Some(network) = self.setup.network6.filter(|_| self.setup.dhcp) else {
            return To::Done;
        };
        if !network.is_for_hosts(from) && !Network6::local().contains(from) {
            return To::Refused(Reason::Foreign);
        }
        let search = labels(&self.setup.domain);
        let names = (network.gateway(), search.as_slice());
        let names = (self.setup.dns != Dns::Off).then_some(names);
        match dhcpv6::serve(message, self.mac, names) {
            Ok(Some(reply)) => {
                let ends = Packet { from: self.mac, to: mac };
                let own = SocketAddr::from((self.local(), dhcpv6::SERVER));
                let to = SocketAddr::from((from, dhcpv6::CLIENT));
                link.send(&link::udp(ends, own, to, &reply), link::Offload::default());
                self.counters.answer("dhcpv6");
                To::Done
            }
            Ok(None) => To::Done,
            Err(reason) => To::Refused(reason),
        }
    }
}

/// A change as the switch is told of it.
pub(super) fn told(change: Change) -> FromGateway {
    match change {
        Change::Given(lease) => FromGateway::Lease(lease),
        Change::Released(ip) => FromGateway::Released(ip),
    }
}
