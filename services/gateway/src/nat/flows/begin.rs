//! How flows begin, and what guests send in them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use smoltcp::wire::{TcpPacket, UdpPacket};
use vmlan_config::gateway::{Dns, Protocol};

use super::{
    Body, EPHEMERAL, Flow, Io, Key, LARGE, MEMORY, Nat, To, give_back, no_socket, refuse_segment,
    tell_unreachable, watch, with_number,
};
use crate::counters::{Counters, Reason};
use crate::lan::{Kind, PortNo, Whose};
use crate::link::{self, Ip, Mac, Packet};
use crate::nat::echo::Echo;
use crate::nat::names::Asked;
use crate::nat::names_by_tcp::NamesByTcp;
use crate::nat::rules::{Way, may_reach, plain, way};
use crate::nat::sockets;
use crate::nat::stack::{SMALL, Sizes, USUAL, Wire};
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

    fn add(&mut self, body: Body, key: Key, kind: Kind, port: PortNo) -> usize {
        let flow =
            Flow { body, key, alias: None, kind, port, timer: None, queued: false, counted: false };
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
        let key = Key { kind: 6, forward: None, mac, guest, far };
        let begins = segment.syn() && !segment.ack() && !segment.rst() && !segment.fin();
        if let Some(id) = self.keys.get(&key).copied() {
            let replaced = self.flows.get_mut(id).is_some_and(|flow| match &mut flow.body {
                Body::Tcp(tcp) => begins && tcp.may_be_replaced(),
                Body::NamesByTcp(names) => begins && names.may_be_replaced(),
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
        match self.begin_tcp(key, ip, io) {
            Ok(()) => To::Done,
            Err(To::Refused(reason)) => {
                refuse_segment(io, mac, ip);
                To::Refused(reason)
            }
            Err(to) => to,
        }
    }

    fn begin_tcp(&mut self, key: Key, ip: &Ip<'_>, io: &mut Io<'_>) -> Result<(), To> {
        let way = way(io.setup, Protocol::Tcp, key.far).map_err(To::Refused)?;
        let Way::Out(to) = way else { return self.begin_names_by_tcp(key, ip, io) };
        let port = self.admit(Kind::Tcp, key.mac, io)?;
        let made = self.sizes(port, io).and_then(|sizes| {
            sockets::tcp(to).map(|host| (host, sizes)).map_err(|e| To::Refused(no_socket(e)))
        });
        let (host, sizes) = made.inspect_err(|_| {
            let own = io.stations.allowance(port);
            own.into_iter().for_each(|own| {
                own.close(Kind::Tcp);
                own.answered();
            });
        })?;
        let tcp = Tcp::outgoing(host, key.far, ip.packet, (sizes, crate::random()), io.now);
        self.keep_tcp(tcp, key, port, io)
    }

    fn begin_names_by_tcp(&mut self, key: Key, ip: &Ip<'_>, io: &mut Io<'_>) -> Result<(), To> {
        let port = self.admit(Kind::Dns, key.mac, io)?;
        let ends = io.ends(key.mac);
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        let names = NamesByTcp::new(key.far, crate::random(), ip.packet, &mut wire, io.now);
        let id = self.add(Body::NamesByTcp(names), key, Kind::Dns, port);
        io.counters.open(Kind::Dns.name());
        self.want_turn(id);
        Ok(())
    }

    /// How much may wait in one more connection of a port.
    fn sizes(&self, port: PortNo, io: &mut Io<'_>) -> Result<Sizes, To> {
        let own = io.stations.allowance(port).map_or(0, |own| own.buffers);
        let fits = |sizes: Sizes, (of_port, of_all): (usize, usize)| {
            own + sizes.sum() <= of_port && self.buffers + sizes.sum() <= of_all
        };
        if fits(USUAL, LARGE) {
            Ok(USUAL)
        } else if fits(SMALL, (usize::MAX, MEMORY)) {
            Ok(SMALL)
        } else {
            Err(To::Refused(Reason::TotalMemory))
        }
    }

    fn keep_tcp(&mut self, tcp: Tcp, key: Key, port: PortNo, io: &mut Io<'_>) -> Result<(), To> {
        self.buffers += tcp.buffers();
        let own = io.stations.allowance(port);
        own.into_iter().for_each(|own| own.buffers += tcp.buffers());
        let id = self.add(Body::Tcp(tcp), key, Kind::Tcp, port);
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
        let ends = Packet { from: io.mac, to: flow.key.mac };
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        match &mut flow.body {
            Body::Tcp(tcp) => tcp.packet(packet, &mut wire, io.now),
            Body::NamesByTcp(names) => names.packet(packet, &mut wire, io.now),
            _ => {}
        }
        self.want_turn(id);
    }

    /// A connection that came by a forward goes on to a guest. None: there is no place for it.
    pub(crate) fn call(
        &mut self,
        host: OwnedFd,
        guest: SocketAddr,
        (mac, port): (Mac, PortNo),
        io: &mut Io<'_>,
    ) -> Option<()> {
        let own = self.own_end(6, (mac, guest), io)?;
        if self.flows.len() >= self.total {
            io.counters.refuse(Reason::TotalFlows);
            return None;
        }
        let Ok(sizes) = self.sizes(port, io) else {
            io.counters.refuse(Reason::TotalMemory);
            return None;
        };
        let admitted = io.stations.allowance(port)?.open(Kind::Tcp, io.now);
        if let Err(reason) = admitted {
            io.counters.refuse(reason);
            return None;
        }
        sockets::prepare(&host);
        let key = Key { kind: 6, forward: None, mac, guest, far: own };
        let ends = io.ends(mac);
        let mut wire = Wire::new(io.link, ends, io.setup.mtu, &mut self.scratch);
        let tcp = Tcp::incoming(host, (own, guest), (sizes, crate::random()), &mut wire, io.now);
        self.keep_tcp(tcp, key, port, io).ok()?;
        self.keys.get(&key).copied().into_iter().for_each(|id| self.want_turn(id));
        Some(())
    }

    /// An end of ours, at the gateway's address, that `guest` does not know yet.
    fn own_end(
        &mut self,
        kind: u8,
        (mac, guest): (Mac, SocketAddr),
        io: &Io<'_>,
    ) -> Option<SocketAddr> {
        let own = io.gateway_for(guest.ip())?;
        for _ in 0..64 {
            self.ephemeral = self.ephemeral.checked_add(1).unwrap_or(EPHEMERAL);
            let far = SocketAddr::new(own, self.ephemeral);
            if !self.keys.contains_key(&Key { kind, forward: None, mac, guest, far }) {
                return Some(far);
            }
        }
        None
    }

    /// A datagram that came by the forward of this socket and number goes on to a guest.
    pub(crate) fn pass_on(
        &mut self,
        (socket, forward): (&Rc<OwnedFd>, u64),
        (peer, guest): (SocketAddr, SocketAddr),
        (mac, port): (Mac, PortNo),
        data: &[u8],
        io: &mut Io<'_>,
    ) {
        let by_peer = Key { kind: 18, forward: Some(forward), mac, guest, far: peer };
        let known = self.keys.get(&by_peer).copied();
        let id = known.or_else(|| {
            let own = self.own_end(17, (mac, guest), io)?;
            io.stations.allowance(port)?.open(Kind::Udp, io.now).ok()?;
            let udp = Udp::incoming(Rc::downgrade(socket), peer, io.now);
            let key = Key { kind: 17, forward: None, mac, guest, far: own };
            let id = self.add(Body::Udp(udp), key, Kind::Udp, port);
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
        io.send(&link::udp(io.ends(mac), flow.key.far, guest, data));
        self.set_timer(id, io.now);
    }

    /// A datagram of a guest's to the outside, or to the gateway.
    pub(crate) fn udp(&mut self, mac: Mac, ip: &Ip<'_>, io: &mut Io<'_>) -> To {
        let Ok(datagram) = UdpPacket::new_checked(ip.payload) else {
            return To::Refused(Reason::Malformed);
        };
        let guest = SocketAddr::new(ip.from, datagram.src_port());
        let far = SocketAddr::new(ip.to, datagram.dst_port());
        let key = Key { kind: 17, forward: None, mac, guest, far };
        let id = match self.keys.get(&key) {
            Some(id) => *id,
            None => match self.begin_udp(key, io) {
                Ok(id) => id,
                Err(To::Refused(reason)) => {
                    tell_unreachable(io, io.ends(mac), ip.packet, Errno::CONNREFUSED);
                    return To::Refused(reason);
                }
                Err(to) => return to,
            },
        };
        let Some(Flow { body: Body::Udp(udp), .. }) = self.flows.get_mut(id) else {
            return To::Done;
        };
        match udp.send(datagram.payload(), io.now) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(e) => {
                // It is what became of one before, and nothing was sent. What is wrong with this
                // one is wrong again, or is told when it is read.
                let _ = udp.send(datagram.payload(), io.now);
                tell_unreachable(io, io.ends(mac), ip.packet, e);
                self.want_turn(id);
            }
        }
        To::Done
    }

    fn begin_udp(&mut self, key: Key, io: &mut Io<'_>) -> Result<usize, To> {
        let way = way(io.setup, Protocol::Udp, key.far).map_err(To::Refused)?;
        let Way::Out(to) = way else { return Err(To::Refused(Reason::Host)) };
        let port = self.admit(Kind::Udp, key.mac, io)?;
        let made = sockets::udp(to).map_err(|e| To::Refused(no_socket(e)));
        let socket = made.inspect_err(|_| give_back(io, port, Kind::Udp))?;
        let udp = Udp::outgoing(socket, io.now);
        let id = self.add(Body::Udp(udp), key, Kind::Udp, port);
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
            Body::NamesByTcp(names) => names.socket(),
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
        let Some((ident, seq_no, data)) = ip.echo_request() else {
            return To::Refused(Reason::Unknown);
        };
        let (guest, far) = (SocketAddr::new(ip.from, ident), SocketAddr::new(ip.to, 0));
        let key = Key { kind: 1, forward: None, mac, guest, far };
        let id = match self.keys.get(&key) {
            Some(id) => *id,
            None => match self.begin_echo(key, ident, io) {
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

    fn begin_echo(&mut self, key: Key, ident: u16, io: &mut Io<'_>) -> Result<usize, To> {
        let to = plain(key.far.ip());
        may_reach(io.setup, to).map_err(To::Refused)?;
        let port = self.admit(Kind::Echo, key.mac, io)?;
        let made = Echo::new(to, ident, io.now).map_err(|e| match e {
            Errno::ACCESS | Errno::PERM => To::Refused(Reason::NoPing),
            e => To::Refused(no_socket(e)),
        });
        let echo = made.inspect_err(|_| give_back(io, port, Kind::Echo))?;
        let id = self.add(Body::Echo(echo), key, Kind::Echo, port);
        self.keep(id, io)
    }

    /// True the first time that it is called after an echo request was refused by the host.
    pub(crate) fn has_news_of_ping(&mut self, counters: &Counters) -> bool {
        let refused = counters.refused(Reason::NoPing) > 0;
        refused && !std::mem::replace(&mut self.said_no_ping, true)
    }

    /// Asks the host's servers for a guest, which has asked `own`.
    pub(crate) fn ask(
        &mut self,
        mac: Mac,
        (guest, own): (SocketAddr, SocketAddr),
        query: &[u8],
        question: dns::Question,
        io: &mut Io<'_>,
    ) -> To {
        let Dns::Ask(servers) = &io.setup.dns else { return To::Refused(Reason::Host) };
        // Several questions may come from one port of the guest's: the number tells them apart.
        let key = Key { kind: 53, forward: None, mac, guest, far: with_number(own, question.id) };
        if self.keys.contains_key(&key) {
            return To::Done;
        }
        let port = match self.admit(Kind::Dns, mac, io) {
            Ok(port) => port,
            Err(to) => return to,
        };
        let id = u16::try_from(crate::random() & 0xffff).unwrap_or_default();
        match Asked::new(query, question, id, servers, io.now) {
            Ok(asked) => {
                let id = self.add(Body::Names(asked), key, Kind::Dns, port);
                self.keep(id, io).map_or_else(|to| to, |_| To::Done)
            }
            Err(question) => {
                give_back(io, port, Kind::Dns);
                let failure = question.empty(query, dns::Code::ServerFailure);
                io.send(&link::udp(io.ends(mac), own, guest, &failure));
                To::Refused(Reason::DnsUnanswered)
            }
        }
    }
}
