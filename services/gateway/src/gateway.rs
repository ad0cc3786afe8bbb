//! What comes of a frame, whoever brought it.

mod ipv6;
mod known;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::time::Instant;
use smoltcp::wire::{ArpOperation, ArpRepr, IpProtocol, UdpPacket};
use vmlan_config::gateway::{Dns, FromGateway, GatewayCounters, Lease, Setup};

use crate::counters::{Counters, Reason};
use crate::lan::{Stations, Whose};
use crate::link::{self, Arrived, Fragment, Fragments, Inner, Ip, Link, Mac, Packet, Parsed};
use crate::nat::{Forwards, Io, Nat, To};
use crate::services::{Change, Router, Who, dhcp, dns};
use known::{AllNames, Known};

/// The address of a gateway that was given none.
const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);

/// A gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    setup: Setup,
    mac: Mac,
    counters: Counters,
    stations: Stations,
    guests: Known,
    nat: Nat,
    forwards: Forwards,
    router: Router,
    fragments: Fragments,
    /// The seconds since 1970 at time zero.
    epoch: u64,
    news: Vec<FromGateway>,
}

impl Gateway {
    /// A gateway as `setup` says, at time `now`. `alone`: there is no switch to ask.
    pub(crate) fn new(
        setup: Setup,
        alone: bool,
        descriptors: u64,
        now: Instant,
    ) -> std::io::Result<Self> {
        let nat = Nat::new(descriptors)?;
        let mut forwards = Forwards::default();
        forwards.set(&setup.forwards, &nat, now);
        Ok(Self {
            mac: link::parse_mac(&setup.mac).unwrap_or(MAC),
            counters: Counters::default(),
            stations: Stations::new(alone, setup.flows, setup.flow_rate),
            guests: Known::new(&setup),
            nat,
            forwards,
            router: Router::new(now),
            fragments: Fragments::default(),
            epoch: setup.now.saturating_sub(seconds(now)),
            news: Vec::new(),
            setup,
        })
    }

    /// Its flows.
    pub(crate) fn nat(&mut self) -> &mut Nat {
        &mut self.nat
    }

    /// Its forwards.
    pub(crate) fn forwards(&mut self) -> &mut Forwards {
        &mut self.forwards
    }

    /// Takes over who had which address when the gateway before this one ended.
    pub(crate) fn restore(&mut self, leases: Vec<Lease>) {
        self.guests.restore(leases);
    }

    /// Goes on as `setup` says. The networks stay.
    pub(crate) fn follow(&mut self, setup: Setup, now: Instant) {
        self.stations.set_limits(setup.flows, setup.flow_rate);
        self.guests.leases.reserve(setup.reserved.clone());
        self.forwards.set(&setup.forwards, &self.nat, now);
        let (network, network6) = (self.setup.network, self.setup.network6);
        self.setup = Setup { network, network6, ..setup };
        self.router.hurry(now);
    }

    /// Whoever has this address has it no longer.
    pub(crate) fn forget(&mut self, ip: IpAddr) {
        if self.guests.forget(ip) {
            self.news.push(FromGateway::Released(ip));
        }
    }

    /// What the switch is to be told.
    pub(crate) fn news(&mut self) -> Vec<FromGateway> {
        let questions = self.stations.questions().into_iter();
        self.news.extend(questions.map(|mac| FromGateway::Whose(link::mac_text(mac))));
        self.news.extend(self.forwards.news().map(FromGateway::Forwards));
        std::mem::take(&mut self.news)
    }

    /// The counters, if they have changed since the last call.
    pub(crate) fn counters(&mut self) -> Option<GatewayCounters> {
        let changed = self.counters.take_changed();
        changed.then(|| self.counters.report(self.nat.count()))
    }

    /// The counters, changed or not.
    #[cfg(test)]
    pub(crate) fn all_counters(&self) -> GatewayCounters {
        self.counters.report(self.nat.count())
    }

    /// Bytes of packets that are not whole.
    #[cfg(test)]
    pub(crate) fn waiting_parts(&self) -> usize {
        self.fragments.bytes()
    }

