//! All flows: found by their addresses, watched by epoll, ended by their time.

mod begin;
mod queue;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;
use smoltcp::time::Instant;
use smoltcp::wire::IpProtocol;
use vmlan_config::gateway::Setup;

use self::queue::Queue;
use super::echo::Echo;
use super::names::Asked;
use super::names_by_tcp::NamesByTcp;
use super::tcp::Tcp;
use super::udp::Udp;
use crate::counters::{Counters, Reason};
use crate::lan::{Kind, PortNo, Stations};
use crate::link::{self, ETHERNET, Ip, LARGEST, Link, Mac, Packet, Unreachable};
use crate::services::dns;

/// Flows in all, as far as there are descriptors.
const TOTAL: usize = 65_536;
/// Bytes that may wait in the connections of a port, and in all, while new ones have buffers as
/// large as they like. Later ones have small ones.
const LARGE: (usize, usize) = (32 << 20, 256 << 20);
/// Bytes that may wait in all connections.
const MEMORY: usize = 512 << 20;
/// Descriptors that are kept for other things.
const SPARE: u64 = 64;
/// Datagrams of one flow before others have their turn.
const DATAGRAMS: usize = 32;
/// First port of our own for those who come by a forward.
const EPHEMERAL: u16 = 32_768;

/// What a flow is part of.
pub(crate) struct Io<'a> {
    pub(crate) link: &'a mut dyn Link,
    pub(crate) now: Instant,
    pub(crate) setup: &'a Setup,
    pub(crate) mac: Mac,
    pub(crate) counters: &'a mut Counters,
    pub(crate) stations: &'a mut Stations,
}

impl Io<'_> {
    pub(crate) fn ends(&self, to: Mac) -> Packet {
        Packet { from: self.mac, to }
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        link::send(self.link, frame, self.setup.mtu);
    }

    /// The gateway's address as somebody with `other` knows it.
    fn gateway_for(&self, other: IpAddr) -> Option<IpAddr> {
        match other {
            IpAddr::V4(_) => Some(self.setup.network.gateway().into()),
            IpAddr::V6(_) => self.setup.network6.map(|network| network.gateway().into()),
        }
    }

    /// The longest data of a datagram to `other` that is not cut.
    fn longest(&self, other: IpAddr) -> usize {
        let headers = if other.is_ipv4() { 28 } else { 48 };
        usize::from(self.setup.mtu).saturating_sub(headers)
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Done,
    /// It waits until the switch has said whose it is.
    Hold,
    Refused(Reason),
}

/// What a flow is found by. Its NIC is part of that: nobody gets into a neighbour's flow by a
/// neighbour's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: u8,
    /// Of a datagram that came by a forward, the number of that.
    forward: Option<u64>,
    mac: Mac,
    guest: SocketAddr,
    far: SocketAddr,
}

#[derive(Debug)]
enum Body {
    Tcp(Tcp),
    Udp(Udp),
    Echo(Echo),
    Names(Asked),
    NamesByTcp(NamesByTcp),
}

#[derive(Debug)]
struct Flow {
    body: Body,
    key: Key,
    /// Found by this as well: of a datagram that came by a forward, its sender.
    alias: Option<Key>,
    kind: Kind,
    port: PortNo,
    timer: Option<Instant>,
    /// It is in the queue of those that want a turn.
    queued: bool,
    counted: bool,
}

/// All flows.
#[derive(Debug)]
pub(crate) struct Nat {
    flows: Slab<Flow>,
    keys: HashMap<Key, usize>,
    timers: BTreeSet<(Instant, usize)>,
    queue: Queue,
    epoll: OwnedFd,
    scratch: Vec<u8>,
    room: Vec<u8>,
    total: usize,
    /// Bytes that may wait in connections.
    buffers: usize,
    ephemeral: u16,
    said_no_ping: bool,
}

/// Numbers of descriptors in epoll below this one are the process's.
pub(crate) const FIRST: u64 = 1 << 20;

impl Nat {
    /// No flows yet. `descriptors`: how many this process may have.
    pub(crate) fn new(descriptors: u64) -> io::Result<Self> {
        let most = descriptors.saturating_sub(SPARE).saturating_mul(9) / 10;
        Ok(Self {
            flows: Slab::new(),
            keys: HashMap::new(),
            timers: BTreeSet::new(),
            queue: Queue::default(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            scratch: vec![0; LARGEST + ETHERNET],
            room: vec![0; LARGEST],
            total: usize::try_from(most).unwrap_or(TOTAL).min(TOTAL),
            buffers: 0,
            ephemeral: EPHEMERAL,
            said_no_ping: false,
        })
    }

    /// Bytes that may wait in connections.
    #[cfg(test)]
    pub(crate) fn buffers(&self) -> usize {
        self.buffers
    }

    /// What all descriptors are watched by.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A descriptor's state changed.
    pub(crate) fn event(&mut self, number: u64, flags: epoll::EventFlags) {
        let Some(id) = number.checked_sub(FIRST).and_then(|id| usize::try_from(id).ok()) else {
            return;
        };
        let Some(flow) = self.flows.get_mut(id) else { return };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if let Body::Tcp(tcp) = &mut flow.body {
            let readable = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            tcp.ready(
                broken || flags.intersects(readable),
                broken || flags.contains(epoll::EventFlags::OUT),
            );
        }
        self.want_turn(id);
    }

    fn want_turn(&mut self, id: usize) {
        if let Some(flow) = self.flows.get_mut(id)
            && !std::mem::replace(&mut flow.queued, true)
        {
            self.queue.push(flow.port, id);
        }
    }

    /// Does any flow want a turn now?
    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    /// When a flow wants a turn though nothing comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Flows by protocol.
    pub(crate) fn count(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for (_, flow) in &self.flows {
            *count.entry(flow.kind.name().to_owned()).or_default() += 1;
        }
        count
    }

    /// Gives those flows a turn that want one, until there is no room for frames. `names` are those
    /// of the LAN.
    pub(crate) fn run(&mut self, io: &mut Io<'_>, names: &dyn dns::Names) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= io.now) {
            self.timers.remove(&(at, id));
            if let Some(flow) = self.flows.get_mut(id) {
                flow.timer = None;
            }
            self.want_turn(id);
        }
        for _ in 0..self.queue.len() {
            if io.link.room() == 0 {
                return;
            }
            let Some(id) = self.queue.pop() else { return };
            if let Some(flow) = self.flows.get_mut(id) {
                flow.queued = false;
                self.turn(id, io, names);
            }
        }
    }

