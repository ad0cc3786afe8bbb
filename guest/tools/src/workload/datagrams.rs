//! The numbers that datagrams of a stream begin with, if they are long enough.

use std::net::SocketAddr;

use super::Tally;
use crate::pktgen::Sequences;

/// The number at a payload's start.
pub(crate) fn number(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Finds what is missing among them, for each sender.
#[derive(Debug)]
pub(crate) struct Gaps(Sequences);

impl Gaps {
    pub(crate) fn new() -> Self {
        Self(Sequences::of_running_streams())
    }

    /// A datagram's number. Of more than 256 senders at a time some are not followed:
    /// they have no gaps.
    pub(crate) fn note(&mut self, from: SocketAddr, number: u64, tally: &mut Tally) {
        let SocketAddr::V4(from) = from else { return };
        let ([a, b, c, d], [e, f]) = (from.ip().octets(), from.port().to_be_bytes());
        self.0.note([a, b, c, d, e, f], 0, number, 0);
        let faults = self.0.faults();
        (tally.lost, tally.out_of_order) = (faults.lost, faults.duplicated + faults.reordered);
    }
}
