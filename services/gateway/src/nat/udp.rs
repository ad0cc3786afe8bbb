//! Datagrams of a guest with one address outside, over a socket of the host that is connected to
//! it; and of somebody outside with a guest, by way of a forward.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::SendFlags;
use smoltcp::time::{Duration, Instant};

use super::sockets;

/// How long a flow may be silent (RFC 4787).
const IDLE: Duration = Duration::from_secs(120);
/// How long one that nobody has answered may be.
const UNANSWERED: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Host {
    /// A socket of this flow's own.
    Own(OwnedFd),
    /// The socket of a forward, and who called there.
    Forward(Rc<OwnedFd>, SocketAddr),
}

/// A flow.
#[derive(Debug)]
pub(crate) struct Udp {
    host: Host,
    answered: bool,
    last: Instant,
}

impl Udp {
    /// To whom `socket` is connected.
    pub(crate) fn outgoing(socket: OwnedFd, now: Instant) -> Self {
        Self { host: Host::Own(socket), answered: false, last: now }
    }

    /// With `peer`, who called at a forward's socket.
    pub(crate) fn incoming(socket: Rc<OwnedFd>, peer: SocketAddr, now: Instant) -> Self {
        Self { host: Host::Forward(socket, peer), answered: false, last: now }
    }

    /// The socket to watch.
    pub(crate) fn socket(&self) -> Option<&OwnedFd> {
        match &self.host {
            Host::Own(socket) => Some(socket),
            Host::Forward(..) => None,
        }
    }

    /// A datagram of the guest's goes out.
    pub(crate) fn send(&mut self, data: &[u8], now: Instant) -> Result<(), Errno> {
        self.last = now;
        match &self.host {
            Host::Own(socket) => sockets::send(socket, data).map(drop),
            Host::Forward(socket, peer) => {
                rustix::net::sendto(&**socket, data, SendFlags::DONTWAIT, peer).map(drop)
            }
        }
    }

    /// A datagram from outside.
    pub(crate) fn receive(&mut self, room: &mut [u8], now: Instant) -> Result<usize, Errno> {
        let Host::Own(socket) = &self.host else { return Err(Errno::AGAIN) };
        let len = sockets::receive(socket, room)?;
        self.touch(now);
        Ok(len)
    }

    /// Somebody answered, or asked again.
    pub(crate) fn touch(&mut self, now: Instant) {
        (self.answered, self.last) = (true, now);
    }

    /// When it ends if nothing comes.
    pub(crate) fn end(&self) -> Instant {
        self.last + if self.answered { IDLE } else { UNANSWERED }
    }
}
