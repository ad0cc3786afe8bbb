//! How flows begin, and what guests send in them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, TcpPacket, UdpPacket};
use vmlan_config::gateway::{Dns, Protocol};

use super::{
    Body, EPHEMERAL, Flow, Io, Key, Nat, To, UDP_HEADERS, give_back, no_socket, random,
    refuse_segment, tell_unreachable, watch, with_number,
};
use crate::counters::{Counters, Reason};
use crate::lan::{Kind, PortNo, Whose};
use crate::link::{self, Ip, Mac, Packet};
use crate::nat::echo::Echo;
use crate::nat::names::Asked;
use crate::nat::rules::{may_reach, way};
use crate::nat::sockets;
use crate::nat::stack::Wire;
use crate::nat::tcp::Tcp;
use crate::nat::udp::Udp;
use crate::services::dns;

impl Nat {
    /// A place for a new flow of `mac`, if it may have one.
    fn admit(&mut self, kind: Kind, mac: Mac, io: &mut Io<'_>) -> Result<PortNo, To> {
        let port = match io.stations.whose(mac, io.now) {
            Whose::Port(port) => port,
            Whose::Wait => return Err(To::Hold),
            Whose::Refused(reason) => return Err(To::Refused(reason)),
        };
        if self.flows.len() >= self.total {
            return Err(To::Refused(Reason::TotalFlows));
        }
        let allowance = io.stations.allowance(port);
        match allowance.map(|own| own.open(kind, io.now)) {
            Some(Ok(())) => Ok(port),
            Some(Err(reason)) => Err(To::Refused(reason)),
            None => Err(To::Refused(Reason::Macs)),
        }
    }

    fn add(&mut self, body: Body, key: Key, kind: Kind, port: PortNo, mac: Mac) -> usize {
        let flow = Flow {
            body,
            key,
            alias: None,
            kind,
            port,
            mac,
            timer: None,
            queued: false,
            counted: false,
        };
        let id = self.flows.insert(flow);
        self.keys.insert(key, id);
        id
    }

    /// A TCP segment of a guest's to the outside, or to the gateway.
    pub(crate) fn tcp(&mut self, mac: Mac, ip: &Ip<'_>, io: &mut Io<'_>) -> To {
        let Ok(segment) = TcpPacket::new_checked(ip.payload) else {
            return To::Refused(Reason::Malformed);
        };
        let guest = SocketAddr::new(ip.from, segment.src_port());
        let far = SocketAddr::new(ip.to, segment.dst_port());
        let key = Key { kind: 6, guest, far };
        let begins = segment.syn() && !segment.ack() && !segment.rst();
        if let Some(id) = self.keys.get(&key).copied() {
            let replaced = self.flows.get_mut(id).is_some_and(|flow| match &mut flow.body {
                Body::Tcp(tcp) => begins && tcp.may_be_replaced(),
                _ => false,
            });
            if !replaced {
                self.tcp_of(id, ip.packet, io);
                return To::Done;
            }
            self.remove(id, io);
        }
        if !begins {
            refuse_segment(io, mac, ip);
            return To::Refused(Reason::NoFlow);
        }
        match self.begin_tcp(key, mac, ip, io) {
            Ok(()) => To::Done,
            Err(To::Refused(reason)) => {
                refuse_segment(io, mac, ip);
                To::Refused(reason)
            }
            Err(to) => to,
        }
    }

    fn begin_tcp(&mut self, key: Key, mac: Mac, ip: &Ip<'_>, io: &mut Io<'_>) -> Result<(), To> {
        let way = way(io.setup, Protocol::Tcp, key.far).map_err(To::Refused)?;
        let port = self.admit(Kind::Tcp, mac, io)?;
        let host = match sockets::tcp(way.to()) {
            Ok(host) => host,
            Err(e) => {
                let own = io.stations.allowance(port);
                own.into_iter().for_each(|own| {
                    own.close(Kind::Tcp);
                    own.answered();
                });
                return Err(To::Refused(no_socket(e)));
            }
        };
        let tcp = Tcp::outgoing(host, key.far, ip.packet, random(), io.now);
        self.keep_tcp(tcp, key, port, mac, io)
    }

    fn keep_tcp(
        &mut self,
        tcp: Tcp,
        key: Key,
        port: PortNo,
        mac: Mac,
        io: &mut Io<'_>,
    ) -> Result<(), To> {
        let id = self.add(Body::Tcp(tcp), key, Kind::Tcp, port, mac);
        let watched = match self.flows.get(id).map(|flow| &flow.body) {
            Some(Body::Tcp(tcp)) => tcp.host().is_some_and(|fd| watch(&self.epoll, fd, id).is_ok()),
            _ => false,
        };
        if !watched {
            self.remove(id, io);
            return Err(To::Refused(Reason::NoSocket));
        }
        io.counters.open(Kind::Tcp.name());
        self.set_timer(id, io.now);
        Ok(())
    }

