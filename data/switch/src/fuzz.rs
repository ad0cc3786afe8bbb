//! The body of the fuzz target `claims`: what [`SourceCheck`] lets pass, etherparse must find
//! honest. It shares no code with our parser. Kept inputs are replayed as a plain test.
//!
//! An input is a byte of settings and a frame:
//!
//! | bits | meaning |
//! | --- | --- |
//! | 0, 1 | `macs`: any, first, [`MAC`], [`MAC`] and [`MAC2`] |
//! | 2 | `ips`: [`PREFIXES`] |
//! | 3, 4 | `dhcp_guard`, `ra_guard` |
//! | 5 | all of the frame is seen at once: `len` is that of the snapshot |
#![allow(clippy::indexing_slicing, clippy::panic)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::NdpOptionReadError::UnexpectedSize;
use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NdpOptionsIterator};
use etherparse::{
    ArpOperation, ArpPacketSlice, Icmpv6Slice, IpNumber, Ipv6ExtensionSlice, LaxIpPayloadSlice,
    LaxNetSlice, LaxSlicedPacket, UdpHeaderSlice,
};
use vmlan_frame::{HEAD, Mac};

use crate::policy::{Macs, Prefix, SourceCheck};

/// The port's address.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Another one of its.
pub const MAC2: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The link-local address made of [`MAC`].
pub const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
/// Its IP addresses.
pub const PREFIXES: [(IpAddr, u8); 4] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 32),
    (IpAddr::V4(Ipv4Addr::new(10, 1, 0, 0)), 24),
    (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 128),
    (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0)), 64),
];

/// The claims that the first byte of an input stands for.
pub fn settings(bits: u8) -> SourceCheck {
    let macs = match bits & 3 {
        0 => Macs::Any,
        1 => Macs::First(std::sync::Arc::default()),
        2 => Macs::Listed([Mac::new(MAC)].into()),
        _ => Macs::Listed([Mac::new(MAC), Mac::new(MAC2)].into()),
    };
    let ips = PREFIXES.map(|(address, bits)| Prefix { address, bits });
    SourceCheck {
        macs,
        ips: (bits & 4 != 0).then(|| ips.into()),
        free: None,
        dhcp_guard: bits & 8 != 0,
        ra_guard: bits & 16 != 0,
    }
}

/// Has a frame judged, and checks the judgement. True if it passed.
///
/// # Panics
/// If a frame passes that etherparse finds a lie in or does not understand.
pub fn claims(data: &[u8]) -> bool {
    let Some((bits, frame)) = data.split_first().filter(|(_, frame)| frame.len() >= 14) else {
        return false;
    };
    let head = &frame[..frame.len().min(HEAD)];
    let frame = if bits & 32 == 0 { frame } else { head };
    let source_check = settings(*bits);
    let peeked = source_check.peek(head, frame.len());
    let verdict = source_check.check(head, frame.len());
    assert_eq!(peeked, verdict);
    let mac = Mac::new([6, 7, 8, 9, 10, 11].map(|i: usize| frame[i]));
    let fully = source_check.judge(mac, head, frame.len());
    assert!(verdict == fully || verdict.is_err() && bits & 3 != 0, "the short cut is only that");
    let allowed = [None, None, Some(&[MAC][..]), Some(&[MAC, MAC2])][usize::from(bits & 3)];
    assert!(verdict.is_err() || allowed.is_none_or(|a| a.iter().any(|a| a == &frame[6..12])));
    if verdict.is_ok() && asks(*bits, frame) {
        Witness::new(*bits, frame).questioned();
    }
    verdict.is_ok()
}

