//! Echo requests of a guest to one address outside, over a socket that the host's kernel watches
//! over: it puts its own identifier into them.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smoltcp::time::{Duration, Instant};

use super::sockets;

/// How long a row of requests may pause.
const IDLE: Duration = Duration::from_secs(30);

/// A flow.
#[derive(Debug)]
pub(crate) struct Echo {
    socket: OwnedFd,
    /// Of IPv6, that is.
    long: bool,
    ident: u16,
    last: Instant,
}

impl Echo {
    pub(crate) fn new(to: IpAddr, ident: u16, now: Instant) -> Result<Self, Errno> {
        Ok(Self { socket: sockets::echo(to)?, long: to.is_ipv6(), ident, last: now })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The guest's identifier.
    pub(crate) fn ident(&self) -> u16 {
        self.ident
    }

    /// Passes a request on. The host's kernel puts identifier and sum in.
    pub(crate) fn send(&mut self, seq_no: u16, data: &[u8], now: Instant) -> Result<(), Errno> {
        self.last = now;
        let kind = if self.long { 128 } else { 8 };
        let mut bytes = vec![kind, 0, 0, 0, 0, 0];
        bytes.extend(seq_no.to_be_bytes());
        bytes.extend(data);
        sockets::send(&self.socket, &bytes).map(drop)
    }

    /// A reply: its number, and its data in `room`.
    pub(crate) fn receive<'r>(
        &mut self,
        room: &'r mut [u8],
        now: Instant,
    ) -> Result<Option<(u16, &'r [u8])>, Errno> {
        let len = sockets::receive(&self.socket, room)?;
        self.last = now;
        let reply = if self.long { 129 } else { 0 };
        Ok(match room.get(..len) {
            Some([kind, 0, _, _, _, _, a, b, data @ ..]) if *kind == reply => {
                Some((u16::from_be_bytes([*a, *b]), data))
            }
            _ => None,
        })
    }

    pub(crate) fn end(&self) -> Instant {
        self.last + IDLE
    }
}