    /// Hands a packet to its connection. What comes of it is done when it has its turn.
    fn tcp_of(&mut self, id: usize, packet: &[u8], io: &mut Io<'_>) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let ends = Packet { from: io.mac, to: flow.mac };
        if let Body::Tcp(tcp) = &mut flow.body {
            let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
            tcp.packet(packet, &mut wire, io.now);
        }
        self.want_turn(id);
    }

    /// A connection that came by a forward goes on to a guest. None: there is no place for it.
    pub(crate) fn call(
        &mut self,
        host: OwnedFd,
        guest: SocketAddrV4,
        (mac, port): (Mac, PortNo),
        io: &mut Io<'_>,
    ) -> Option<()> {
        let own = self.own_end(6, guest.into(), io)?;
        if self.flows.len() >= self.total {
            io.counters.refuse(Reason::TotalFlows);
            return None;
        }
        let admitted = io.stations.allowance(port)?.open(Kind::Tcp, io.now);
        if let Err(reason) = admitted {
            io.counters.refuse(reason);
            return None;
        }
        sockets::prepare(&host);
        let key = Key { kind: 6, guest: guest.into(), far: own };
        let ends = io.ends(mac);
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        let tcp = Tcp::incoming(host, (own, guest.into()), random(), &mut wire, io.now);
        self.keep_tcp(tcp, key, port, mac, io).ok()?;
        self.keys.get(&key).copied().into_iter().for_each(|id| self.want_turn(id));
        Some(())
    }

    /// An end of ours, at the gateway's address, that `guest` does not know yet.
    fn own_end(&mut self, kind: u8, guest: SocketAddr, io: &Io<'_>) -> Option<SocketAddr> {
        for _ in 0..64 {
            self.ephemeral = self.ephemeral.checked_add(1).unwrap_or(EPHEMERAL);
            let far = SocketAddr::from((io.gateway(), self.ephemeral));
            if !self.keys.contains_key(&Key { kind, guest, far }) {
                return Some(far);
            }
        }
        None
    }

    /// A datagram that came by a forward goes on to a guest.
    pub(crate) fn pass_on(
        &mut self,
        socket: &Rc<OwnedFd>,
        (peer, guest): (SocketAddr, SocketAddrV4),
        (mac, port): (Mac, PortNo),
        data: &[u8],
        io: &mut Io<'_>,
    ) {
        if data.len() > usize::from(io.setup.mtu - UDP_HEADERS) {
            return io.counters.refuse(Reason::TooLong);
        }
        let by_peer = Key { kind: 18, guest: guest.into(), far: peer };
        let known = self.keys.get(&by_peer).copied();
        let id = known.or_else(|| {
            let own = self.own_end(17, guest.into(), io)?;
            io.stations.allowance(port)?.open(Kind::Udp, io.now).ok()?;
            let udp = Udp::incoming(Rc::clone(socket), peer, io.now);
            let key = Key { kind: 17, guest: guest.into(), far: own };
            let id = self.add(Body::Udp(udp), key, Kind::Udp, port, mac);
            self.keys.insert(by_peer, id);
            self.flows.get_mut(id)?.alias = Some(by_peer);
            io.counters.open(Kind::Udp.name());
            Some(id)
        });
        let flow = id.and_then(|id| self.flows.get_mut(id));
        let Some((flow, id)) = flow.zip(id) else {
            return io.counters.refuse(Reason::Flows);
        };
        if let Body::Udp(udp) = &mut flow.body {
            udp.touch(io.now);
        }
        let ends = io.ends(flow.mac);
        if let SocketAddr::V4(own) = flow.key.far {
            io.send(&link::udp(ends, own, guest, data));
        }
        self.set_timer(id, io.now);
    }

    /// A datagram of a guest's to the outside, or to the gateway.
    pub(crate) fn udp(&mut self, mac: Mac, ip: &Ip<'_>, io: &mut Io<'_>) -> To {
        let Ok(datagram) = UdpPacket::new_checked(ip.payload) else {
            return To::Refused(Reason::Malformed);
        };
        let guest = SocketAddr::new(ip.from, datagram.src_port());
        let far = SocketAddr::new(ip.to, datagram.dst_port());
        let key = Key { kind: 17, guest, far };
        let id = match self.keys.get(&key) {
            Some(id) => *id,
            None => match self.begin_udp(key, mac, io) {
                Ok(id) => id,
                Err(To::Refused(reason)) => {
                    tell_unreachable(io, io.ends(mac), ip.packet, Errno::CONNREFUSED);
                    return To::Refused(reason);
                }
                Err(to) => return to,
            },
        };
        if let Some(Flow { body: Body::Udp(udp), .. }) = self.flows.get_mut(id)
            && udp.send(datagram.payload(), io.now).is_err_and(|e| e != Errno::AGAIN)
        {
            // What went wrong before is told when it is read.
            self.want_turn(id);
        }
        To::Done
    }

