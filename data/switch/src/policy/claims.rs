//! Who a sender may claim to be.
//!
//! Three questions, each only asked if a setting asks it: is the source MAC address the port's (`macs`); are the
//! IP addresses that the frame claims, wherever they stand, the port's (`ips`); is it a server's or a router's message from
//! a port that is neither (`dhcp_guard`, `ra_guard`). All answers come from the snapshot by way of
//! [`vmlan_frame::Headers`], and what that did not understand is refused. `judge.rs` has the rules; what stands here is a
//! short cut for the frames that nearly all are, and proven to be no more than that by `tests/agree.rs`.

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

/// The address that was seen first on a port; 0 while none was. Forgotten when its peer disconnects.
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
pub struct Claims {
    /// By source MAC address, and in ARP and neighbour discovery.
    pub macs: Macs,
    /// By source IP address, and in ARP and neighbour discovery; `None`: all.
    pub ips: Option<Arc<[Prefix]>>,
    /// It is no DHCP server.
    pub dhcp_guard: bool,
    /// It is no router.
    pub ra_guard: bool,
}

/// Bytes of the snapshot that the short cut looks at: Ethernet, IPv4 without options, TCP up to its data offset.
const SHORT: usize = 48;

impl Claims {
    /// True if everything is allowed.
    #[must_use]
    #[inline]
    pub fn is_any(&self) -> bool {
        matches!(self.macs, Macs::Any) && self.ips.is_none() && !self.dhcp_guard && !self.ra_guard
    }

    /// Checks the snapshot `head` of a frame of `len` bytes.
    ///
    /// # Errors
    /// Why it must not pass.
    #[inline]
    pub fn check(&self, head: &[u8], len: usize) -> Result<(), Reason> {
        self.look(head, len, true)
    }

    /// What [`Claims::check`] would say; changes nothing.
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
        if head.first_chunk().is_some_and(|short| self.is_plain(short, len)) {
            return Ok(());
        }
        self.judge(mac, head, len)
    }

    /// True for untagged IPv4 packets without options, whole, of TCP, UDP or ICMP, that are allowed. False
    /// tells nothing.
    #[inline]
    fn is_plain(&self, head: &[u8; SHORT], len: usize) -> bool {
        let be16 = |a, b| usize::from(u16::from_be_bytes([a, b]));
        if head[12] != 8 || head[13] != 0 {
            return false;
        }
        if self.ips.is_none() && !self.dhcp_guard {
            return true;
        }
        let end = 14 + be16(head[16], head[17]);
        if head[14] != 0x45 || head[20] & 0x3f != 0 || head[21] != 0 || end > len {
            return false;
        }
        let whole = match head[23] {
            6 => {
                let size = usize::from(head[46] >> 4) * 4;
                size >= 20 && 34 + size <= end
            }
            17 => {
                let size = be16(head[38], head[39]);
                let dhcp = self.dhcp_guard
                    && (be16(head[34], head[35]) == 67 || be16(head[36], head[37]) == 68);
                size >= 8 && 34 + size <= end && !dhcp
            }
            1 => end >= 34,
            _ => false,
        };
        let source = u32::from_be_bytes([head[26], head[27], head[28], head[29]]);
        whole && self.ips.as_ref().is_none_or(|ips| is_host(source) && has_v4(ips, source))
    }
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
