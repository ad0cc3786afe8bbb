//! A TCP connection of a guest, ended here, and its other half on a socket of the host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::Shutdown;
use smoltcp::socket::tcp::State;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::TcpPacket;

use super::sockets;
use super::stack::{Sizes, Stack, Wire};
use crate::link;

/// How long a connection may be silent (RFC 5382).
const IDLE: Duration = Duration::from_secs(2 * 3600 + 240);
/// The same of one that its guest has begun, once the server has said its last. A client of a
/// forward, on the other hand, may say its last and then wait for hours.
const ENDED: Duration = Duration::from_secs(240);
/// The same of one that its server has reset, for a guest that hears nothing of what is left.
const BROKEN: Duration = Duration::from_secs(120);
/// Rounds of copying before others have their turn.
const ROUNDS: usize = 8;

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// There is more to copy: others first.
    Busy,
    Done,
    /// The server cannot be had, for this reason.
    Failed(Errno),
}

#[derive(Debug)]
enum Guest {
    /// The host's half is on its way; the guest's first segment waits.
    Waits(Vec<u8>),
    Talks(Box<Stack>),
    /// It has said all and heard all. The server has no room for the rest of what it said.
    Left(Vec<u8>),
}

/// Is this packet of a guest's a reset?
fn is_reset(packet: &[u8]) -> bool {
    let ip = link::packet(packet);
    ip.is_ok_and(|ip| TcpPacket::new_checked(ip.payload).is_ok_and(|segment| segment.rst()))
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Tcp {
    guest: Guest,
    host: Option<OwnedFd>,
    /// The end that the guest sees.
    own: SocketAddr,
    sizes: Sizes,
    seed: u64,
    readable: bool,
    writable: bool,
    /// It came by a forward.
    incoming: bool,
    /// The server said its last.
    ended: bool,
    /// It has reset the connection: so do we, when the guest has heard what it said before.
    broken: bool,
    /// The guest did, and the server knows.
    shut: bool,
    /// Both have said all, and the guest has heard that: our end of TCP has nothing to wait for.
    parted: bool,
    last: Instant,
}

impl Tcp {
    /// A guest wants `own`; `host` is on its way there.
    pub(crate) fn outgoing(
        host: OwnedFd,
        own: SocketAddr,
        syn: &[u8],
        (sizes, seed): (Sizes, u64),
        now: Instant,
    ) -> Self {
        Self::new(Guest::Waits(syn.to_vec()), host, own, (sizes, seed), now)
    }

    /// `host` wants the guest at `to`, who sees it as `own`.
    pub(crate) fn incoming(
        host: OwnedFd,
        (own, to): (SocketAddr, SocketAddr),
        (sizes, seed): (Sizes, u64),
        wire: &mut Wire<'_>,
        now: Instant,
    ) -> Self {
        let stack = Stack::call(own, to, sizes, seed, wire, now);
        let mut new = Self::new(Guest::Talks(Box::new(stack)), host, own, (sizes, seed), now);
        (new.readable, new.writable, new.incoming) = (true, true, true);
        new
    }

    fn new(
        guest: Guest,
        host: OwnedFd,
        own: SocketAddr,
        (sizes, seed): (Sizes, u64),
        now: Instant,
    ) -> Self {
        Self {
            guest,
            host: Some(host),
            own,
            sizes,
            seed,
            readable: false,
            writable: false,
            incoming: false,
            ended: false,
            broken: false,
            shut: false,
            parted: false,
            last: now,
        }
    }

    /// The host's socket.
    pub(crate) fn host(&self) -> Option<&OwnedFd> {
        self.host.as_ref()
    }

    /// Bytes that may wait in it.
    pub(crate) fn buffers(&self) -> usize {
        match &self.guest {
            Guest::Left(rest) => rest.len(),
            Guest::Waits(_) | Guest::Talks(_) => self.sizes.sum(),
        }
    }

    /// When it has been silent for too long.
    fn end(&self) -> Instant {
        let most = match &self.guest {
            Guest::Talks(_) if self.broken => BROKEN,
            Guest::Talks(_) if self.ended && !self.incoming => ENDED,
            _ => IDLE,
        };
        self.last + most
    }

    /// Has the host's half arrived?
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self.guest, Guest::Waits(_))
    }

    /// Its first segment, while nothing but that came.
    pub(crate) fn first_segment(&self) -> Option<&[u8]> {
        match &self.guest {
            Guest::Waits(syn) => Some(syn),
            Guest::Talks(_) | Guest::Left(_) => None,
        }
    }

    /// Is it over but for waiting?
    pub(crate) fn may_be_replaced(&mut self) -> bool {
        match &mut self.guest {
            Guest::Waits(_) | Guest::Left(_) => false,
            // What it said last may be there still.
            Guest::Talks(_) if self.parted && !self.shut => false,
            Guest::Talks(stack) => {
                matches!(stack.socket().state(), State::Closed | State::TimeWait)
            }
        }
    }

    /// A packet of the guest's.
    pub(crate) fn packet<'a>(&mut self, packet: &'a [u8], wire: &mut Wire<'a>, now: Instant) {
        match &mut self.guest {
            // It asks again: it will be answered when the server is.
            Guest::Waits(_) => self.last = now,
            // A SYN of the same port is not refused: it comes again, when this flow has ended.
            // Until then only the server can lengthen it.
            Guest::Left(_) => {}
            Guest::Talks(stack) => {
                let (was, waited) = (stack.socket().state(), stack.socket().send_queue());
                stack.input(packet, wire, now);
                let is = stack.socket().state();
                // Once it is broken nothing that the guest says has a way to go.
                if !self.broken || stack.socket().send_queue() < waited {
                    self.last = now;
                }
                let heard_all = was == State::LastAck && is == State::Closed && !is_reset(packet);
                self.parted |= heard_all || is == State::TimeWait;
            }
        }
    }

    /// The host's socket can be read from or written to.
    pub(crate) fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Copies in both directions as far as it goes, and sends what comes of it.
    pub(crate) fn turn(&mut self, wire: &mut Wire<'_>, now: Instant) -> Standing {
        if let (Guest::Waits(syn), Some(host)) = (&self.guest, &self.host) {
            if !self.writable && !self.readable {
                return Standing::Open;
            }
            if let Err(e) = sockets::outcome(host) {
                return Standing::Failed(e);
            }
            let syn = syn.clone();
            let mut stack = Stack::answer(self.own, self.sizes, self.seed, wire, now);
            let Wire { link, ends, mtu, scratch, .. } = wire;
            let mut wire = Wire::new(&mut **link, *ends, *mtu, scratch);
            stack.input(&syn, &mut wire, now);
            self.guest = Guest::Talks(Box::new(stack));
            self.last = now;
        }
        for _ in 0..ROUNDS {
            let moved = self.up() | self.down() | self.pass_reset_on();
            let rest = self.rest();
            if let Guest::Talks(stack) = &mut self.guest {
                stack.output(wire, now);
            }
            if let Some(rest) = rest {
                self.guest = Guest::Left(rest);
            }
            if self.is_over() {
                return Standing::Done;
            }
            if !moved {
                return Standing::Open;
            }
            self.last = now;
        }
        Standing::Busy
    }

    /// From the guest to the server. True if something moved.
    fn up(&mut self) -> bool {
        let Some(host) = &self.host else { return false };
        let stack = match &mut self.guest {
            Guest::Waits(_) => return false,
            Guest::Talks(stack) => stack,
            Guest::Left(_) => return self.up_the_rest(),
        };
        let socket = stack.socket();
        let mut moved = false;
        while self.writable && !self.broken && socket.can_recv() {
            let sent = socket.recv(|bytes| match sockets::send(host, bytes) {
                Ok(n) => (n, Ok(n)),
                Err(e) => (0, Err(e)),
            });
            match sent {
                Ok(Ok(n)) => moved |= n > 0,
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                // What the server said before can be read still.
                Ok(Err(_)) => (self.broken, self.readable) = (true, true),
                Err(_) => {
                    socket.abort();
                    return true;
                }
            }
        }
        let state = socket.state();
        let said_all = self.parted
            || matches!(
                state,
                State::CloseWait | State::LastAck | State::Closing | State::TimeWait
            );
        if said_all && !self.shut && socket.recv_queue() == 0 {
            let _ = rustix::net::shutdown(host, Shutdown::Write);
            self.shut = true;
            moved = true;
        }
        moved
    }

    /// The same for a guest that has left.
    fn up_the_rest(&mut self) -> bool {
        let (Guest::Left(rest), Some(host)) = (&mut self.guest, &self.host) else { return false };
        let mut moved = false;
        while self.writable && !rest.is_empty() {
            match sockets::send(host, rest) {
                Ok(n) => {
                    rest.drain(..n.min(rest.len()));
                    moved = true;
                }
                Err(Errno::AGAIN) => self.writable = false,
                // The server has left as well.
                Err(_) => {
                    rest.clear();
                    return true;
                }
            }
        }
        if rest.is_empty() && !self.shut {
            let _ = rustix::net::shutdown(host, Shutdown::Write);
            self.shut = true;
            moved = true;
        }
        moved
    }

    /// What the guest has said and the server has no room for, once both have said all. It is taken
    /// out of smoltcp, which forgets it with the connection.
    fn rest(&mut self) -> Option<Vec<u8>> {
        let Guest::Talks(stack) = &mut self.guest else { return None };
        let socket = stack.socket();
        if !self.parted || !socket.can_recv() {
            return None;
        }
        let mut rest = vec![0; socket.recv_queue()];
        let len = socket.recv_slice(&mut rest).unwrap_or(0);
        rest.truncate(len);
        Some(rest)
    }

    /// From the server to the guest. True if something moved.
    fn down(&mut self) -> bool {
        let (Guest::Talks(stack), Some(host)) = (&mut self.guest, &self.host) else { return false };
        let socket = stack.socket();
        let mut moved = false;
        while self.readable && !self.ended && socket.can_send() {
            let got = socket.send(|room| match sockets::receive(host, room) {
                Ok(n) => (n, Ok(n)),
                Err(e) => (0, Err(e)),
            });
            match got {
                Ok(Ok(0)) => {
                    self.ended = true;
                    if !self.broken {
                        socket.close();
                    }
                    moved = true;
                }
                Ok(Ok(_)) => moved = true,
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(_)) => (self.broken, self.ended) = (true, true),
                Err(_) => {
                    socket.abort();
                    return true;
                }
            }
        }
        moved
    }

    /// Resets the guest's end once it has heard all that the server said before its reset. True if
    /// it did.
    fn pass_reset_on(&mut self) -> bool {
        let Guest::Talks(stack) = &mut self.guest else { return false };
        let socket = stack.socket();
        let heard = self.broken && self.ended && socket.send_queue() == 0;
        if heard {
            socket.abort();
        }
        heard
    }

    /// True when nothing more is to come from the guest's side. Its SYN was put in: if smoltcp
    /// waits for one, the guest has answered ours with a reset.
    fn is_over(&mut self) -> bool {
        match &mut self.guest {
            Guest::Waits(_) => false,
            Guest::Talks(stack) => {
                matches!(stack.socket().state(), State::Closed | State::TimeWait | State::Listen)
            }
            Guest::Left(rest) => rest.is_empty(),
        }
    }

    /// When it wants a turn though nothing comes.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instant> {
        let idle = Some(self.end());
        match &mut self.guest {
            Guest::Waits(_) | Guest::Left(_) => idle,
            Guest::Talks(stack) => stack.due(now).into_iter().chain(idle).min(),
        }
    }

    /// Ends it if it has been silent for too long.
    pub(crate) fn end_if_idle(&mut self, now: Instant) {
        if now < self.end() {
            return;
        }
        match &mut self.guest {
            Guest::Waits(_) => {}
            Guest::Talks(stack) => stack.socket().abort(),
            Guest::Left(rest) => {
                // The server is not to take what it has had for all.
                if let Some(host) = self.host.take() {
                    sockets::reset(host);
                }
                rest.clear();
            }
        }
    }

    /// Leaves: the server learns whether the guest had said all.
    pub(crate) fn close(&mut self) {
        let both_said_all = self.ended && self.shut;
        if let Some(host) = self.host.take().filter(|_| !both_said_all) {
            sockets::reset(host);
        }
    }
}
