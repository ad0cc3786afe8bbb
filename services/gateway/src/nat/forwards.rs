//! Ports of the host that lead to guests.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use smoltcp::time::{Duration, Instant};
use vmlan_config::gateway::{Forward, Protocol, Target};

use super::flows::{Io, Nat};
use super::sockets;
use crate::lan::PortNo;
use crate::link::{LARGEST, Mac, PIECES};

/// Numbers in epoll of the sockets that listen.
pub(crate) const FIRST: u64 = 1 << 40;
/// How long a connection waits for its guest to be found.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that wait, in all.
const WAITING: usize = 256;
/// Connections or datagrams taken at once.
const BATCH: usize = 32;

/// Where guests are.
pub(crate) trait Guests {
    /// The address of a forward's target.
    fn address(&self, target: &Target) -> Option<IpAddr>;
    /// The NIC and port at an address; asks for it if it is not known.
    fn place(&mut self, ip: IpAddr, io: &mut Io<'_>) -> Option<(Mac, PortNo)>;
}

#[derive(Debug)]
struct Listener {
    forward: Forward,
    socket: Result<Rc<OwnedFd>, String>,
    number: u64,
    ready: bool,
}

#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    forward: Forward,
    until: Instant,
}

/// All forwards.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    listeners: Vec<Listener>,
    waiting: VecDeque<Waiting>,
    next: u64,
}

impl Forwards {
    /// Listens for these, and for no others. Those that are there already are not touched.
    pub(crate) fn set(&mut self, wanted: &[Forward], nat: &Nat) {
        self.listeners.retain(|l| wanted.contains(&l.forward) && l.socket.is_ok());
        for forward in wanted {
            if self.listeners.iter().any(|l| l.forward == *forward) {
                continue;
            }
            let number = FIRST + self.next;
            self.next += 1;
            let socket = listen(forward, nat, number).map_err(|e| explain(forward, &e));
            let socket = socket.map(Rc::new);
            self.listeners.push(Listener {
                forward: forward.clone(),
                socket,
                number,
                ready: false,
            });
        }
    }

    /// Each forward, and what is wrong with it.
    pub(crate) fn report(&self) -> Vec<(Forward, Option<String>)> {
        let of = |l: &Listener| (l.forward.clone(), l.socket.as_ref().err().cloned());
        self.listeners.iter().map(of).collect()
    }

    /// A socket that listens has news.
    pub(crate) fn event(&mut self, number: u64) {
        let found = self.listeners.iter_mut().find(|listener| listener.number == number);
        found.into_iter().for_each(|listener| listener.ready = true);
    }

    /// True if some listener has not been emptied.
    pub(crate) fn is_busy(&self) -> bool {
        self.listeners.iter().any(|listener| listener.ready)
    }

    /// When the first that waits has waited long enough.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// Takes what came, and looks whether the guests of those who wait are there.
    pub(crate) fn run(&mut self, nat: &mut Nat, guests: &mut impl Guests, io: &mut Io<'_>) {
        for n in 0..self.listeners.len() {
            let Some(listener) = self.listeners.get_mut(n).filter(|l| l.ready) else { continue };
            let Ok(socket) = listener.socket.as_ref().map(Rc::clone) else { continue };
            let number = listener.number;
            let forward = listener.forward.clone();
            let more = match forward.protocol {
                Protocol::Tcp => self.accept(&socket, &forward, io.now),
                Protocol::Udp => take((&socket, number), &forward, nat, guests, io),
            };
            self.listeners.get_mut(n).into_iter().for_each(|listener| listener.ready = more);
        }
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            if let Some(ip) = guests.address(&waiting.forward.target)
                && let Some(place) = guests.place(ip, io)
            {
                let to = SocketAddr::new(ip, waiting.forward.port);
                // Without a place the connection ends with a reset.
                nat.call(waiting.socket, to, place, io);
            } else if io.now < waiting.until {
                self.waiting.push_back(waiting);
            } else {
                sockets::reset(waiting.socket);
            }
        }
    }

    /// True if there may be more.
    fn accept(&mut self, socket: &OwnedFd, forward: &Forward, now: Instant) -> bool {
        for _ in 0..BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(socket, flags) {
                Ok(socket) if self.waiting.len() < WAITING => {
                    let forward = forward.clone();
                    self.waiting.push_back(Waiting { socket, forward, until: now + PATIENCE });
                }
                Ok(socket) => sockets::reset(socket),
                // Without descriptors there is no use in trying before somebody comes again.
                Err(e) => return matches!(e, Errno::INTR | Errno::CONNABORTED),
            }
        }
        true
    }
}

/// Passes datagrams on. True if there may be more.
fn take(
    (socket, number): (&Rc<OwnedFd>, u64),
    forward: &Forward,
    nat: &mut Nat,
    guests: &mut impl Guests,
    io: &mut Io<'_>,
) -> bool {
    let mut room = vec![0; LARGEST];
    for _ in 0..BATCH {
        if io.link.room() < PIECES {
            return true;
        }
        let got = rustix::net::recvfrom(&**socket, &mut room[..], RecvFlags::DONTWAIT);
        let Ok((_, len, peer)) = got else { return false };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let Some((peer, ip)) = peer.zip(guests.address(&forward.target)) else { continue };
        let Some(place) = guests.place(ip, io) else { continue };
        let to = SocketAddr::new(ip, forward.port);
        let data = room.get(..len).unwrap_or_default();
        nat.pass_on((socket, number), (peer, to), place, data, io);
    }
    true
}

fn listen(forward: &Forward, nat: &Nat, number: u64) -> io::Result<OwnedFd> {
    let socket = match forward.protocol {
        Protocol::Tcp => sockets::listener(forward.listen)?,
        Protocol::Udp => sockets::receiver(forward.listen)?,
    };
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(nat.epoll(), &socket, epoll::EventData::new_u64(number), flags)?;
    Ok(socket)
}

/// What is wrong with a forward, and what to do.
fn explain(forward: &Forward, error: &io::Error) -> String {
    let at = forward.listen;
    match error.kind() {
        io::ErrorKind::PermissionDenied if at.port() < 1024 => format!(
            "forward {at}: ports below 1024 need net.ipv4.ip_unprivileged_port_start or root: \
             choose a higher one, e.g. 2222"
        ),
        io::ErrorKind::AddrInUse => {
            format!("forward {at}: taken by another program: choose another port")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("forward {at}: not an address of this host: choose one, e.g. 127.0.0.1")
        }
        _ => format!("forward {at}: {error}"),
    }
}
