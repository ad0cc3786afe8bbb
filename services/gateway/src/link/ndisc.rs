//! Neighbour discovery (RFC 4861): what guests say, what a router says.

use std::net::Ipv6Addr;

use smoltcp::wire::{EthernetAddress, Icmpv6Packet, IpProtocol};

use super::build::ip_with_hops;
use super::{Ip, Packet};
use crate::counters::Reason;

/// All nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// No message of neighbour discovery has passed a router (RFC 4861, 6.1, 7.1).
const NEVER_ROUTED: u8 = 255;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
/// RFC 8106.
const SERVERS: u8 = 25;
const SEARCH: u8 = 31;

/// Of an advertisement: from a router, asked for, replaces what was known.
const FLAGS_OF_ROUTER: u8 = 0xe0;
/// The same that nobody asked for, or somebody without an address.
const FLAGS_TO_ALL: u8 = 0xa0;

/// What a guest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// Is there a router?
    Router,
    /// Who has this address? Somebody without a source means to take it.
    Who(Ipv6Addr),
    /// I have this address.
    Have(Ipv6Addr),
    /// What routers say: other stations' business.
    Other,
}

/// Reads a message that came from `mac`. What it says of link-layer addresses must be true.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn discovery(ip: &Ip<'_>, mac: EthernetAddress) -> Result<Discovery, Reason> {
    let (message, options) = match ip.payload {
        [kind @ ROUTER_SOLICITATION, 0, _, _, _, _, _, _, options @ ..] => ((*kind, None), options),
        [kind @ (SOLICITATION | ADVERTISEMENT), 0, _, _, _, _, _, _, rest @ ..] => {
            let (target, options) = rest.split_first_chunk::<16>().ok_or(Reason::Malformed)?;
            ((*kind, Some(Ipv6Addr::from(*target))), options)
        }
        [ROUTER_ADVERTISEMENT | 137, ..] => return Ok(Discovery::Other),
        _ => return Err(Reason::Malformed),
    };
    let of_nobody = ip.from.is_unspecified();
    let mut left = options;
    while let [kind, units, ..] = left {
        let option = left.get(..8 * usize::from(*units)).filter(|option| !option.is_empty());
        let option = option.ok_or(Reason::Malformed)?;
        let own = option.get(2..8) == Some(mac.0.as_slice()) && !of_nobody;
        if matches!(*kind, SOURCE_LINK_LAYER | TARGET_LINK_LAYER) && !own {
            return Err(Reason::Malformed);
        }
        left = left.get(option.len()..).unwrap_or_default();
    }
    if ip.hops != NEVER_ROUTED || !left.is_empty() {
        return Err(Reason::Malformed);
    }
    match message {
        (ROUTER_SOLICITATION, _) => Ok(Discovery::Router),
        (_, Some(target)) if target.is_multicast() => Err(Reason::Malformed),
        (SOLICITATION, Some(target)) => Ok(Discovery::Who(target)),
        (_, Some(target)) if !of_nobody => Ok(Discovery::Have(target)),
        _ => Err(Reason::Malformed),
    }
}

/// The group that whoever has `address` listens to (RFC 4291, 2.7.1).
pub(crate) fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (a & 0xff), b)
}

/// The MAC address of a group (RFC 2464, 7).
pub(crate) fn group(address: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = address.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

fn message(ends: Packet, (from, to): (Ipv6Addr, Ipv6Addr), bytes: &[u8]) -> Vec<u8> {
    let way = (from.into(), to.into());
    ip_with_hops(ends, way, IpProtocol::Icmpv6, NEVER_ROUTED, bytes.len(), |room| {
        room.copy_from_slice(bytes);
        Icmpv6Packet::new_unchecked(room).fill_checksum(&from, &to);
    })
}

fn about(kind: u8, flags: u8, target: Ipv6Addr, option: u8, mac: EthernetAddress) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    bytes.extend(target.octets());
    bytes.extend([option, 1]);
    bytes.extend(mac.0);
    bytes
}

/// Asks who has `target`.
pub(crate) fn solicitation(mac: EthernetAddress, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let to = solicited(target);
    let bytes = about(SOLICITATION, 0, target, SOURCE_LINK_LAYER, mac);
    message(Packet { from: mac, to: group(to) }, (from, to), &bytes)
}

/// Says that `target` is ours to whoever asked. What is said to all, since that one has no address,
/// goes to its NIC alone all the same (RFC 6085): it does not decide how often all are told.
pub(crate) fn advertisement(ends: Packet, target: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let all = to.is_unspecified();
    let flags = if all { FLAGS_TO_ALL } else { FLAGS_OF_ROUTER };
    let bytes = about(ADVERTISEMENT, flags, target, TARGET_LINK_LAYER, ends.from);
    let to = if all { ALL_NODES } else { to };
    message(ends, (target, to), &bytes)
}

/// What a router says of its LAN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advert<'a> {
    /// Seconds for which it leads outside; 0: it does not.
    pub(crate) way_out: u16,
    pub(crate) mtu: u16,
    pub(crate) prefix: Ipv6Addr,
    /// The server of names, what names end in (as DNS writes it), and seconds for which that holds.
    pub(crate) names: Option<(Ipv6Addr, &'a [u8], u32)>,
}

/// Seconds that a guest may use an address after the router was heard last, and use it for new
/// connections.
const LIFETIMES: (u32, u32) = (86_400, 14_400);

/// A router's advertisement.
pub(crate) fn router(ends: Packet, from: Ipv6Addr, to: Ipv6Addr, advert: Advert<'_>) -> Vec<u8> {
    // Addresses are made by guests themselves; there is more to be learned by DHCPv6.
    let other = if advert.names.is_some() { 0x40 } else { 0 };
    let mut bytes = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, other];
    bytes.extend(advert.way_out.to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend([SOURCE_LINK_LAYER, 1]);
    bytes.extend(ends.from.0);
    bytes.extend([MTU, 1, 0, 0]);
    bytes.extend(u32::from(advert.mtu).to_be_bytes());
    // On this link, and good for addresses made by guests.
    bytes.extend([PREFIX, 4, 64, 0xc0]);
    bytes.extend(LIFETIMES.0.to_be_bytes());
    bytes.extend(LIFETIMES.1.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(advert.prefix.octets());
    if let Some((server, search, seconds)) = advert.names {
        bytes.extend([SERVERS, 3, 0, 0]);
        bytes.extend(seconds.to_be_bytes());
        bytes.extend(server.octets());
        let units = (8 + search.len()).div_ceil(8);
        bytes.extend([SEARCH, u8::try_from(units).unwrap_or(0), 0, 0]);
        bytes.extend(seconds.to_be_bytes());
        bytes.extend(search);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    message(ends, (from, to), &bytes)
}