    /// The NIC that has an address.
    #[cfg(test)]
    pub(crate) fn holder(&self, ip: Ipv4Addr) -> Option<Mac> {
        self.guests.leases.mac_of(ip)
    }

    /// Does anything want a turn now?
    pub(crate) fn is_busy(&self) -> bool {
        self.nat.is_busy() || self.forwards.is_busy()
    }

    /// When something wants a turn though nothing comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        let router = self.setup.network6.map(|_| self.router.due());
        self.nat.due().into_iter().chain(self.forwards.due()).chain(router).min()
    }

    /// Says who has the gateway's address: guests may remember another.
    pub(crate) fn announce(&self, link: &mut dyn Link) {
        let own = self.setup.network.gateway();
        let ends = Packet { from: self.mac, to: Mac::BROADCAST };
        let frame = link::arp(ends, ArpOperation::Request, own, Mac([0; 6]), own);
        link.send(&frame, link::Offload::default());
    }

    /// Those flows have a turn that want one.
    pub(crate) fn run(&mut self, link: &mut dyn Link, now: Instant) {
        self.guests.seconds = self.epoch + seconds(now);
        self.advertise_when_due(link, now);
        let mut io = Io {
            link,
            now,
            setup: &self.setup,
            mac: self.mac,
            counters: &mut self.counters,
            stations: &mut self.stations,
        };
        self.forwards.run(&mut self.nat, &self.guests, &mut io);
        let names = AllNames { known: &self.guests, setup: &self.setup };
        self.nat.run(&mut io, &names);
        if self.nat.has_news_of_ping(&self.counters) {
            let text = "ping to the outside needs the group range: sysctl \
                        net.ipv4.ping_group_range=\"0 2147483647\"";
            self.news.push(FromGateway::Log { warn: true, text: text.to_owned() });
        }
    }

    /// The switch says which port a NIC is behind.
    pub(crate) fn answer(
        &mut self,
        mac: &str,
        port: Option<&str>,
        link: &mut dyn Link,
        now: Instant,
    ) {
        let Some(mac) = link::parse_mac(mac) else { return };
        for held in self.stations.answer(mac, port, now) {
            self.frame(&held.frame, held.arrived, link, now);
        }
    }

    /// A frame came.
    pub(crate) fn frame(
        &mut self,
        frame: &[u8],
        arrived: Arrived,
        link: &mut dyn Link,
        now: Instant,
    ) {
        self.guests.seconds = self.epoch + seconds(now);
        self.stations.enter(Some(arrived.lane));
        let to = match link::parse(frame) {
            Ok(parsed) => self.parsed(&parsed, arrived.trusted, link, now),
            // Other stations' business.
            Err(Reason::Unknown) => To::Done,
            Err(reason) => To::Refused(reason),
        };
        match to {
            To::Done => {}
            To::Refused(reason) => self.counters.refuse(reason),
            To::Hold => {
                if let Ok(parsed) = link::parse(frame) {
                    self.stations.hold(parsed.from, frame, arrived, now);
                }
            }
        }
        self.stations.enter(None);
    }

    fn parsed(
        &mut self,
        parsed: &Parsed<'_>,
        trusted: bool,
        link: &mut dyn Link,
        now: Instant,
    ) -> To {
        let ours = parsed.to == self.mac || !parsed.to.is_unicast();
        if !ours || parsed.from == self.mac {
            return To::Done;
        }
        match &parsed.inner {
            Inner::Arp(arp) => self.arp(parsed.from, arp, link),
            Inner::Part(part) => self.part(parsed.from, part, link, now),
            Inner::Ip(ip) if !trusted && !ip.is_intact() => To::Refused(Reason::Malformed),
            Inner::Ip(ip) => self.ip(parsed.from, ip, link, now),
        }
    }

    fn arp(&mut self, mac: Mac, arp: &ArpRepr, link: &mut dyn Link) -> To {
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr: from,
            target_protocol_addr: to,
            ..
        } = arp
        else {
            return To::Done;
        };
        let own = self.setup.network.gateway();
        if *source_hardware_addr != mac {
            return To::Refused(Reason::Malformed);
        }
        if self.setup.network.is_for_hosts(*from) {
            self.guests.neighbours.learn(*from, mac);
        }
        if *operation == ArpOperation::Request && *to == own && *from != own {
            let ends = Packet { from: self.mac, to: mac };
            let frame = link::arp(ends, ArpOperation::Reply, own, mac, *from);
            link.send(&frame, link::Offload::default());
            self.counters.answer("arp");
        }
        To::Done
    }

    /// A part of a packet, which counts for its port until it is whole.
    fn part(&mut self, mac: Mac, part: &Fragment<'_>, link: &mut dyn Link, now: Instant) -> To {
        if part.to.is_multicast() {
            return To::Refused(Reason::Fragment);
        }
        let port = match self.stations.whose(mac, now) {
            Whose::Port(port) => port,
            Whose::Wait => return To::Hold,
            Whose::Refused(reason) => return To::Refused(reason),
        };
        let packet = match self.fragments.add(mac, port, part, now) {
            Ok(Some(packet)) => packet,
            Ok(None) => return To::Done,
            Err(reason) => return To::Refused(reason),
        };
        match link::packet(&packet) {
            Ok(ip) if ip.is_intact() => self.ip(mac, &ip, link, now),
            Ok(_) => To::Refused(Reason::Malformed),
            Err(reason) => To::Refused(reason),
        }
    }

    fn ip(&mut self, mac: Mac, ip: &Ip<'_>, link: &mut dyn Link, now: Instant) -> To {
        match (ip.from, ip.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.ipv4(mac, (from, to), ip, link, now),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.ipv6(mac, (from, to), ip, link, now),
            _ => To::Done,
        }
    }

    fn ipv4(
        &mut self,
        mac: Mac,
        (from, to): (Ipv4Addr, Ipv4Addr),
        ip: &Ip<'_>,
        link: &mut dyn Link,
        now: Instant,
    ) -> To {
        let network = self.setup.network;
        if ip.protocol == IpProtocol::Udp
            && let Ok(datagram) = UdpPacket::new_checked(ip.payload)
            && datagram.dst_port() == dhcp::SERVER
            && (to == Ipv4Addr::BROADCAST || to == network.gateway())
        {
            return self.dhcp(mac, datagram.payload(), link, now);
        }
        if to.is_broadcast() || to.is_multicast() || to == network.broadcast() {
            return To::Done;
        }
        if !network.is_for_hosts(from) {
            return To::Refused(Reason::Foreign);
        }
        self.guests.neighbours.learn(from, mac);
        self.packet(mac, to == network.gateway(), ip, link, now)
    }

    /// A guest's packet to the outside, or to the gateway's `own` address.
    fn packet(
        &mut self,
        mac: Mac,
        own: bool,
        ip: &Ip<'_>,
        link: &mut dyn Link,
        now: Instant,
    ) -> To {
        match ip.protocol {
            IpProtocol::Udp if own && self.is_question(ip) => self.dns(mac, ip, link, now),
            IpProtocol::Icmp | IpProtocol::Icmpv6 if own => self.ping(mac, ip, link),
            IpProtocol::Tcp => self.with_nat(link, now, |nat, io| nat.tcp(mac, ip, io)),
            IpProtocol::Udp => self.with_nat(link, now, |nat, io| nat.udp(mac, ip, io)),
            IpProtocol::Icmp | IpProtocol::Icmpv6 => {
                self.with_nat(link, now, |nat, io| nat.echo(mac, ip, io))
            }
            _ => To::Refused(Reason::Unknown),
        }
    }

    fn with_nat(
        &mut self,
        link: &mut dyn Link,
        now: Instant,
        act: impl FnOnce(&mut Nat, &mut Io<'_>) -> To,
    ) -> To {
        let mut io = Io {
            link,
            now,
            setup: &self.setup,
            mac: self.mac,
            counters: &mut self.counters,
            stations: &mut self.stations,
        };
        act(&mut self.nat, &mut io)
    }

    fn is_question(&self, ip: &Ip<'_>) -> bool {
        let asks = UdpPacket::new_checked(ip.payload).is_ok_and(|udp| udp.dst_port() == dns::PORT);
        asks && self.setup.dns != Dns::Off
    }

    fn ping(&mut self, mac: Mac, ip: &Ip<'_>, link: &mut dyn Link) -> To {
        if let Some((ident, seq_no, data)) = ip.echo_request() {
            let ends = Packet { from: self.mac, to: mac };
            let frame = link::echo_reply(ends, (ip.to, ip.from), ident, seq_no, data);
            link::send(link, &frame, self.setup.mtu);
            self.counters.answer("echo");
        }
        To::Done
    }

    fn dhcp(&mut self, mac: Mac, message: &[u8], link: &mut dyn Link, now: Instant) -> To {
        if !self.setup.dhcp {
            return To::Done;
        }
        let port = match self.stations.whose(mac, now) {
            Whose::Port(port) => port,
            Whose::Wait => return To::Hold,
            Whose::Refused(reason) => return To::Refused(reason),
        };
        if !self.stations.allowance(port).is_some_and(|own| own.spend_dhcp(now)) {
            return To::Refused(Reason::DhcpRate);
        }
        let who = Who { mac, port: self.stations.name(port) };
        let mut server = dhcp::Server { setup: &self.setup, leases: &mut self.guests.leases };
        let outcome = match server.serve(message, who, self.guests.seconds) {
            Ok(outcome) => outcome,
            Err(reason) => {
                self.say_exhausted(reason);
                return To::Refused(reason);
            }
        };
        if let Some(Change::Given(Lease { ip: IpAddr::V4(ip), .. })) = outcome.changes.last() {
            self.guests.neighbours.learn(*ip, mac);
        }
        self.news.extend(outcome.changes.into_iter().map(ipv6::told));
        if let Some(reply) = outcome.reply {
            let ends = Packet { from: self.mac, to: reply.mac };
            let from = SocketAddr::from((self.setup.network.gateway(), dhcp::SERVER));
            let to = SocketAddr::from((reply.to, dhcp::CLIENT));
            link.send(&link::udp(ends, from, to, &reply.bytes), link::Offload::default());
            self.counters.answer("dhcp");
        }
        To::Done
    }

    /// The first time that no address is left, the log says so.
    fn say_exhausted(&mut self, reason: Reason) {
        if reason == Reason::DhcpExhausted && self.counters.refused(reason) == 0 {
            let (first, last) = self.setup.network.pool();
            let count = self.guests.leases.count(self.guests.seconds);
            let text = format!("no address left in {first}-{last}: {count} leases; lease list");
            self.news.push(FromGateway::Log { warn: true, text });
        }
    }

    fn dns(&mut self, mac: Mac, ip: &Ip<'_>, link: &mut dyn Link, now: Instant) -> To {
        let Ok(datagram) = UdpPacket::new_checked(ip.payload) else {
            return To::Refused(Reason::Malformed);
        };
        let query = datagram.payload();
        let guest = SocketAddr::new(ip.from, datagram.src_port());
        let Some(question) = dns::question(query).filter(dns::Question::is_query) else {
            return To::Refused(Reason::DnsMalformed);
        };
        let names = AllNames { known: &self.guests, setup: &self.setup };
        let own = SocketAddr::new(ip.to, dns::PORT);
        let ours = dns::answer(&question, query, &self.setup.domain, &names);
        let Some(answer) = ours else {
            let ends = (guest, own);
            return self.with_nat(link, now, |nat, io| nat.ask(mac, ends, query, question, io));
        };
        let ends = Packet { from: self.mac, to: mac };
        link.send(&link::udp(ends, own, guest, &answer), link::Offload::default());
        self.counters.answer("dns");
        To::Done
    }
}

fn seconds(now: Instant) -> u64 {
    u64::try_from(now.secs()).unwrap_or_default()
}
