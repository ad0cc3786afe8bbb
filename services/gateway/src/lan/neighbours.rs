//! Which NIC an address of the LAN is at.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::link::Mac;

/// Addresses that are remembered. Their number is that of the LAN's addresses at most, so nobody
/// can fill the table with inventions.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(HashMap<Ipv4Addr, Mac>);

impl Neighbours {
    /// `mac` says that it has `ip`.
    pub(crate) fn learn(&mut self, ip: Ipv4Addr, mac: Mac) {
        self.0.insert(ip, mac);
    }

    /// Where `ip` is.
    pub(crate) fn find(&self, ip: Ipv4Addr) -> Option<Mac> {
        self.0.get(&ip).copied()
    }
}