/// True if the settings ask for anything in this frame but its source address. The rest may be
/// broken, and etherparse cannot take that: in its lax mode it reads beyond the end of extension
/// headers.
fn asks(bits: u8, frame: &[u8]) -> bool {
    let tags =
        frame[12..].chunks_exact(4).take_while(|t| matches!(t[..2], [0x81, 0] | [0x88, 0xa8]));
    let at = 12 + 4 * tags.count();
    match frame.get(at..at + 2) {
        Some([0x08, 0]) => bits & 12 != 0,
        // Nor do we look into MACsec.
        Some([0x88, 0xe5]) => bits & 4 != 0,
        _ => bits & 31 != 0,
    }
}

/// A frame that passed, and what its port may say.
struct Witness<'a> {
    frame: &'a [u8],
    packet: LaxSlicedPacket<'a>,
    bits: u8,
}

impl<'a> Witness<'a> {
    fn new(bits: u8, frame: &'a [u8]) -> Self {
        let packet = LaxSlicedPacket::from_ethernet(frame).unwrap_or_else(|e| panic!("{e}"));
        Self { frame, packet, bits }
    }

    fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    fn mac(&self) -> &'a [u8] {
        &self.frame[6..12]
    }

    fn own_mac(&self, mac: &[u8]) -> bool {
        mac == self.mac() || self.bits & 3 == 3 && (mac == MAC || mac == MAC2)
    }

    fn own_v4(&self, ip: Ipv4Addr) -> bool {
        !self.has(4) || ip == Ipv4Addr::new(10, 0, 0, 1) || ip.octets()[..3] == [10, 1, 0]
    }

    fn own_v6(&self, ip: Ipv6Addr) -> bool {
        let mut local = LINK_LOCAL.octets();
        local[8..11].copy_from_slice(&self.mac()[..3]);
        local[8] ^= 2;
        local[13..].copy_from_slice(&self.mac()[3..]);
        let listed = ip.segments()[..4] == [0x2001, 0xdb8, 1, 0]
            || ip == Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        !self.has(4) || listed || ip.octets() == local
    }

    fn questioned(&self) {
        assert!(!self.has(4) || self.packet.link_exts.len() < 2, "two tags");
        match &self.packet.net {
            Some(LaxNetSlice::Arp(arp)) => self.arp(arp),
            Some(LaxNetSlice::Ipv4(ip)) => {
                let header = ip.header();
                let later = header.fragments_offset().value() > 0;
                let client = self.udp(ip.payload(), later, (68, 67));
                let source = header.source_addr();
                let asks = client && source.is_unspecified() && header.destination() == [255; 4];
                assert!(asks || self.own_v4(source), "from {source}");
            }
            Some(LaxNetSlice::Ipv6(_)) => self.ipv6(),
            None => self.other(),
        }
    }

    fn other(&self) {
        let payload = self.packet.ether_payload().unwrap_or_else(|| panic!("sealed"));
        if payload.ether_type.0 == 0x8035 && self.bits & 7 != 0 {
            let arp = ArpPacketSlice::from_slice(payload.payload).unwrap_or_else(|e| panic!("{e}"));
            assert!(arp.sender_hw_addr() == self.mac() && arp.target_hw_addr() == self.mac());
            for ip in [arp.sender_protocol_addr(), arp.target_protocol_addr()] {
                assert!(ip == [0; 4] || self.own_v4(v4(ip)));
            }
            return;
        }
        assert!(!self.has(4), "{:?} is neither IP nor ARP", payload.ether_type);
        let kind = payload.ether_type.0;
        let guards_v4 = self.has(8) && kind == 0x0800;
        let names = self.bits & 3 != 0 && kind == 0x0806;
        let looked_into = self.bits & 0x1f != 0 && kind == 0x86dd;
        assert!(!guards_v4 && !names && !looked_into, "not understood: {:?}", self.packet.stop_err);
    }

    fn arp(&self, arp: &ArpPacketSlice<'_>) {
        if self.bits & 7 == 0 {
            return;
        }
        assert_eq!((arp.hw_addr_size(), arp.proto_addr_size()), (6, 4));
        assert_eq!(arp.sender_hw_addr(), self.mac());
        let (sender, target) = (v4(arp.sender_protocol_addr()), v4(arp.target_protocol_addr()));
        let probe = sender.is_unspecified() && arp.operation() == ArpOperation::REQUEST;
        assert!(self.own_v4(sender) || probe && self.own_v4(target), "{sender} says");
    }

    /// UDP of a client; panics if it is of a server that must not be.
    fn udp(&self, ip: &LaxIpPayloadSlice<'_>, later: bool, (client, server): (u16, u16)) -> bool {
        if ip.ip_number != IpNumber::UDP || later {
            return false;
        }
        let ports = UdpHeaderSlice::from_slice(&ip.payload[..ip.payload.len().min(8)])
            .map(|udp| (udp.source_port(), udp.destination_port()));
        if self.has(8) {
            let (from, to) = ports.clone().unwrap_or_else(|e| panic!("{e}"));
            assert!(from != server && to != client, "a DHCP server");
        }
        !ip.fragmented && ports == Ok((client, server))
    }

    fn ipv6(&self) {
        let Some(LaxNetSlice::Ipv6(ip)) = &self.packet.net else { return };
        let fragment = ip.extensions().clone().into_iter().find_map(|e| match e {
            Ipv6ExtensionSlice::Fragment(f) => Some(f.fragment_offset().value()),
            _ => None,
        });
        let later = fragment.is_some_and(|offset| offset > 0);
        self.udp(ip.payload(), later, (546, 547));
        let source = ip.header().source_addr();
        let mut excused = false;
        if ip.payload().ip_number == IpNumber::IPV6_ICMP && !later {
            let message = Icmpv6Slice::from_slice(ip.payload().payload);
            let kind = ip.payload().payload.first().copied().unwrap_or_default();
            assert!(!self.has(16) || !matches!(kind, 134 | 137), "a router");
            excused = source.is_unspecified() && matches!(kind, 131 | 132 | 135 | 143);
            if self.bits & 7 != 0 && (133..=137).contains(&kind) {
                assert!(fragment.is_none() && ip.header().hop_limit() == 255);
                let message = message.unwrap_or_else(|e| panic!("{e}"));
                self.neighbour(&message, source.is_unspecified());
            }
        }
        assert!(excused || self.own_v6(source), "from {source}");
    }

    fn neighbour(&self, message: &Icmpv6Slice<'_>, nobody: bool) {
        use Icmpv6PayloadSlice as P;
        let payload = message.payload_slice().unwrap_or_else(|e| panic!("{e}"));
        let (target, options) = match &payload {
            P::RouterSolicitation(m) => (None, m.options()),
            P::RouterAdvertisement(m) => (None, m.options()),
            P::NeighborSolicitation(m) => (nobody.then(|| m.target_address()), m.options()),
            P::NeighborAdvertisement(m) => (Some(m.target_address()), m.options()),
            P::Redirect(m) => (Some(m.target_address()), m.options()),
            other => panic!("{other:?} is no neighbour discovery"),
        };
        assert!(target.is_none_or(|target| self.own_v6(target)), "about {target:?}");
        let mut rest = options;
        while let Some(option) = NdpOptionsIterator::from_slice(rest).next() {
            let (size, mac) = match &option {
                Ok(o @ NdpOptionSlice::SourceLinkLayerAddress(a)) => {
                    (o.as_bytes().len(), Some(a.link_layer_address()))
                }
                Ok(o @ NdpOptionSlice::TargetLinkLayerAddress(a)) => {
                    (o.as_bytes().len(), Some(a.link_layer_address()))
                }
                Ok(other) => (other.as_bytes().len(), None),
                // etherparse looks into prefixes and so on, not we.
                Err(UnexpectedSize { option_id, actual_size, .. }) if option_id.0 > 2 => {
                    (*actual_size, None)
                }
                Err(e) => panic!("{e:?}"),
            };
            assert!(mac.is_none_or(|mac| self.own_mac(mac) && !nobody), "at {mac:?}");
            rest = &rest[size..];
        }
    }
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}
