//! The one parser of a frame's headers. Everything that decides by them (offload checks, flow hash,
//! policy) uses this, so that no two parts of the switch can disagree about a frame.
//!
//! # Contract
//!
//! It never panics, looks only at the snapshot, and says what it did *not* understand: an offset is
//! set only if what it points at was reached by headers that are whole and inside the snapshot.
//! Code that enforces something must treat a frame that is not [`Headers::parsed`] as hostile,
//! except for the two kinds of packet that [`Headers::understood`] names.

mod arp;
mod membership;
mod neighbour;
mod options;
#[cfg(test)]
mod tests;
mod too_big;

pub use arp::{Arp, announcement};
pub use membership::{IGMP, Membership, Records};
pub use neighbour::Neighbour;
pub use too_big::{TOO_BIG, too_big};

use crate::HEAD;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of RARP (RFC 903).
pub const ETHERTYPE_RARP: u16 = 0x8035;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of a customer VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of a service VLAN tag (IEEE 802.1ad).
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

const MAX_TAGS: u8 = 2; // Tags a frame may carry and still be looked into.

/// Extension headers walked: each kind once, destination options twice (RFC 8200 section 4.1), and
/// some slack. Beyond that the packet counts as not parsed.
const MAX_EXTENSIONS: usize = 8;

/// Bytes of the fixed IPv6 header.
pub(crate) const IPV6_HEADER: usize = 40;

/// What the packet behind the Ethernet header is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Not IP, or an IP header that is broken or not whole in the snapshot.
    #[default]
    Other,
    /// IPv4, its header with all options in the snapshot.
    Ipv4,
    /// IPv6, its fixed header in the snapshot.
    Ipv6,
}

/// Where a frame's headers are. All offsets and lengths are bytes from the frame's start; 0 means
/// "not reached".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// VLAN tags, at most two. A third one is left as [`Headers::ethertype`].
    pub tags: u8,
    /// Tag control information of the outermost tag (IEEE 802.1Q section 9.6), if there is one.
    pub tci: Option<u16>,
    /// What follows the tags. Below 0x600 it is an IEEE 802.3 length.
    pub ethertype: u16,
    /// Where the packet starts.
    pub l3: usize,
    /// What it is.
    pub network: Network,
    /// Bytes the IP header says the packet has, that header included. A claim: compare it, or see
    /// [`Headers::parsed`].
    pub ip_len: usize,
    /// A fragment, or an IPv6 packet with a fragment header ("atomic fragment") (RFC 791, RFC 8200
    /// section 4.5).
    pub fragment: bool,
    /// There is an IPv6 routing header: the destination is not the final one.
    pub routing: bool,
    /// A fragment other than the first: it has no upper layer's header, and its length covers those
    /// it has.
    pub later: bool,
    /// Extension headers follow the fragment header: they are part of what is fragmented, so that
    /// another fragment may overwrite what comes after them (RFC 5722, RFC 7112).
    pub split: bool,
    /// Options that send the packet another way (IPv4 source routes, routing header type 0) or give
    /// it another source (Mobile IPv6's home address), or options that cannot be read.
    pub detour: bool,
    /// The upper layer's protocol number; meaningful if [`Headers::l4`] is set or this is a
    /// fragment.
    pub protocol: u8,
    /// Where the upper layer's header starts. Not set in fragments other than the first.
    pub l4: usize,
    /// Bytes of all headers through a TCP or UDP header that is whole in the snapshot.
    pub header_len: usize,
    /// IP, understood through its last header: every header whole in the snapshot, every length
    /// (IP's, UDP's) inside the frame and large enough for the headers. Upper layers other than TCP
    /// and UDP were located but not looked into.
    pub parsed: bool,
}

/// The big-endian number at `at`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at + 2) {
        Some([a, b]) => Some(u16::from_be_bytes([*a, *b])),
        _ => None,
    }
}

impl Headers {
    /// Parses the snapshot `head` of a frame of `len` bytes.
    #[inline]
    pub fn parse(head: &[u8], len: usize) -> Self {
        let head = head.get(..HEAD.min(len)).unwrap_or(head);
        let mut h = Self::default();
        let whole = h.ethernet(head).and_then(|()| match h.ethertype {
            ETHERTYPE_IPV4 => h.ipv4(head),
            ETHERTYPE_IPV6 => h.ipv6(head),
            _ => None,
        });
        h.parsed = whole.is_some() && h.lengths_agree(head, len);
        h
    }

