//! Frames that are sent, but for those of TCP flows.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable,
    Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr, Ipv6Packet,
    Ipv6Repr, TcpControl, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};

use super::ETHERNET;

/// Bytes of an ICMP error about a packet: its IP header and the first bytes behind it.
const QUOTED: usize = 8;
/// How far packets go that are for somebody on the LAN.
const HOPS: u8 = 64;

/// A frame's ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) from: EthernetAddress,
    pub(crate) to: EthernetAddress,
}

impl Packet {
    fn frame(
        self,
        kind: EthernetProtocol,
        payload: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Vec<u8> {
        let mut bytes = vec![0; (ETHERNET + payload).max(60)];
        let repr = EthernetRepr { src_addr: self.from, dst_addr: self.to, ethertype: kind };
        repr.emit(&mut EthernetFrame::new_unchecked(bytes.as_mut_slice()));
        bytes.get_mut(ETHERNET..ETHERNET + payload).into_iter().for_each(fill_with(fill));
        bytes
    }
}

/// For the one piece that there is.
fn fill_with<'b>(fill: impl FnOnce(&mut [u8])) -> impl FnMut(&'b mut [u8]) {
    let mut fill = Some(fill);
    move |bytes| fill.take().into_iter().for_each(|fill| fill(bytes))
}

/// An ARP request (`to` is everybody) or reply.
pub(crate) fn arp(
    ends: Packet,
    operation: ArpOperation,
    from: Ipv4Addr,
    target: EthernetAddress,
    to: Ipv4Addr,
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: ends.from,
        source_protocol_addr: from,
        target_hardware_addr: target,
        target_protocol_addr: to,
    };
    ends.frame(EthernetProtocol::Arp, repr.buffer_len(), |bytes| {
        repr.emit(&mut ArpPacket::new_unchecked(bytes));
    })
}

/// An IP packet with `len` bytes behind its header. Both addresses are of one family; nothing comes
/// of others.
pub(crate) fn ip(
    ends: Packet,
    (from, to): (IpAddr, IpAddr),
    next_header: IpProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    ip_with_hops(ends, (from, to), next_header, HOPS, len, fill)
}

/// The same, going no further than so many hops.
pub(super) fn ip_with_hops(
    ends: Packet,
    (from, to): (IpAddr, IpAddr),
    next_header: IpProtocol,
    hop_limit: u8,
    payload_len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let (repr, kind) = match (from, to) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let repr = Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
            (IpRepr::Ipv4(repr), EthernetProtocol::Ipv4)
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            let repr = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
            (IpRepr::Ipv6(repr), EthernetProtocol::Ipv6)
        }
        _ => return Vec::new(),
    };
    let header = repr.header_len();
    ends.frame(kind, header + payload_len, |bytes| {
        repr.emit(&mut *bytes, &ChecksumCapabilities::default());
        bytes.get_mut(header..).into_iter().for_each(fill_with(fill));
    })
}

/// A UDP datagram.
pub(crate) fn udp(ends: Packet, from: SocketAddr, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let repr = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let len = repr.header_len() + data.len();
    let (source, target): (IpAddress, IpAddress) = (from.ip().into(), to.ip().into());
    ip(ends, (from.ip(), to.ip()), IpProtocol::Udp, len, |bytes| {
        let mut packet = UdpPacket::new_unchecked(bytes);
        let fill = |room: &mut [u8]| room.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        let sums = ChecksumCapabilities::default();
        repr.emit(&mut packet, &source, &target, data.len(), fill, &sums);
    })
}

fn icmp(ends: Packet, way: (Ipv4Addr, Ipv4Addr), repr: Icmpv4Repr<'_>) -> Vec<u8> {
    ip(ends, (way.0.into(), way.1.into()), IpProtocol::Icmp, repr.buffer_len(), |bytes| {
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
    })
}

fn icmpv6(
    ends: Packet,
    way: (std::net::Ipv6Addr, std::net::Ipv6Addr),
    repr: Icmpv6Repr<'_>,
) -> Vec<u8> {
    ip(ends, (way.0.into(), way.1.into()), IpProtocol::Icmpv6, repr.buffer_len(), |bytes| {
        let mut packet = Icmpv6Packet::new_unchecked(bytes);
        repr.emit(&way.0, &way.1, &mut packet, &ChecksumCapabilities::default());
    })
}

/// The answer to an echo request.
pub(crate) fn echo_reply(
    ends: Packet,
    (from, to): (IpAddr, IpAddr),
    ident: u16,
    seq_no: u16,
    data: &[u8],
) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            icmp(ends, (from, to), Icmpv4Repr::EchoReply { ident, seq_no, data })
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            icmpv6(ends, (from, to), Icmpv6Repr::EchoReply { ident, seq_no, data })
        }
        _ => Vec::new(),
    }
}

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Port,
    Host,
    Net,
    Prohibited,
}

/// Says to the sender of `packet` why it does not arrive. None if it is not worth an answer.
pub(crate) fn unreachable(
    ends: Packet,
    from: IpAddr,
    packet: &[u8],
    reason: Unreachable,
) -> Option<Vec<u8>> {
    let sums = ChecksumCapabilities::ignored();
    match from {
        IpAddr::V4(from) => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            let header = Ipv4Repr::parse(&packet, &sums).ok()?;
            let data = packet.payload().get(..QUOTED)?;
            let reason = match reason {
                Unreachable::Port => Icmpv4DstUnreachable::PortUnreachable,
                Unreachable::Host => Icmpv4DstUnreachable::HostUnreachable,
                Unreachable::Net => Icmpv4DstUnreachable::NetUnreachable,
                Unreachable::Prohibited => Icmpv4DstUnreachable::CommProhibited,
            };
            let repr = Icmpv4Repr::DstUnreachable { reason, header, data };
            Some(icmp(ends, (from, header.src_addr), repr))
        }
        IpAddr::V6(from) => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            let header = Ipv6Repr::parse(&packet).ok()?;
            let data = packet.payload().get(..QUOTED)?;
            let reason = match reason {
                Unreachable::Port => Icmpv6DstUnreachable::PortUnreachable,
                Unreachable::Host => Icmpv6DstUnreachable::AddrUnreachable,
                Unreachable::Net => Icmpv6DstUnreachable::NoRoute,
                Unreachable::Prohibited => Icmpv6DstUnreachable::AdminProhibit,
            };
            let repr = Icmpv6Repr::DstUnreachable { reason, header, data };
            Some(icmpv6(ends, (from, header.src_addr), repr))
        }
    }
}

/// The reset that refuses `segment`, unless it is one itself (RFC 9293, 3.10.7.1).
pub(crate) fn reset_of(
    ends: Packet,
    (from, to): (IpAddr, IpAddr),
    segment: &[u8],
) -> Option<Vec<u8>> {
    let packet = TcpPacket::new_checked(segment).ok()?;
    if packet.rst() {
        return None;
    }
    let acked = packet.ack();
    let repr = TcpRepr {
        src_port: packet.dst_port(),
        dst_port: packet.src_port(),
        control: TcpControl::Rst,
        seq_number: if acked { packet.ack_number() } else { Default::default() },
        ack_number: (!acked).then(|| packet.seq_number() + packet.segment_len()),
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let (source, target): (IpAddress, IpAddress) = (to.into(), from.into());
    Some(ip(ends, (to, from), IpProtocol::Tcp, repr.buffer_len(), |bytes| {
        let mut packet = TcpPacket::new_unchecked(bytes);
        repr.emit(&mut packet, &source, &target, &ChecksumCapabilities::default());
    }))
}
