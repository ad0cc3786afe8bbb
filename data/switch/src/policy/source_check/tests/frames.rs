//! Frames, honest ones unless a test says otherwise: from [`MAC`], 10.0.0.1, 2001:db8::1, to a
//! neighbour.
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::fuzz::{LINK_LOCAL, MAC};

pub const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub const ME: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const YOU: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
pub const ME6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const YOU6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

/// Next headers of IPv6.
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION: u8 = 60;

pub fn ethernet(from: [u8; 6], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    [&OTHER[..], &from, &ethertype.to_be_bytes(), packet].concat()
}

/// Puts tags of these types, outermost first, into a frame.
pub fn tagged(frame: &[u8], types: &[u16]) -> Vec<u8> {
    let tags = types.iter().flat_map(|t| [t.to_be_bytes(), 5u16.to_be_bytes()].concat());
    [&frame[..12], &tags.collect::<Vec<_>>(), &frame[12..]].concat()
}

/// An IPv4 packet in a frame.
#[derive(Clone)]
pub struct V4 {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    pub options: Vec<u8>,
    /// Flags and offset.
    pub fragment: u16,
    pub protocol: u8,
    pub payload: Vec<u8>,
}

impl Default for V4 {
    fn default() -> Self {
        let (options, fragment) = (vec![], 0);
        Self { from: ME, to: YOU, options, fragment, protocol: UDP, payload: udp(4000, 53) }
    }
}

impl V4 {
    pub fn frame(&self) -> Vec<u8> {
        let size = 20 + self.options.len();
        let mut ip = vec![0x40 | (size / 4) as u8, 0];
        ip.extend(((size + self.payload.len()) as u16).to_be_bytes());
        ip.extend([0, 7]);
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([64, self.protocol, 0, 0]);
        ip.extend(self.from.octets());
        ip.extend(self.to.octets());
        ip.extend(&self.options);
        ip.extend(&self.payload);
        ethernet(MAC, 0x0800, &ip)
    }
}

/// An IPv6 packet in a frame.
#[derive(Clone)]
pub struct V6 {
    pub from: Ipv6Addr,
    pub to: Ipv6Addr,
    pub hops: u8,
    /// Extension headers: kind, and what follows the next header's number.
    pub chain: Vec<(u8, Vec<u8>)>,
    pub protocol: u8,
    pub payload: Vec<u8>,
}

impl Default for V6 {
    fn default() -> Self {
        let (chain, payload) = (vec![], udp(4000, 53));
        Self { from: ME6, to: YOU6, hops: 255, chain, protocol: UDP, payload }
    }
}

impl V6 {
    pub fn icmp(payload: Vec<u8>) -> Self {
        Self { protocol: ICMPV6, payload, ..Self::default() }
    }

    pub fn frame(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        for (i, (_, body)) in self.chain.iter().enumerate() {
            rest.push(self.chain.get(i + 1).map_or(self.protocol, |next| next.0));
            rest.extend(body);
        }
        rest.extend(&self.payload);
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend((rest.len() as u16).to_be_bytes());
        ip.extend([self.chain.first().map_or(self.protocol, |first| first.0), self.hops]);
        ip.extend(self.from.octets());
        ip.extend(self.to.octets());
        ip.extend(rest);
        ethernet(MAC, 0x86dd, &ip)
    }
}

/// 8 bytes of options that do nothing.
pub fn padding() -> Vec<u8> {
    vec![0, 1, 4, 0, 0, 0, 0]
}

/// A fragment header's rest: where its bytes begin, in units of 8, and whether more follow.
pub fn fragment(offset: u16, more: bool) -> (u8, Vec<u8>) {
    let [a, b] = (offset << 3 | u16::from(more)).to_be_bytes();
    (FRAGMENT, vec![0, a, b, 0, 0, 0, 1])
}

pub fn udp(from: u16, to: u16) -> Vec<u8> {
    let words = [from, to, 24, 0].map(u16::to_be_bytes);
    [&words.concat()[..], &[5; 16]].concat()
}

pub fn tcp(payload: usize) -> Vec<u8> {
    [&[16, 0, 0, 80][..], &[0; 8], &[0x50, 0x10], &[0; 6], &vec![7; payload]].concat()
}

/// An ARP packet from [`MAC`].
pub fn arp(operation: u16, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    arp_packet(0x0806, operation, (MAC, sender), ([0; 6], target))
}