    fn begin_udp(&mut self, key: Key, mac: Mac, io: &mut Io<'_>) -> Result<usize, To> {
        let way = way(io.setup, Protocol::Udp, key.far).map_err(To::Refused)?;
        let port = self.admit(Kind::Udp, mac, io)?;
        let made = sockets::udp(way.to()).map_err(|e| To::Refused(no_socket(e)));
        let socket = made.inspect_err(|_| give_back(io, port, Kind::Udp))?;
        let udp = Udp::outgoing(socket, io.now);
        let id = self.add(Body::Udp(udp), key, Kind::Udp, port, mac);
        self.keep(id, io)
    }

    /// Watches a new flow's socket.
    fn keep(&mut self, id: usize, io: &mut Io<'_>) -> Result<usize, To> {
        let Some(flow) = self.flows.get(id) else { return Err(To::Refused(Reason::NoSocket)) };
        let socket = match &flow.body {
            Body::Udp(udp) => udp.socket(),
            Body::Echo(echo) => Some(echo.socket()),
            Body::Names(asked) => Some(asked.socket()),
            Body::Tcp(tcp) => tcp.host(),
        };
        let kind = flow.kind;
        if socket.is_none_or(|socket| watch(&self.epoll, socket, id).is_err()) {
            self.remove(id, io);
            return Err(To::Refused(Reason::NoSocket));
        }
        io.counters.open(kind.name());
        self.set_timer(id, io.now);
        Ok(id)
    }

    /// An echo request of a guest's to the outside.
    pub(crate) fn echo(&mut self, mac: Mac, ip: &Ip<'_>, io: &mut Io<'_>) -> To {
        let sums = smoltcp::phy::ChecksumCapabilities::ignored();
        let packet = Icmpv4Packet::new_checked(ip.payload);
        let repr = packet.as_ref().ok().and_then(|p| Icmpv4Repr::parse(p, &sums).ok());
        let (Some(Icmpv4Repr::EchoRequest { ident, seq_no, data }), IpAddr::V4(to)) = (repr, ip.to)
        else {
            return To::Refused(Reason::Unknown);
        };
        let (guest, far) = (SocketAddr::new(ip.from, ident), SocketAddr::from((to, 0)));
        let key = Key { kind: 1, guest, far };
        let id = match self.keys.get(&key) {
            Some(id) => *id,
            None => match self.begin_echo(key, (to, ident), mac, io) {
                Ok(id) => id,
                Err(to) => return to,
            },
        };
        if let Some(Flow { body: Body::Echo(echo), .. }) = self.flows.get_mut(id)
            && echo.send(seq_no, data, io.now).is_err()
        {
            self.remove(id, io);
            return To::Refused(Reason::Unreachable);
        }
        To::Done
    }

    fn begin_echo(
        &mut self,
        key: Key,
        (to, ident): (Ipv4Addr, u16),
        mac: Mac,
        io: &mut Io<'_>,
    ) -> Result<usize, To> {
        may_reach(io.setup, to.into()).map_err(To::Refused)?;
        let port = self.admit(Kind::Echo, mac, io)?;
        let made = Echo::new(to, ident, io.now).map_err(|e| match e {
            Errno::ACCESS | Errno::PERM => To::Refused(Reason::NoPing),
            e => To::Refused(no_socket(e)),
        });
        let echo = made.inspect_err(|_| give_back(io, port, Kind::Echo))?;
        let id = self.add(Body::Echo(echo), key, Kind::Echo, port, mac);
        self.keep(id, io)
    }

    /// True the first time that it is called after an echo request was refused by the host.
    pub(crate) fn has_news_of_ping(&mut self, counters: &Counters) -> bool {
        let refused = counters.refused(Reason::NoPing) > 0;
        refused && !std::mem::replace(&mut self.said_no_ping, true)
    }

    /// Asks the host's servers for a guest.
    pub(crate) fn ask(
        &mut self,
        mac: Mac,
        guest: SocketAddrV4,
        query: &[u8],
        question: dns::Question,
        io: &mut Io<'_>,
    ) -> To {
        let Dns::Ask(servers) = &io.setup.dns else { return To::Refused(Reason::Host) };
        let far = SocketAddr::from((io.gateway(), dns::PORT));
        // Several questions may come from one port of the guest's: the number tells them apart.
        let key = Key { kind: 53, guest: guest.into(), far: with_number(far, question.id) };
        if self.keys.contains_key(&key) {
            return To::Done;
        }
        let port = match self.admit(Kind::Dns, mac, io) {
            Ok(port) => port,
            Err(to) => return to,
        };
        let id = u16::try_from(random() & 0xffff).unwrap_or_default();
        match Asked::new(query, question, id, servers, io.now) {
            Ok(asked) => {
                let id = self.add(Body::Names(asked), key, Kind::Dns, port, mac);
                self.keep(id, io).map_or_else(|to| to, |_| To::Done)
            }
            Err(_) => {
                give_back(io, port, Kind::Dns);
                To::Refused(Reason::DnsUnanswered)
            }
        }
    }
}
