//! Who a sender may claim to be.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use vmlan_frame::{Mac, Reason};

/// A range of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Its first address.
    pub address: IpAddr,
    /// Leading bits that count: 32 or 128 for one address.
    pub bits: u8,
}

/// The address that was seen first on a port; 0 while none was. Forgotten when its peer disconnects.
#[derive(Debug, Default)]
pub struct FirstMac(pub AtomicU64);

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
        let _ = (head, len);
        Ok(())
    }
}
