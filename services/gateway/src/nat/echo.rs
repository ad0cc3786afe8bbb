//! Echo requests of a guest to one address outside, over a socket that the host's kernel watches
//! over: it puts its own identifier into them.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr};

use super::sockets;

/// How long a row of requests may pause.
const IDLE: Duration = Duration::from_secs(30);

/// A flow.
#[derive(Debug)]
pub(crate) struct Echo {
    socket: OwnedFd,
    ident: u16,
    last: Instant,
}

impl Echo {
    pub(crate) fn new(to: Ipv4Addr, ident: u16, now: Instant) -> Result<Self, Errno> {
        Ok(Self { socket: sockets::echo(to)?, ident, last: now })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The guest's identifier.
    pub(crate) fn ident(&self) -> u16 {
        self.ident
    }

    /// Passes a request on.
    pub(crate) fn send(&mut self, seq_no: u16, data: &[u8], now: Instant) -> Result<(), Errno> {
        self.last = now;
        let repr = Icmpv4Repr::EchoRequest { ident: self.ident, seq_no, data };
        let mut bytes = vec![0; repr.buffer_len()];
        let mut packet = Icmpv4Packet::new_unchecked(bytes.as_mut_slice());
        repr.emit(&mut packet, &ChecksumCapabilities::default());
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
        let bytes: &'r [u8] = room.get(..len).unwrap_or_default();
        let packet = Icmpv4Packet::new_checked(bytes).ok();
        let repr = packet
            .as_ref()
            .and_then(|p| Icmpv4Repr::parse(p, &ChecksumCapabilities::ignored()).ok());
        Ok(match repr {
            Some(Icmpv4Repr::EchoReply { seq_no, data, .. }) => Some((seq_no, data)),
            _ => None,
        })
    }

    pub(crate) fn end(&self) -> Instant {
        self.last + IDLE
    }
}
