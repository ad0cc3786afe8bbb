//! What a sender is told whose packet is too long for a link: "fragmentation needed" (RFC 1191
//! section 3), "packet too big" (RFC 4443 section 3.2).

use super::{Headers, ICMPV6, Network};
use crate::{Checksum, HEAD, Mac};

/// IP protocol number of ICMP.
const ICMP: u8 = 1;

/// Longest answer: Ethernet, two tags, IPv6, ICMPv6, and what the snapshot has of the packet.
pub const TOO_BIG: usize = 14 + 8 + 40 + 8 + HEAD;

/// Least MTU of IPv6 (RFC 8200 section 5): hosts do not believe less.
const LEAST_IPV6: u16 = 1280;

/// Writes the frame that answers a frame of `len` bytes, which begins with `head`, because its
/// packet is longer than `mtu`. Returns the answer's length.
///
/// It comes from the packet's destination, since a bridge has no address. `None` if nobody may be
/// told: what is no IP or not understood, frames to or from many, later fragments, and errors of
/// ICMP (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
pub fn too_big(head: &[u8], len: usize, mtu: u16, out: &mut [u8; TOO_BIG]) -> Option<usize> {
    let head = head.get(..HEAD.min(len)).unwrap_or(head);
    let h = Headers::parse(head, len);
    let (source, destination) = h.addresses(head).filter(|_| may_be_told(&h, head, len))?;
    let quoted = head.get(h.l3..)?;
    let (to, rest) = head.split_first_chunk::<6>()?;
    let (from, _) = rest.split_first_chunk::<6>()?;
    let mut icmp = [0; 8];
    let (kind, told) = match h.network {
        Network::Ipv4 => ([3, 4], mtu),
        _ => ([2, 0], mtu.max(LEAST_IPV6)),
    };
    let size = u16::try_from(icmp.len() + quoted.len()).ok()?;
    let mut sum = Checksum::new();
    if h.network == Network::Ipv6 {
        sum.add(source);
        sum.add(destination);
        sum.add_u16(size);
        sum.add_u16(ICMPV6.into());
    }
    icmp[..2].copy_from_slice(&kind);
    icmp[6..].copy_from_slice(&told.to_be_bytes());
    sum.add(&icmp);
    sum.add(quoted);
    icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let (v4, v6) = (ipv4(size, destination, source)?, ipv6(size));
    let ip: [&[u8]; 3] = match h.network {
        Network::Ipv4 => [&v4, &[], &[]],
        _ => [&v6, destination, source],
    };
    let parts = [&from[..], to, head.get(12..h.l3)?].into_iter().chain(ip).chain([&icmp, quoted]);
    let mut written = 0;
    for part in parts {
        out.get_mut(written..written + part.len())?.copy_from_slice(part);
        written += part.len();
    }
    Some(written)
}

fn may_be_told(h: &Headers, head: &[u8], len: usize) -> bool {
    let Some((source, destination)) = h.addresses(head) else { return false };
    let mac = |at: usize| head.get(at..at + 6).and_then(|m| m.first_chunk()).map(|m| Mac::new(*m));
    let one_card = [0, 6].map(mac).iter().all(|m| m.is_some_and(|m| !m.is_group()));
    let is_host = |ip: &[u8]| match (h.network, ip.first()) {
        (Network::Ipv4, Some(first)) => (1..224).contains(first),
        (_, first) => first != Some(&0xff) && ip.iter().any(|b| *b != 0),
    };
    let kind = || head.get(h.l4).filter(|_| h.l4 != 0);
    let is_error = match (h.network, h.protocol) {
        (Network::Ipv4, ICMP) => !matches!(kind(), Some(0 | 8 | 13 | 14)),
        (Network::Ipv6, ICMPV6) => kind().is_none_or(|kind| *kind < 128),
        _ => false,
    };
    let hosts = is_host(source) && is_host(destination);
    one_card && hosts && h.understood(len) && !h.later && !is_error
}

/// RFC 791: no options, precedence "internetwork control", as for errors (RFC 1812 section
/// 4.3.2.5).
fn ipv4(size: u16, source: &[u8], destination: &[u8]) -> Option<[u8; 20]> {
    let mut ip = [0x45, 0xc0, 0, 0, 0, 0, 0x40, 0, 64, ICMP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let addresses = source.iter().chain(destination).take(8);
    ip.iter_mut().skip(12).zip(addresses).for_each(|(to, from)| *to = *from);
    ip[2..4].copy_from_slice(&size.checked_add(20)?.to_be_bytes());
    let mut sum = Checksum::new();
    sum.add(&ip);
    ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    Some(ip)
}

/// RFC 8200 without its addresses.
fn ipv6(size: u16) -> [u8; 8] {
    let [a, b] = size.to_be_bytes();
    [0x60, 0, 0, 0, a, b, ICMPV6, 64]
}
