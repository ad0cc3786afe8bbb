//! Frames that came, taken apart.

use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet,
    Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

use super::fragments::{Fragment, fragment6};
use crate::counters::Reason;

/// A frame whose headers are sound.
#[derive(Debug)]
pub(crate) struct Parsed<'f> {
    pub(crate) from: EthernetAddress,
    pub(crate) to: EthernetAddress,
    pub(crate) inner: Inner<'f>,
}

#[derive(Debug)]
pub(crate) enum Inner<'f> {
    Arp(ArpRepr),
    Ip(Ip<'f>),
    /// A part of an IP packet.
    Part(Fragment<'f>),
}

/// An IP packet.
#[derive(Debug)]
pub(crate) struct Ip<'f> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: IpProtocol,
    /// How many routers it might still have passed.
    pub(crate) hops: u8,
    /// The whole packet.
    pub(crate) packet: &'f [u8],
    /// What is behind the IP header.
    pub(crate) payload: &'f [u8],
}

impl Ip<'_> {
    /// Is its transport's checksum right?
    pub(crate) fn is_intact(&self) -> bool {
        let (from, to): (IpAddress, IpAddress) = (self.from.into(), self.to.into());
        match self.protocol {
            IpProtocol::Tcp => TcpPacket::new_checked(self.payload)
                .is_ok_and(|segment| segment.verify_checksum(&from, &to)),
            // Over IPv6 there is no datagram without a sum (RFC 8200, 8.1).
            IpProtocol::Udp => UdpPacket::new_checked(self.payload).is_ok_and(|datagram| {
                (self.from.is_ipv4() || datagram.checksum() != 0)
                    && datagram.verify_checksum(&from, &to)
            }),
            IpProtocol::Icmp => Icmpv4Packet::new_checked(self.payload)
                .is_ok_and(|message| message.verify_checksum()),
            IpProtocol::Icmpv6 => match (self.from, self.to) {
                (IpAddr::V6(from), IpAddr::V6(to)) => Icmpv6Packet::new_checked(self.payload)
                    .is_ok_and(|message| message.verify_checksum(&from, &to)),
                _ => true,
            },
            _ => true,
        }
    }

    /// The number of the requester, that of the request, and what is to be sent back, if this is an
    /// echo request (RFC 792, RFC 4443).
    pub(crate) fn echo_request(&self) -> Option<(u16, u16, &[u8])> {
        let request = match self.protocol {
            IpProtocol::Icmp if self.from.is_ipv4() => 8,
            IpProtocol::Icmpv6 if self.from.is_ipv6() => 128,
            _ => return None,
        };
        match self.payload {
            [kind, 0, _, _, a, b, c, d, data @ ..] if *kind == request => {
                Some((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]), data))
            }
            _ => None,
        }
    }
}

/// Takes a frame apart.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn parse(frame: &[u8]) -> Result<Parsed<'_>, Reason> {
    let frame = EthernetFrame::new_checked(frame).map_err(|_| Reason::Malformed)?;
    let (from, to) = (frame.src_addr(), frame.dst_addr());
    if !from.is_unicast() {
        return Err(Reason::Malformed);
    }
    let inner = match frame.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(frame.payload()).map_err(|_| Reason::Malformed)?;
            Inner::Arp(ArpRepr::parse(&packet).map_err(|_| Reason::Malformed)?)
        }
        EthernetProtocol::Ipv4 => ipv4(frame.payload())?,
        EthernetProtocol::Ipv6 => ipv6(frame.payload())?,
        _ => return Err(Reason::Unknown),
    };
    Ok(Parsed { from, to, inner })
}

/// Takes an IP packet apart.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn packet(bytes: &[u8]) -> Result<Ip<'_>, Reason> {
    let inner = match bytes.first().map(|first| first >> 4) {
        Some(4) => ipv4(bytes)?,
        Some(6) => ipv6(bytes)?,
        _ => return Err(Reason::Malformed),
    };
    match inner {
        Inner::Ip(ip) => Ok(ip),
        _ => Err(Reason::Fragment),
    }
}

fn ipv4(bytes: &[u8]) -> Result<Inner<'_>, Reason> {
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| Reason::Malformed)?;
    let (header, total) = (usize::from(packet.header_len()), usize::from(packet.total_len()));
    if packet.version() != 4 || header < 20 || !packet.verify_checksum() {
        return Err(Reason::Malformed);
    }
    let (from, to): (Ipv4Addr, Ipv4Addr) = (packet.src_addr(), packet.dst_addr());
    let whole = bytes.get(..total).ok_or(Reason::Malformed)?;
    let payload = whole.get(header..).ok_or(Reason::Malformed)?;
    let (protocol, hops) = (packet.next_header(), packet.hop_limit());
    let (from, to) = (from.into(), to.into());
    if packet.more_frags() || packet.frag_offset() != 0 {
        let (id, at) = (packet.ident().into(), packet.frag_offset().into());
        let is_last = !packet.more_frags();
        return Ok(Inner::Part(Fragment { from, to, protocol, id, at, is_last, data: payload }));
    }
    Ok(Inner::Ip(Ip { from, to, protocol, hops, packet: whole, payload }))
}

/// Headers between IPv6's own and the transport's are not looked behind: no program of a guest's
/// sends any but fragments.
fn ipv6(bytes: &[u8]) -> Result<Inner<'_>, Reason> {
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| Reason::Malformed)?;
    if packet.version() != 6 || packet.src_addr().is_multicast() {
        return Err(Reason::Malformed);
    }
    let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
    let (protocol, hops) = (packet.next_header(), packet.hop_limit());
    let whole = bytes.get(..packet.total_len()).ok_or(Reason::Malformed)?;
    let payload = whole.get(packet.header_len()..).ok_or(Reason::Malformed)?;
    if protocol == IpProtocol::Ipv6Frag {
        return fragment6(from, to, payload).map(Inner::Part).ok_or(Reason::Malformed);
    }
    Ok(Inner::Ip(Ip { from, to, protocol, hops, packet: whole, payload }))
}