    /// Source and destination IP address, 4 or 16 bytes each, out of the same snapshot.
    #[inline]
    pub fn addresses<'h>(&self, head: &'h [u8]) -> Option<(&'h [u8], &'h [u8])> {
        let (first, size) = match self.network {
            Network::Ipv4 => (self.l3 + 12, 4),
            Network::Ipv6 => (self.l3 + 8, 16),
            Network::Other => return None,
        };
        head.get(first..first + 2 * size).map(|both| both.split_at(size))
    }

    /// One past the last byte of an IPv4 header, options included, out of the same snapshot. It is
    /// set in fragments other than the first, too, which have no [`Headers::l4`].
    #[inline]
    pub fn ipv4_end(&self, head: &[u8]) -> Option<usize> {
        let first = head.get(self.l3).filter(|_| self.network == Network::Ipv4)?;
        Some(self.l3 + 4 * usize::from(first & 15))
    }

    /// The sender left the length to the device, as drivers of some NICs do for segmentation.
    pub fn length_left_out(&self) -> bool {
        match self.network {
            Network::Ipv4 => self.ip_len == 0,
            Network::Ipv6 => self.ip_len == IPV6_HEADER,
            Network::Other => false,
        }
    }

    /// As much was understood as a frame of `len` bytes has: [`Headers::parsed`]; or the TCP or UDP
    /// header of a packet that left its length to the device; or the headers of a
    /// [`Headers::later`] fragment.
    #[inline]
    pub fn understood(&self, len: usize) -> bool {
        let rest = self.header_len != 0 && self.header_len <= len && !self.fragment;
        self.parsed
            || (self.length_left_out() && rest && !self.routing)
            || (self.later && self.l3 + self.ip_len <= len)
    }

    /// Source and destination port of TCP or UDP.
    #[inline]
    pub fn ports(&self, head: &[u8]) -> Option<(u16, u16)> {
        let at = (self.header_len != 0).then_some(self.l4)?;
        Some((be16(head, at)?, be16(head, at + 2)?))
    }

    fn ethernet(&mut self, head: &[u8]) -> Option<()> {
        let mut at = 12;
        self.ethertype = be16(head, at)?;
        while self.tags < MAX_TAGS && is_tag(self.ethertype) {
            let tci = be16(head, at + 2)?;
            let next = be16(head, at + 4)?;
            self.tci = self.tci.or(Some(tci));
            self.tags += 1;
            self.ethertype = next;
            at += 4;
        }
        self.l3 = at + 2;
        Some(())
    }

    fn ipv4(&mut self, head: &[u8]) -> Option<()> {
        let at = self.l3;
        let first = *head.get(at)?;
        let size = usize::from(first & 15) * 4;
        if first >> 4 != 4 || size < 20 {
            return None;
        }
        let ip = head.get(at..at + size)?;
        let fragment = be16(ip, 6)?;
        self.network = Network::Ipv4;
        self.ip_len = usize::from(be16(ip, 2)?);
        self.protocol = *ip.get(9)?;
        self.fragment = fragment & 0x3fff != 0;
        if size > 20 {
            self.detour = options::source_route(ip.get(20..)?);
        }
        if fragment & 0x1fff != 0 {
            self.later = self.ip_len >= size;
            return None;
        }
        self.l4 = at + size;
        self.transport(head)
    }

    fn ipv6(&mut self, head: &[u8]) -> Option<()> {
        let ip = head.get(self.l3..self.l3 + IPV6_HEADER)?;
        if ip.first()? >> 4 != 6 {
            return None;
        }
        self.network = Network::Ipv6;
        self.ip_len = IPV6_HEADER + usize::from(be16(ip, 4)?);
        let (mut next, mut at) = (*ip.get(6)?, self.l3 + IPV6_HEADER);
        for i in 0..=MAX_EXTENSIONS {
            if !matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
                (self.protocol, self.l4) = (next, at);
                return self.transport(head);
            }
            // RFC 8200 section 4.1: hop-by-hop options come first or not at all.
            if next == HOP_BY_HOP && i > 0 {
                return None;
            }
            (next, at) = self.extension(head, next, at)?;
        }
        None
    }

    /// Steps over the extension header `kind` at `at`: what comes next, and where.
    fn extension(&mut self, head: &[u8], kind: u8, at: usize) -> Option<(u8, usize)> {
        let next = *head.get(at)?;
        let units = if kind == FRAGMENT { 0 } else { usize::from(*head.get(at + 1)?) };
        let size = 8 + 8 * units;
        let extension = head.get(at..at + size)?;
        self.split |= self.fragment;
        match kind {
            ROUTING => {
                self.routing = true;
                self.detour |= extension.get(2) == Some(&0);
            }
            DESTINATION => self.detour |= options::home_address(extension.get(2..)?),
            FRAGMENT => {
                self.fragment = true;
                self.protocol = next;
                if be16(extension, 2)? & 0xfff8 != 0 {
                    self.later = at + size <= self.l3 + self.ip_len;
                    return None;
                }
            }
            _ => {}
        }
        Some((next, at + size))
    }

    fn transport(&mut self, head: &[u8]) -> Option<()> {
        let size = match self.protocol {
            TCP => usize::from(*head.get(self.l4 + 12)? >> 4) * 4,
            UDP => 8,
            _ => return Some(()),
        };
        if self.protocol == TCP && size < 20 {
            return None;
        }
        head.get(self.l4..self.l4 + size)?;
        self.header_len = self.l4 + size;
        Some(())
    }

    /// The IP length lies in the frame, and what it covers holds the headers found.
    fn lengths_agree(&self, head: &[u8], len: usize) -> bool {
        let end = self.l3 + self.ip_len;
        if end > len || self.l4.max(self.header_len) > end {
            return false;
        }
        if self.protocol != UDP {
            return true;
        }
        let datagram = be16(head, self.l4 + 4).map_or(0, usize::from);
        datagram >= 8 && (self.fragment || self.l4 + datagram <= end)
    }
}

/// True for the EtherTypes of VLAN tags.
#[inline]
pub(crate) fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ)
}
