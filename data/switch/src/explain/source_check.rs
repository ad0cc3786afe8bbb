//! What a frame claims about its sender, and which claim is refused.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;

use vmlan_frame::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Neighbour};
use vmlan_frame::{Headers, Mac, Reason};

use crate::policy::{Macs, SourceCheck};

/// Below this an EtherType is a length (IEEE 802.3 section 3.2.6).
const FIRST_ETHERTYPE: u16 = 0x600;

/// Who the sender of a frame claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// By the source MAC address.
    pub mac: Mac,
    /// By the source IP address, or by ARP's sender address.
    pub ip: Option<IpAddr>,
    /// The claim is in an ARP message.
    pub by_arp: bool,
}

/// An address that a frame claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A MAC address.
    Mac(Mac),
    /// An IP address.
    Ip(IpAddr),
}

/// A setting of [`SourceCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimSetting {
    /// [`SourceCheck::macs`].
    Macs,
    /// [`SourceCheck::ips`].
    Ips,
    /// [`SourceCheck::dhcp_guard`].
    DhcpGuard,
    /// [`SourceCheck::ra_guard`].
    RaGuard,
}

/// Where a frame names an IP address as its sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As the source of the packet.
    Source,
    /// In ARP.
    Arp,
    /// In a neighbour advertisement.
    Advertisement,
    /// In a neighbour solicitation for its own use (duplicate address detection).
    Solicitation,
}

/// What is wrong with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFault {
    /// A source MAC address that no frame can come from.
    BadSource(Mac),
    /// The port sent from another address first.
    NotFirst {
        /// The source MAC address.
        mac: Mac,
        /// The address that was seen first.
        first: Mac,
    },
    /// The source MAC address is not in the port's list.
    NotListed(Mac),
    /// The IP address is not in the port's list.
    NotOwn(Naming, IpAddr),
    /// The IP address cannot be anybody's: unspecified, a group's, or broadcast.
    Nobodys(Naming, IpAddr),
    /// There is no source address.
    NoSource,
    /// ARP names another sender than the source MAC address.
    ArpSender {
        /// The source MAC address.
        mac: Mac,
        /// What ARP says.
        sender: Mac,
    },
    /// ARP about an address that could not be read.
    Arp,
    /// Neighbour discovery with a hop limit other than 255 (RFC 4861 section 6.1).
    HopLimit(u8),
    /// Neighbour discovery names another link-layer address than the source MAC address.
    LinkLayer {
        /// The source MAC address.
        mac: Mac,
        /// What the message says.
        other: Mac,
    },
    /// Another message of neighbour discovery that is not about the sender.
    Neighbour,
    /// An answer of a DHCP server.
    DhcpServer,
    /// An advertisement or a redirect of a router.
    Router,
    /// What is not understood to its end cannot be checked.
    NotParsed(Unparsed),
}

/// What was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// More than one tag.
    Tags,
    /// A fragment of an IP packet.
    Fragment,
    /// ARP that is cut short, or for other address families.
    Arp,
    /// IP headers that contradict the frame or each other.
    Ip,
    /// A frame of IEEE 802.3, with this length.
    Length(u16),
    /// This EtherType.
    EtherType(u16),
}

