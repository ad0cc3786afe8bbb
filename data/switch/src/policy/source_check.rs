//! Who a sender may claim to be.
//!
//! Three questions, each asked only if a setting wants it: is the source MAC address the port's
//! (`macs`); are the IP addresses that the frame claims, wherever they stand, the port's (`ips`);
//! is it a server's or a router's message from a port that is neither (`dhcp_guard`, `ra_guard`).
//! All answers come from the snapshot by way of [`vmlan_frame::Headers`], and what it does not
//! understand is refused. `judge.rs` has the rules; the short cut for common frames is here.
//! `tests/agree.rs` checks that it gives the same answers.

use core::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::{Mac, Reason};

mod judge;
#[cfg(test)]
mod tests;

/// A range of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Its first address.
    pub address: IpAddr,
    /// Leading bits that count: 32 or 128 for one address.
    pub bits: u8,
}

impl Prefix {
    /// True if `ip` is in it.
    #[inline]
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.has_v4(ip.to_bits()),
            IpAddr::V6(ip) => self.has_v6(ip.to_bits()),
        }
    }

    #[inline]
    fn has_v4(&self, ip: u32) -> bool {
        let IpAddr::V4(own) = self.address else { return false };
        // In 64 bits, because 32 of 32 bits may not count.
        u64::from(own.to_bits() ^ ip) >> 32u8.saturating_sub(self.bits) == 0
    }

    #[inline]
    fn has_v6(&self, ip: u128) -> bool {
        let IpAddr::V6(own) = self.address else { return false };
        let ignored = 128u32.saturating_sub(self.bits.into());
        (own.to_bits() ^ ip).checked_shr(ignored).unwrap_or(0) == 0
    }
}

/// The address that was seen first on a port; 0 while none was. Forgotten when its peer
/// disconnects.
#[derive(Debug, Default)]
pub struct FirstMac(pub AtomicU64);

impl FirstMac {
    /// True if `mac` is the address seen first, which it may become here if `learn`.
    #[inline]
    fn is(&self, mac: Mac, learn: bool) -> bool {
        // The address is all there is to know: nothing else is published by it.
        let seen = self.0.load(Ordering::Relaxed);
        if seen == 0 { self.claim(mac, learn) } else { seen == mac.bits() }
    }

    #[cold]
    fn claim(&self, mac: Mac, learn: bool) -> bool {
        if mac.is_group() || mac == Mac::default() {
            return false;
        }
        if !learn {
            return true;
        }
        let now = self.0.compare_exchange(0, mac.bits(), Ordering::Relaxed, Ordering::Relaxed);
        // Two queues of a port may claim at once.
        now.map_or_else(|other| other == mac.bits(), |_| true)
    }
}

/// MAC addresses a port may send from.
#[derive(Clone, Debug, Default)]
pub enum Macs {
    /// All.
    #[default]
    Any,
    /// The first one that it uses.
    First(Arc<FirstMac>),
    /// These.
    Listed(Arc<[Mac]>),
}

impl Macs {
    #[inline]
    fn allow(&self, mac: Mac, learn: bool) -> bool {
        match self {
            Self::Any => true,
            Self::First(first) => first.is(mac, learn),
            Self::Listed(macs) => macs.contains(&mac),
        }
    }
}

/// Who a sender may claim to be.
#[derive(Clone, Debug, Default)]
pub struct SourceCheck {
    /// By source MAC address, and in ARP and neighbour discovery.
    pub macs: Macs,
    /// By source IP address, and in ARP and neighbour discovery; `None`: all.
    pub ips: Option<Arc<[Prefix]>>,
    /// Networks of IPv6 of which it may find out, beyond `ips`, whether an address is free: whoever
    /// lists what is taken learns of it so.
    pub free: Option<Arc<[Prefix]>>,
    /// It may not answer as a DHCP server.
    pub dhcp_guard: bool,
    /// It may not act as a router.
    pub ra_guard: bool,
}

/// Bytes of TCP and UDP that the short cut looks at: ports, lengths, TCP's data offset.
const L4: usize = 13;

const SHORT: usize = 14 + 4 + 20 + L4; // Bytes of a snapshot with Ethernet, a tag, IPv4, and that.

impl SourceCheck {
    /// True if everything is allowed.
    #[inline]
    pub fn is_any(&self) -> bool {
        matches!(self.macs, Macs::Any) && self.ips.is_none() && !self.dhcp_guard && !self.ra_guard
    }

    /// Checks the snapshot `head` of a frame of `len` bytes.
    #[inline]
    pub fn check(&self, head: &[u8], len: usize) -> Result<(), Reason> {
        self.look(head, len, true)
    }

