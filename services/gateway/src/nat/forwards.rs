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
/// Connections that wait, in all and of one forward.
const WAITING: (usize, usize) = (256, 32);
/// How often the LAN is asked for a guest, however many wait for it, and how often it is tried to
/// accept connections where that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is tried to listen where that was not possible: an address may be missing until the
/// host's network is up, and a port be another program's that ends, like the gateway before this.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// Connections or datagrams taken at once.
const BATCH: usize = 32;

/// Where guests are.
pub(crate) trait Guests {
    /// The address, NIC and port of a forward's target. None: they are not known, or the NIC is
    /// behind another port than the one that is named.
    fn find(&self, target: &Target, io: &mut Io<'_>) -> Option<(IpAddr, (Mac, PortNo))>;
    /// Asks the LAN for a forward's target: then the switch knows its NIC as well.
    fn ask(&self, target: &Target, io: &mut Io<'_>);
}

#[derive(Debug)]
struct Listener {
    forward: Forward,
    socket: Result<Rc<OwnedFd>, String>,
    number: u64,
    ready: bool,
    waiting: VecDeque<Waiting>,
    /// When it is looked at though nothing comes. Until then its guest is not asked for, nor is it
    /// tried to listen.
    again: Option<Instant>,
    /// When it is tried to accept again, if that failed.
    accept: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    until: Instant,
}

/// All forwards.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    listeners: Vec<Listener>,
    next: u64,
    /// How they stand has changed since it was last told.
    has_news: bool,
}

impl Forwards {
    /// Listens for these, and for no others. Those that are there already are not touched.
    pub(crate) fn set(&mut self, wanted: &[Forward], nat: &Nat, now: Instant) {
        self.has_news = true;
        self.listeners.retain_mut(|l| {
            let stays = wanted.contains(&l.forward) && l.socket.is_ok();
            if !stays {
                l.waiting.drain(..).for_each(|waiting| sockets::reset(waiting.socket));
            }
            stays
        });
        for forward in wanted {
            if self.listeners.iter().any(|l| l.forward == *forward) {
                continue;
            }
            let number = FIRST + self.next;
            self.next += 1;
            let socket = listen(forward, nat, number).map_err(|e| explain(forward, &e));
            let again = socket.is_err().then(|| now + LISTEN_AGAIN);
            let socket = socket.map(Rc::new);
            self.listeners.push(Listener {
                forward: forward.clone(),
                socket,
                number,
                ready: false,
                waiting: VecDeque::new(),
                again,
                accept: None,
            });
        }
    }

    /// Each forward, and what is wrong with it, if that has changed.
    pub(crate) fn news(&mut self) -> Option<Vec<(Forward, Option<String>)>> {
        let of = |l: &Listener| (l.forward.clone(), l.socket.as_ref().err().cloned());
        std::mem::take(&mut self.has_news).then(|| self.listeners.iter().map(of).collect())
    }

    /// What listens for a forward.
    #[cfg(test)]
    pub(crate) fn socket(&self, forward: &Forward) -> Option<Rc<OwnedFd>> {
        let found = self.listeners.iter().find(|l| l.forward == *forward);
        found.and_then(|l| l.socket.clone().ok())
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

    /// When some listener is to be looked at though nothing comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        let ends = |l: &Listener| l.waiting.front().map(|waiting| waiting.until);
        let due = |l: &Listener| [ends(l), l.again, l.accept].into_iter().flatten().min();
        self.listeners.iter().filter_map(due).min()
    }

    /// Takes what came, and looks whether the guests of those who wait are there.
    pub(crate) fn run(&mut self, nat: &mut Nat, guests: &impl Guests, io: &mut Io<'_>) {
        let mut waiting: usize = self.listeners.iter().map(|l| l.waiting.len()).sum();
        for listener in &mut self.listeners {
            if listener.again.is_some_and(|at| io.now >= at) {
                listener.again = None;
                self.has_news |= listener.listen_again(nat, io.now);
            }
            if listener.accept.is_some_and(|at| io.now >= at) {
                (listener.accept, listener.ready) = (None, true);
            }
            waiting -= listener.waiting.len();
            if listener.ready
                && let Ok(socket) = listener.socket.as_ref().map(Rc::clone)
            {
                listener.ready = match listener.forward.protocol {
                    Protocol::Tcp => listener.accept(&socket, WAITING.0 - waiting, io.now),
                    Protocol::Udp => listener.take(&socket, nat, guests, io),
                };
            }
            listener.call(nat, guests, io);
            waiting += listener.waiting.len();
        }
    }
}

impl Listener {
    /// Listens if it does not. True if it does since now, or something else is wrong with it.
    fn listen_again(&mut self, nat: &Nat, now: Instant) -> bool {
        let Err(reason) = &self.socket else { return false };
        match listen(&self.forward, nat, self.number) {
            Ok(socket) => self.socket = Ok(Rc::new(socket)),
            Err(error) => {
                self.again = Some(now + LISTEN_AGAIN);
                let other = explain(&self.forward, &error);
                if other == *reason {
                    return false;
                }
                self.socket = Err(other);
            }
        }
        true
    }

    /// Takes connections, of which `most` may wait. True if there may be more.
    fn accept(&mut self, socket: &OwnedFd, most: usize, now: Instant) -> bool {
        for _ in 0..BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(socket, flags) {
                Ok(socket) if self.waiting.len() < most.min(WAITING.1) => {
                    self.waiting.push_back(Waiting { socket, until: now + PATIENCE });
                }
                Ok(socket) => sockets::reset(socket),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR | Errno::CONNABORTED) => return true,
                // Without descriptors it waits: nobody says when there are some.
                Err(_) => {
                    self.accept = Some(now + AGAIN);
                    return false;
                }
            }
        }
        true
    }

    /// Those who wait go on to their guest, if it is there.
    fn call(&mut self, nat: &mut Nat, guests: &impl Guests, io: &mut Io<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        if let Some((ip, place)) = guests.find(&self.forward.target, io) {
            let to = SocketAddr::new(ip, self.forward.port);
            for waiting in self.waiting.drain(..) {
                // Without a place the connection ends with a reset.
                nat.call(waiting.socket, to, place, io);
            }
            return;
        }
        while let Some(late) = self.waiting.pop_front_if(|waiting| io.now >= waiting.until) {
            sockets::reset(late.socket);
        }
        if !self.waiting.is_empty() {
            self.ask(guests, io);
        }
    }

    /// Asks for the guest, unless it has just been asked for.
    fn ask(&mut self, guests: &impl Guests, io: &mut Io<'_>) {
        if self.again.is_none() {
            self.again = Some(io.now + AGAIN);
            guests.ask(&self.forward.target, io);
        }
    }

    /// Passes datagrams on. True if there may be more.
    fn take(
        &mut self,
        socket: &Rc<OwnedFd>,
        nat: &mut Nat,
        guests: &impl Guests,
        io: &mut Io<'_>,
    ) -> bool {
        let mut room = vec![0; LARGEST];
        for _ in 0..BATCH {
            if io.link.room() < PIECES {
                return true;
            }
            let got = rustix::net::recvfrom(&**socket, &mut room[..], RecvFlags::DONTWAIT);
            let Ok((_, len, peer)) = got else { return false };
            let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
                continue;
            };
            let Some((ip, place)) = guests.find(&self.forward.target, io) else {
                self.ask(guests, io);
                continue;
            };
            let to = SocketAddr::new(ip, self.forward.port);
            let data = room.get(..len).unwrap_or_default();
            nat.pass_on((socket, self.number), (peer, to), place, data, io);
        }
        true
    }
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
