//! All flows: found by their addresses, watched by epoll, ended by their time.

mod begin;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use slab::Slab;
use smoltcp::time::Instant;
use smoltcp::wire::Icmpv4DstUnreachable;
use vmlan_config::gateway::Setup;

use super::echo::Echo;
use super::names::Asked;
use super::tcp::Tcp;
use super::udp::Udp;
use crate::counters::{Counters, Reason};
use crate::lan::{Kind, PortNo, Stations};
use crate::link::{self, ETHERNET, Ip, LARGEST, Link, Mac, Packet};
use crate::services::dns;

/// Flows in all, as far as there are descriptors.
const TOTAL: usize = 65_536;
/// Descriptors that are kept for other things.
const SPARE: u64 = 64;
/// Datagrams of one flow before others have their turn.
const DATAGRAMS: usize = 32;
/// First port of our own for those who come by a forward.
const EPHEMERAL: u16 = 32_768;
/// Bytes of an IPv4 and a UDP header.
const UDP_HEADERS: u16 = 28;

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
        self.link.send(frame, link::Offload::default());
    }

    fn gateway(&self) -> Ipv4Addr {
        self.setup.network.gateway()
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: u8,
    guest: SocketAddr,
    far: SocketAddr,
}

#[derive(Debug)]
enum Body {
    Tcp(Tcp),
    Udp(Udp),
    Echo(Echo),
    Names(Asked),
}

#[derive(Debug)]
struct Flow {
    body: Body,
    key: Key,
    /// Found by this as well: of a datagram that came by a forward, its sender.
    alias: Option<Key>,
    kind: Kind,
    port: PortNo,
    mac: Mac,
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
    queue: VecDeque<usize>,
    epoll: OwnedFd,
    scratch: Vec<u8>,
    room: Vec<u8>,
    total: usize,
    ephemeral: u16,
    said_no_ping: bool,
}

/// Numbers of descriptors in epoll below this one are the process's.
pub(crate) const FIRST: u64 = 1 << 20;

fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

impl Nat {
    /// No flows yet. `descriptors`: how many this process may have.
    pub(crate) fn new(descriptors: u64) -> io::Result<Self> {
        let most = descriptors.saturating_sub(SPARE).saturating_mul(9) / 10;
        Ok(Self {
            flows: Slab::new(),
            keys: HashMap::new(),
            timers: BTreeSet::new(),
            queue: VecDeque::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            scratch: vec![0; LARGEST + ETHERNET],
            room: vec![0; LARGEST],
            total: usize::try_from(most).unwrap_or(TOTAL).min(TOTAL),
            ephemeral: EPHEMERAL,
            said_no_ping: false,
        })
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
            self.queue.push_back(id);
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

    /// Gives those flows a turn that want one, until there is no room for frames.
    pub(crate) fn run(&mut self, io: &mut Io<'_>) {
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
            let Some(id) = self.queue.pop_front() else { return };
            if let Some(flow) = self.flows.get_mut(id) {
                flow.queued = false;
                self.turn(id, io);
            }
        }
    }

    fn turn(&mut self, id: usize, io: &mut Io<'_>) {
        let Some(flow) = self.flows.get_mut(id) else { return };
        let (more, keep) = match &mut flow.body {
            Body::Tcp(_) => self.turn_tcp(id, io),
            Body::Udp(_) => self.turn_udp(id, io),
            Body::Echo(_) => self.turn_echo(id, io),
            Body::Names(_) => self.turn_names(id, io),
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
        if let Some(own) = io.stations.allowance(flow.port) {
            own.close(flow.kind);
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

/// Where datagrams to a guest come from, and go to.
fn v4(key: Key) -> Option<(SocketAddrV4, SocketAddrV4)> {
    let SocketAddr::V4(guest) = key.guest else { return None };
    match key.far {
        SocketAddr::V4(far) if key.kind == 53 => {
            Some((SocketAddrV4::new(*far.ip(), dns::PORT), guest))
        }
        SocketAddr::V4(far) => Some((far, guest)),
        SocketAddr::V6(_) => None,
    }
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
    let (IpAddr::V4(from), IpAddr::V4(to)) = (ip.from, ip.to) else { return };
    if let Some(frame) = link::reset_of(io.ends(mac), (from, to), ip.payload) {
        io.send(&frame);
    }
}

/// Tells a guest as the host was told.
fn tell_unreachable(io: &mut Io<'_>, ends: Packet, packet: &[u8], error: Errno) {
    use smoltcp::wire::{IpProtocol, Ipv4Packet};
    let Ok(view) = Ipv4Packet::new_checked(packet) else { return };
    let reason = match error {
        Errno::CONNREFUSED => Icmpv4DstUnreachable::PortUnreachable,
        Errno::HOSTUNREACH => Icmpv4DstUnreachable::HostUnreachable,
        Errno::NETUNREACH => Icmpv4DstUnreachable::NetUnreachable,
        Errno::ACCESS | Errno::PERM => Icmpv4DstUnreachable::CommProhibited,
        // Nobody answered: neither do we.
        _ => return,
    };
    let refused = view.next_header() == IpProtocol::Tcp && error == Errno::CONNREFUSED;
    let frame = if refused {
        link::reset_of(ends, (view.src_addr(), view.dst_addr()), view.payload())
    } else {
        link::unreachable(ends, io.gateway(), packet, reason)
    };
    frame.into_iter().for_each(|frame| io.send(&frame));
}
