//! Frames that are sent, but for those of TCP flows.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol,
    Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};

use super::ETHERNET;

/// Bytes of an ICMP error about a packet: its IP header and the first bytes behind it.
const QUOTED: usize = 8;

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

/// An IPv4 packet with `len` bytes behind its header.
pub(crate) fn ipv4(
    ends: Packet,
    (from, to): (Ipv4Addr, Ipv4Addr),
    next_header: IpProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let repr =
        Ipv4Repr { src_addr: from, dst_addr: to, next_header, payload_len: len, hop_limit: 64 };
    let header = repr.buffer_len();
    ends.frame(EthernetProtocol::Ipv4, header + len, |bytes| {
        let mut packet = Ipv4Packet::new_unchecked(bytes);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
        fill(packet.payload_mut());
    })
}

/// A UDP datagram.
pub(crate) fn udp(ends: Packet, from: SocketAddrV4, to: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    let repr = UdpRepr { src_port: from.port(), dst_port: to.port() };
    let len = repr.header_len() + data.len();
    let (source, target) = (IpAddress::Ipv4(*from.ip()), IpAddress::Ipv4(*to.ip()));
    ipv4(ends, (*from.ip(), *to.ip()), IpProtocol::Udp, len, |bytes| {
        let mut packet = UdpPacket::new_unchecked(bytes);
        let fill = |room: &mut [u8]| room.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        let sums = ChecksumCapabilities::default();
        repr.emit(&mut packet, &source, &target, data.len(), fill, &sums);
    })
}

fn icmp(ends: Packet, way: (Ipv4Addr, Ipv4Addr), repr: Icmpv4Repr<'_>) -> Vec<u8> {
    ipv4(ends, way, IpProtocol::Icmp, repr.buffer_len(), |bytes| {
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
    })
}

/// The answer to an echo request.
pub(crate) fn echo_reply(
    ends: Packet,
    way: (Ipv4Addr, Ipv4Addr),
    ident: u16,
    seq_no: u16,
    data: &[u8],
) -> Vec<u8> {
    icmp(ends, way, Icmpv4Repr::EchoReply { ident, seq_no, data })
}

/// Says to the sender of `packet` why it does not arrive. None if it is not worth an answer.
pub(crate) fn unreachable(
    ends: Packet,
    from: Ipv4Addr,
    packet: &[u8],
    reason: Icmpv4DstUnreachable,
) -> Option<Vec<u8>> {
    let packet = Ipv4Packet::new_checked(packet).ok()?;
    let header = Ipv4Repr::parse(&packet, &ChecksumCapabilities::ignored()).ok()?;
    let data = packet.payload().get(..QUOTED)?;
    let repr = Icmpv4Repr::DstUnreachable { reason, header, data };
    Some(icmp(ends, (from, header.src_addr), repr))
}

/// The reset that refuses `segment`, unless it is one itself (RFC 9293, 3.10.7.1).
pub(crate) fn reset_of(
    ends: Packet,
    (from, to): (Ipv4Addr, Ipv4Addr),
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
    let (source, target) = (IpAddress::Ipv4(to), IpAddress::Ipv4(from));
    Some(ipv4(ends, (to, from), IpProtocol::Tcp, repr.buffer_len(), |bytes| {
        let mut packet = TcpPacket::new_unchecked(bytes);
        repr.emit(&mut packet, &source, &target, &ChecksumCapabilities::default());
    }))
}
