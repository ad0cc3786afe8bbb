//! Frames that came, taken apart.

use std::net::{IpAddr, Ipv4Addr};

use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, IpAddress,
    IpProtocol, Ipv4Packet, TcpPacket, UdpPacket,
};

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
}

/// An IP packet.
#[derive(Debug)]
pub(crate) struct Ip<'f> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: IpProtocol,
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
            IpProtocol::Udp => UdpPacket::new_checked(self.payload)
                .is_ok_and(|datagram| datagram.verify_checksum(&from, &to)),
            IpProtocol::Icmp => Icmpv4Packet::new_checked(self.payload)
                .is_ok_and(|message| message.verify_checksum()),
            _ => true,
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
        EthernetProtocol::Ipv4 => Inner::Ip(ipv4(frame.payload())?),
        _ => return Err(Reason::Unknown),
    };
    Ok(Parsed { from, to, inner })
}

fn ipv4(bytes: &[u8]) -> Result<Ip<'_>, Reason> {
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| Reason::Malformed)?;
    let (header, total) = (usize::from(packet.header_len()), usize::from(packet.total_len()));
    if packet.version() != 4 || header < 20 || !packet.verify_checksum() {
        return Err(Reason::Malformed);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(Reason::Fragment);
    }
    let (from, to): (Ipv4Addr, Ipv4Addr) = (packet.src_addr(), packet.dst_addr());
    let whole = bytes.get(..total).ok_or(Reason::Malformed)?;
    let payload = whole.get(header..).ok_or(Reason::Malformed)?;
    let protocol = packet.next_header();
    Ok(Ip { from: from.into(), to: to.into(), protocol, packet: whole, payload })
}