pub fn arp_packet(
    ethertype: u16,
    operation: u16,
    sender: ([u8; 6], Ipv4Addr),
    target: ([u8; 6], Ipv4Addr),
) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    for (mac, ip) in [sender, target] {
        packet.extend(mac);
        packet.extend(ip.octets());
    }
    packet.resize(46, 0);
    ethernet(MAC, ethertype, &packet)
}

/// An option with a link-layer address: kind 1 source, 2 target.
pub fn link_layer(kind: u8, mac: [u8; 6]) -> Vec<u8> {
    [&[kind, 1], &mac[..]].concat()
}

/// A router solicitation.
pub fn rs(options: &[u8]) -> Vec<u8> {
    [&[133, 0, 0, 0, 0, 0, 0, 0], options].concat()
}

/// A router advertisement.
pub fn ra(options: &[u8]) -> Vec<u8> {
    [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8], options].concat()
}

/// A neighbour solicitation (135) or advertisement (136).
pub fn neighbour(kind: u8, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0x60, 0, 0, 0], &target.octets()[..], options].concat()
}

pub fn redirect(target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&[137, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..], &YOU6.octets(), options].concat()
}

/// The solicited-node address of `target`.
pub fn solicited(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The solicitation by which a host finds out whether it may have `target`.
pub fn dad(target: Ipv6Addr) -> V6 {
    let message = neighbour(135, target, &[]);
    V6 { from: Ipv6Addr::UNSPECIFIED, to: solicited(target), ..V6::icmp(message) }
}

/// A listener report of version 2 as Linux sends it: a router alert in front.
pub fn listener_report(from: Ipv6Addr) -> V6 {
    let groups = solicited(LINK_LOCAL).octets();
    let message = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &groups].concat();
    let alert = (HOP_BY_HOP, vec![0, 5, 2, 0, 0, 1, 0]);
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    V6 { from, to, hops: 1, chain: vec![alert], ..V6::icmp(message) }
}

/// Honest frames of all kinds.
pub fn honest() -> Vec<Vec<u8>> {
    let mut all = vec![
        V4::default().frame(),
        V4 { protocol: TCP, payload: tcp(1460), ..V4::default() }.frame(),
        V4 { protocol: 1, payload: vec![8, 0, 0, 0, 0, 1, 0, 1], ..V4::default() }.frame(),
        V4 { protocol: 0, ..V4::default() }.frame(),
        V4 { protocol: 4, payload: vec![0x45; 60], ..V4::default() }.frame(),
        V4 { options: vec![148, 4, 0, 0], protocol: 2, ..V4::default() }.frame(),
        V4 { fragment: 0x2000, ..V4::default() }.frame(),
        V4 { fragment: 0x2003, ..V4::default() }.frame(),
        dhcp_discover().frame(),
        arp(1, ME, YOU),
        arp(2, ME, YOU),
        arp(1, ME, ME),
        arp(1, Ipv4Addr::UNSPECIFIED, ME),
        arp_packet(0x8035, 3, (MAC, Ipv4Addr::UNSPECIFIED), (MAC, Ipv4Addr::UNSPECIFIED)),
        V6::default().frame(),
        V6 { protocol: TCP, payload: tcp(1440), ..V6::default() }.frame(),
        V6 { from: LINK_LOCAL, payload: udp(546, 547), ..V6::default() }.frame(),
        V6 { chain: vec![(DESTINATION, padding()), fragment(0, true)], ..V6::default() }.frame(),
        V6 { chain: vec![fragment(4, true)], ..V6::default() }.frame(),
        V6 { chain: vec![fragment(0, false)], ..V6::icmp(vec![128, 0, 0, 0, 0, 0, 0, 1]) }.frame(),
        dad(ME6).frame(),
        dad(LINK_LOCAL).frame(),
        listener_report(Ipv6Addr::UNSPECIFIED).frame(),
        listener_report(LINK_LOCAL).frame(),
    ];
    let messages = [
        rs(&link_layer(1, MAC)),
        neighbour(135, YOU6, &link_layer(1, MAC)),
        neighbour(136, ME6, &link_layer(2, MAC)),
        neighbour(136, LINK_LOCAL, &[&[14, 1, 1, 2, 3, 4, 5, 6], &link_layer(2, MAC)[..]].concat()),
        redirect(ME6, &link_layer(2, MAC)),
        ra(&[&[5, 1, 0, 0, 0, 0, 5, 220], &link_layer(1, MAC)[..]].concat()),
    ];
    all.extend(messages.map(|m| V6 { from: LINK_LOCAL, ..V6::icmp(m) }.frame()));
    all
}

pub fn dhcp_discover() -> V4 {
    let (from, to) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    V4 { from, to, payload: udp(68, 67), ..V4::default() }
}
