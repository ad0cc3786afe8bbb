//! ARP (RFC 826) and RARP (RFC 903) for IPv4 over Ethernet.

use super::{ETHERTYPE_ARP, ETHERTYPE_RARP, Headers};
use crate::{HEAD, Mac};

/// Ethernet, IPv4, and the lengths of their addresses: what every packet begins with.
const BEGIN: [u8; 6] = [0, 1, 0x08, 0, 6, 4];

/// A whole ARP or RARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1 asks, 2 answers; 3 and 4 in RARP.
    pub operation: u16,
    /// The sender.
    pub sender: (Mac, [u8; 4]),
    /// About whom, or to whom.
    pub target: (Mac, [u8; 4]),
}

impl Headers {
    /// The ARP or RARP packet in a frame of `len` bytes; `None` if it is another, or not whole in
    /// the snapshot.
    pub fn arp(&self, head: &[u8], len: usize) -> Option<Arp> {
        if !matches!(self.ethertype, ETHERTYPE_ARP | ETHERTYPE_RARP) {
            return None;
        }
        let head = head.get(..HEAD.min(len)).unwrap_or(head);
        let (begin, rest) = head.get(self.l3..)?.split_first_chunk::<6>()?;
        let (operation, rest) = rest.split_first_chunk::<2>()?;
        let (sender, rest) = rest.split_first_chunk::<6>()?;
        let (sender_ip, rest) = rest.split_first_chunk::<4>()?;
        let (target, rest) = rest.split_first_chunk::<6>()?;
        let operation = u16::from_be_bytes(*operation);
        let sender = (Mac::new(*sender), *sender_ip);
        let target = (Mac::new(*target), *rest.first_chunk::<4>()?);
        (*begin == BEGIN).then_some(Arp { operation, sender, target })
    }
}
