//! Datagrams of a guest with one address outside, over a socket of the host that is connected to
//! it; and of somebody outside with a guest, by way of a forward.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Weak;

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
    /// The socket of a forward, and who called there. It goes with the forward, for somebody else
    /// may want its port.
    Forward(Weak<OwnedFd>, SocketAddr),
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
    pub(crate) fn incoming(socket: Weak<OwnedFd>, peer: SocketAddr, now: Instant) -> Self {
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
                let socket = socket.upgrade().ok_or(Errno::NOTCONN)?;
                rustix::net::sendto(&*socket, data, SendFlags::DONTWAIT, peer).map(drop)
            }
        }
    }

    /// A datagram from outside. Those of a forward are received by the forward.
    pub(crate) fn receive(&mut self, room: &mut [u8], now: Instant) -> Result<usize, Errno> {
        let socket = match &self.host {
            Host::Own(socket) => socket,
            Host::Forward(socket, _) if socket.strong_count() == 0 => return Err(Errno::NOTCONN),
            Host::Forward(..) => return Err(Errno::AGAIN),
        };
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