impl ClaimFault {
    /// The address that was refused because it is not its sender's; `None` for other faults.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Self::NotFirst { mac, .. } | Self::NotListed(mac) => Some(Claim::Mac(*mac)),
            Self::NotOwn(_, ip) => Some(Claim::Ip(*ip)),
            _ => None,
        }
    }

    /// Why `claims` refuse a frame for `reason`.
    pub(super) fn of(reason: Reason, source_check: &SourceCheck, head: &[u8], len: usize) -> Self {
        let h = Headers::parse(head, len);
        let mac = source(head);
        match reason {
            Reason::SpoofedMac if mac.is_group() || mac == Mac::default() => Self::BadSource(mac),
            Reason::SpoofedMac => match &source_check.macs {
                Macs::First(first) => {
                    Self::NotFirst { mac, first: Mac::from_bits(first.0.load(Ordering::Relaxed)) }
                }
                _ => Self::NotListed(mac),
            },
            Reason::SpoofedIp => {
                let from = h.addresses(head).and_then(|(from, _)| ip(from));
                from.map_or(Self::NoSource, |ip| not_own(Naming::Source, ip))
            }
            Reason::SpoofedArp => Self::of_arp(&h, head, len),
            Reason::SpoofedNd => Self::of_discovery(&h, head),
            Reason::DhcpGuard => Self::DhcpServer,
            Reason::RaGuard => Self::Router,
            _ => Self::NotParsed(not_parsed(&h)),
        }
    }

    fn of_arp(h: &Headers, head: &[u8], len: usize) -> Self {
        let mac = source(head);
        match h.arp(head, len) {
            Some(arp) if arp.sender.0 != mac => Self::ArpSender { mac, sender: arp.sender.0 },
            Some(arp) => {
                // A probe is about its target.
                let probe = arp.sender.1 == [0; 4];
                let about = if probe { arp.target.1 } else { arp.sender.1 };
                not_own(Naming::Arp, about.into())
            }
            None => Self::Arp,
        }
    }

    fn of_discovery(h: &Headers, head: &[u8]) -> Self {
        let mac = source(head);
        let Some(message) = h.neighbour(head) else { return Self::Neighbour };
        if message.hop_limit != 255 {
            return Self::HopLimit(message.hop_limit);
        }
        if let Some(other) = message.link_layers().find(|m| *m != mac) {
            return Self::LinkLayer { mac, other };
        }
        match (message.kind, message.target) {
            (Neighbour::NA, Some(target)) => not_own(Naming::Advertisement, target.into()),
            (Neighbour::NS, Some(target)) => not_own(Naming::Solicitation, target.into()),
            _ => Self::Neighbour,
        }
    }
}

impl Claimed {
    /// What the frame claims.
    pub(super) fn by(head: &[u8], len: usize) -> Self {
        let h = Headers::parse(head, len);
        let mac = source(head);
        if let Some(arp) = h.arp(head, len) {
            let ip = Some(Ipv4Addr::from(arp.sender.1).into());
            return Self { mac, ip, by_arp: true };
        }
        let ip = h.addresses(head).and_then(|(from, _)| ip(from));
        Self { mac, ip, by_arp: false }
    }
}

/// The settings of which each refuses the frame by itself; all settings, if none does.
pub(super) fn deciding(source_check: &SourceCheck, head: &[u8], len: usize) -> Vec<ClaimSetting> {
    let SourceCheck { macs, ips, free, dhcp_guard, ra_guard } = source_check.clone();
    let none = SourceCheck::default;
    let alone = [
        (ClaimSetting::Macs, SourceCheck { macs, ..none() }),
        (ClaimSetting::Ips, SourceCheck { ips, free, ..none() }),
        (ClaimSetting::DhcpGuard, SourceCheck { dhcp_guard, ..none() }),
        (ClaimSetting::RaGuard, SourceCheck { ra_guard, ..none() }),
    ];
    let refuse = alone.iter().filter(|(_, c)| c.peek(head, len).is_err());
    let settings: Vec<_> = refuse.map(|(setting, _)| *setting).collect();
    if !settings.is_empty() {
        return settings;
    }
    alone.iter().filter(|(_, c)| !c.is_any()).map(|(setting, _)| *setting).collect()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match (bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
        (Some(v6), _) => Some(IpAddr::from(*v6)),
        (_, v4) => v4.map(|v4| IpAddr::from(*v4)),
    }
}

fn source(head: &[u8]) -> Mac {
    let bytes = head.get(6..12).and_then(|b| b.first_chunk::<6>());
    bytes.map_or_else(Mac::default, |b| Mac::new(*b))
}

fn not_own(naming: Naming, ip: IpAddr) -> ClaimFault {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    match broadcast || ip.is_unspecified() || ip.is_multicast() {
        true => ClaimFault::Nobodys(naming, ip),
        false => ClaimFault::NotOwn(naming, ip),
    }
}

fn not_parsed(h: &Headers) -> Unparsed {
    match h.ethertype {
        _ if h.tags > 1 => Unparsed::Tags,
        _ if h.fragment => Unparsed::Fragment,
        ETHERTYPE_ARP => Unparsed::Arp,
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Unparsed::Ip,
        length if length < FIRST_ETHERTYPE => Unparsed::Length(length),
        ethertype => Unparsed::EtherType(ethertype),
    }
}
