//! Addresses that gateways keep for ports (`ip=`): each for one port, and such that a gateway has.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use super::conflict::{Conflict, conflict};
use crate::address::{Address, Kind, PortName};
use crate::gateway::Network;
use crate::refusal::Cause;

/// The networks of all gateways.
#[derive(Default)]
pub struct Networks<'a>(Vec<(&'a PortName, Network)>);

impl<'a> Networks<'a> {
    /// Those of these ports.
    pub fn of(ports: impl Iterator<Item = (&'a PortName, &'a Address)>) -> Self {
        let gateways = ports.filter(|(_, address)| address.kind() == Kind::Nat);
        Self(gateways.filter_map(|(name, a)| Some((name, a.place().parse().ok()?))).collect())
    }

    /// Why no gateway can keep the address of the port at `address`. Where there is none yet, one
    /// may come that can.
    pub(super) fn strays(&self, address: &Address) -> Option<String> {
        let ip = address.reserved().filter(|_| !self.0.is_empty())?;
        if self.0.iter().any(|(_, network)| network.is_for_hosts(ip)) {
            return None;
        }
        let hosts = self.0.iter().map(|(name, network)| {
            let (first, last) = network.hosts();
            format!("{name} has {first} to {last}")
        });
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        Some(format!("ip={ip}: no nat: port gives it: {hosts}: take one of these, or leave it out"))
    }
}

/// A gateway gives nobody an address that it keeps for somebody else: of two, neither would get it.
pub(super) fn one_owner(ports: &BTreeMap<&PortName, &Address>) -> Result<(), Conflict> {
    let mut owners: HashMap<Ipv4Addr, &PortName> = HashMap::new();
    for (name, address) in ports {
        let Some(ip) = address.reserved() else { continue };
        if let Some(other) = owners.insert(ip, name) {
            let text = format!(
                "ip={ip}: it is kept for port {other} already: leave it out of one of them"
            );
            return Err(conflict(name, Some("ip"), Cause::Invalid, text));
        }
    }
    Ok(())
}