    /// What [`SourceCheck::check`] would return. Changes nothing.
    ///
    /// # Errors
    /// Why it would not pass.
    pub fn peek(&self, head: &[u8], len: usize) -> Result<(), Reason> {
        self.look(head, len, false)
    }

    #[inline]
    fn look(&self, head: &[u8], len: usize, learn: bool) -> Result<(), Reason> {
        let Some(source) = head.get(6..12).and_then(|b| b.first_chunk()) else {
            return Err(Reason::Runt);
        };
        let mac = Mac::new(*source);
        if !self.macs.allow(mac, learn) {
            return Err(Reason::SpoofedMac);
        }
        if self.is_plain(head, len) { Ok(()) } else { self.judge(mac, head, len) }
    }

    /// True for TCP and UDP over IPv4 without options and IPv6 without extension headers, whole,
    /// with one tag or none, that are allowed. False means nothing: the rules decide.
    #[inline]
    fn is_plain(&self, head: &[u8], len: usize) -> bool {
        let Some(short) = head.first_chunk::<SHORT>() else { return false };
        let tagged = short[12] == 0x81 && short[13] == 0;
        let (kind, at) = if tagged { (&short[16..18], 18) } else { (&short[12..14], 14) };
        let left = len.saturating_sub(at);
        if kind == [0x08, 0] {
            let ip = if tagged { &short[18..] } else { &short[14..47] };
            ip.first_chunk().is_some_and(|ip| self.is_plain_v4(ip, left))
        } else {
            kind == [0x86, 0xdd] && head.get(at..).is_some_and(|ip| self.is_plain_v6(ip, left))
        }
    }

    #[inline]
    fn is_plain_v4(&self, ip: &[u8; 20 + L4], left: usize) -> bool {
        if self.ips.is_none() && !self.dhcp_guard {
            return true;
        }
        let end = be16(ip[2], ip[3]);
        let source = u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]);
        ip[0] == 0x45
            && ip[6] & 0x3f | ip[7] == 0
            && end <= left
            && self.is_plain_l4(ip[9], &ip[20..], end.wrapping_sub(20), judge::DHCP)
            && self.ips.as_ref().is_none_or(|ips| is_host(source) && has_v4(ips, source))
    }

    #[inline]
    fn is_plain_v6(&self, ip: &[u8], left: usize) -> bool {
        let Some((ip, rest)) = ip.split_first_chunk::<40>() else { return false };
        let end = be16(ip[4], ip[5]);
        let source = ip[8..24].first_chunk().map_or(0, |source| u128::from_be_bytes(*source));
        ip[0] >> 4 == 6
            && 40 + end <= left
            && self.is_plain_l4(ip[6], rest, end, judge::DHCPV6)
            && self.ips.as_ref().is_none_or(|ips| is_host_v6(source) && has_v6(ips, source))
    }

    /// TCP or UDP of `left` bytes, of which there are more than 2^16 if that is nonsense.
    #[inline]
    fn is_plain_l4(&self, protocol: u8, l4: &[u8], left: usize, dhcp: (u16, u16)) -> bool {
        let Some(l4) = l4.first_chunk::<L4>() else { return false };
        let size = match protocol {
            6 => usize::from(l4[12] >> 4) * 4,
            17 => be16(l4[4], l4[5]),
            _ => return false,
        };
        let least = if protocol == 6 { 20 } else { 8 };
        let (client, server) = dhcp;
        let (from, to) = (be16(l4[0], l4[1]), be16(l4[2], l4[3]));
        let guarded = self.dhcp_guard
            && protocol == 17
            && (from == usize::from(server) || to == usize::from(client));
        (least..=left).contains(&size) && left <= 0xffff && !guarded
    }
}

#[inline]
fn be16(a: u8, b: u8) -> usize {
    usize::from(u16::from_be_bytes([a, b]))
}

/// Neither 0.0.0.0 nor a group or broadcast address: what a packet can be from.
#[inline]
fn is_host(ip: u32) -> bool {
    (1..0xe000_0000).contains(&ip) || (0xf000_0000..u32::MAX).contains(&ip)
}

#[inline]
fn has_v4(ips: &[Prefix], ip: u32) -> bool {
    ips.iter().any(|prefix| prefix.has_v4(ip))
}

/// Neither :: nor a group address.
#[inline]
fn is_host_v6(ip: u128) -> bool {
    ip != 0 && ip >> 120 != 0xff
}

#[inline]
fn has_v6(ips: &[Prefix], ip: u128) -> bool {
    ips.iter().any(|prefix| prefix.has_v6(ip))
}