    fn turn(&mut self, id: usize, io: &mut Io<'_>, names: &dyn dns::Names) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let (more, keep) = match &mut flow.body {
            Body::Tcp(_) => self.turn_tcp(id, io),
            Body::Udp(_) => self.turn_udp(id, io),
            Body::Echo(_) => self.turn_echo(id, io),
            Body::Names(_) => self.turn_names(id, io),
            Body::NamesByTcp(_) => self.turn_names_by_tcp(id, io, names),
        };
        if !keep {
            return self.remove(id, io);
        }
        if more {
            self.want_turn(id);
        }
        self.set_timer(id, io.now);
    }

    /// Looks when the flow wants its next turn. An earlier look stays: it costs less than to move
    /// it with each packet.
    fn set_timer(&mut self, id: usize, now: Instant) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let due = match &mut flow.body {
            Body::Tcp(tcp) => tcp.due(now),
            Body::Udp(udp) => Some(udp.end()),
            Body::Echo(echo) => Some(echo.end()),
            Body::Names(asked) => Some(asked.end()),
            Body::NamesByTcp(names) => names.due(now),
        };
        if let Some(due) = due.filter(|due| flow.timer.is_none_or(|set| *due < set)) {
            if let Some(old) = flow.timer.replace(due) {
                self.timers.remove(&(old, id));
            }
            self.timers.insert((due, id));
        }
    }

    fn remove(&mut self, id: usize, io: &mut Io<'_>) {
        let Some(mut flow) = self.flows.try_remove(id) else { return };
        io.counters.close();
        self.keys.remove(&flow.key);
        flow.alias.into_iter().for_each(|key| _ = self.keys.remove(&key));
        flow.timer.into_iter().for_each(|at| _ = self.timers.remove(&(at, id)));
        let buffers = match &flow.body {
            Body::Tcp(tcp) => tcp.buffers(),
            _ => 0,
        };
        self.buffers = self.buffers.saturating_sub(buffers);
        if let Some(own) = io.stations.allowance(flow.port) {
            own.close(flow.kind);
            own.buffers = own.buffers.saturating_sub(buffers);
            if flow.kind == Kind::Tcp && !flow.counted {
                own.answered();
            }
        }
        if let Body::Tcp(tcp) = &mut flow.body {
            tcp.close();
        }
    }
}

/// A question's key has its number in the place of the far port.
fn with_number(far: SocketAddr, id: u16) -> SocketAddr {
    SocketAddr::new(far.ip(), id)
}

fn give_back(io: &mut Io<'_>, port: PortNo, kind: Kind) {
    io.stations.allowance(port).into_iter().for_each(|own| own.close(kind));
}

/// Where datagrams to a guest come from.
fn far(key: Key) -> SocketAddr {
    let port = if key.kind == 53 { dns::PORT } else { key.far.port() };
    SocketAddr::new(key.far.ip(), port)
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd, id: usize) -> Result<(), Errno> {
    use epoll::EventFlags;
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    let number = FIRST + u64::try_from(id).map_err(|_| Errno::INVAL)?;
    epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags)
}

fn no_socket(e: Errno) -> Reason {
    match e {
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::CONNREFUSED => Reason::Unreachable,
        _ => Reason::NoSocket,
    }
}

/// Refuses a segment at once, or its sender would ask six times.
fn refuse_segment(io: &mut Io<'_>, mac: Mac, ip: &Ip<'_>) {
    if let Some(frame) = link::reset_of(io.ends(mac), (ip.from, ip.to), ip.payload) {
        io.send(&frame);
    }
}

/// Tells a guest as the host was told.
fn tell_unreachable(io: &mut Io<'_>, ends: Packet, packet: &[u8], error: Errno) {
    let Ok(ip) = link::packet(packet) else { return };
    let reason = match error {
        Errno::CONNREFUSED => Unreachable::Port,
        Errno::HOSTUNREACH => Unreachable::Host,
        Errno::NETUNREACH => Unreachable::Net,
        Errno::ACCESS | Errno::PERM => Unreachable::Prohibited,
        // Nobody answered: neither do we.
        _ => return,
    };
    let refused = ip.protocol == IpProtocol::Tcp && error == Errno::CONNREFUSED;
    let frame = if refused {
        link::reset_of(ends, (ip.from, ip.to), ip.payload)
    } else {
        let own = io.gateway_for(ip.from);
        own.and_then(|own| link::unreachable(ends, own, packet, reason))
    };
    frame.into_iter().for_each(|frame| io.send(&frame));
}
