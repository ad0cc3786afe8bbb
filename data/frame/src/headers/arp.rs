//! ARP (RFC 826) and RARP (RFC 903) for IPv4 over Ethernet.

use super::{ETHERTYPE_ARP, ETHERTYPE_RARP, Headers};
use crate::{HEAD, Mac};

/// Ethernet, IPv4, and the lengths of their addresses: what every packet begins with.
const BEGIN: [u8; 6] = [0, 1, 0x08, 0, 6, 4];

/// A frame to all by which switches and hosts learn where the card `mac` is: a reverse ARP request
/// (RFC 903) about itself, as hypervisors send it; or if its IPv4 address is known, an ARP request
/// for that ("gratuitous ARP", RFC 5227 section 3).
pub fn announcement(mac: Mac, ip: Option<[u8; 4]>) -> [u8; 60] {
    let (kind, operation) = if ip.is_some() { (ETHERTYPE_ARP, 1u16) } else { (ETHERTYPE_RARP, 3) };
    let (m, ip) = (mac.octets(), ip.unwrap_or_default());
    let target = if kind == ETHERTYPE_ARP { [0; 6] } else { m };
    let (kind, operation) = (kind.to_be_bytes(), operation.to_be_bytes());
    let parts: [&[u8]; 9] = [&[0xff; 6], &m, &kind, &BEGIN, &operation, &m, &ip, &target, &ip];
    let mut frame = [0; 60];
    for (to, from) in frame.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    frame
}

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
