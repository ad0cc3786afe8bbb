//! What gateways and the rest of the switch tell each other: who is behind which port, addresses
//! kept for ports, leases.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use vmlan_config::address::{Address, PortName, Spec};
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_switch::policy::Vlan;
use vmlan_switch::{Fdb, PortId};

use super::open::{Gateways, Opened};
use super::{Entry, Ports, fdb};
use crate::info::{ForwardInfo, LeaseInfo};

impl Ports {
    /// Addresses kept for ports, by their names; `new` is about to come.
    pub(super) fn reserved(
        &self,
        new: Option<(&PortName, &Address)>,
    ) -> BTreeMap<String, Ipv4Addr> {
        let all = self.entries.iter().map(|e| (&e.name, &e.address)).chain(new);
        all.filter_map(|(name, address)| Some((name.to_string(), address.reserved()?))).collect()
    }

    /// Gateways go on as their addresses, and those of others, say now.
    pub(super) fn tell_gateways(&mut self) {
        let reserved = self.reserved(None);
        let narrowest = |e: &Entry| match e.opened {
            Opened::Nat(_) => self.narrowest(e).map(|(_, mtu)| mtu),
            _ => None,
        };
        let narrowest: Vec<_> = self.entries.iter().map(narrowest).collect();
        let gateways = Gateways { host: &self.gateways, reserved };
        for (entry, narrowest) in self.entries.iter_mut().zip(narrowest) {
            if let (Opened::Nat(nat), Spec::Nat(spec)) = (&mut entry.opened, entry.address.spec())
                && let Ok(wanted) = gateways.wanted(&entry.address, spec, narrowest)
            {
                nat.follow(&entry.name, &wanted);
            }
        }
    }

    /// Deals with what gateways have said.
    pub fn hear_gateways(&mut self) {
        let switch = self.switch.clone();
        let names: BTreeMap<_, _> =
            self.entries.iter().filter_map(|e| Some((e.id?, e.name.to_string()))).collect();
        let mut changed = false;
        for entry in &mut self.entries {
            let policy = entry.kept.policy();
            let whose = |mac: &str| {
                let port = behind(switch.fdb(), &policy?.vlan, mac)?;
                names.get(&port).cloned()
            };
            if let Opened::Nat(nat) = &mut entry.opened {
                changed |= nat.hear(&entry.name, whose);
            }
        }
        if changed {
            self.follow_leases();
        }
    }

    /// Ports with `ips=leased` may use what they have now, and nothing else.
    fn follow_leases(&mut self) {
        if let Err(refusal) = self.enforce() {
            log::error!("leases: {}", refusal.message);
        }
    }

    /// All leases, by network and address.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseInfo> {
        let mut list = Vec::new();
        for entry in &self.entries {
            let Opened::Nat(nat) = &entry.opened else { continue };
            let now = super::nat::now();
            list.extend(nat.leases().map(|lease| LeaseInfo {
                net: entry.name.to_string(),
                ip: lease.ip.to_string(),
                mac: lease.mac.clone(),
                port: lease.port.clone(),
                hostname: lease.hostname.clone(),
                seconds: lease.expires.saturating_sub(now),
            }));
        }
        list
    }

    /// Forgets the leases of an address, a NIC or a port.
    ///
    /// # Errors
    /// If there is none.
    pub fn forget_lease(&mut self, of: &str) -> Result<(), Refusal> {
        let mut found = false;
        for entry in &mut self.entries {
            let Opened::Nat(nat) = &mut entry.opened else { continue };
            // What a guest has taken is not given back to it when it asks: it is forgotten by its
            // own address only.
            let is = |l: &&vmlan_config::gateway::Lease| {
                let given = l.ip.is_ipv4();
                given && (l.port == of || l.mac.eq_ignore_ascii_case(of)) || l.ip.to_string() == of
            };
            let ips: Vec<_> = nat.leases().filter(is).map(|lease| lease.ip).collect();
            for ip in ips {
                found |= nat.forget(ip);
            }
        }
        if found {
            self.follow_leases();
        }
        let text = || format!("{of}: no lease of that address, NIC or port: `vmlan lease list`");
        found.then_some(()).ok_or_else(|| Refusal::new(Cause::NotFound, text()))
    }

    /// All forwards, and how they stand.
    #[must_use]
    pub fn forwards(&self) -> Vec<ForwardInfo> {
        let mut list = Vec::new();
        for entry in &self.entries {
            let (Opened::Nat(nat), Spec::Nat(spec)) = (&entry.opened, entry.address.spec()) else {
                continue;
            };
            for forward in &spec.forwards {
                let forward = forward.to_string();
                let said = nat.forwards().iter().find(|(name, _)| *name == forward);
                let state = match said {
                    None => "starting".to_owned(),
                    Some((_, None)) => "listening".to_owned(),
                    Some((_, Some(wrong))) => wrong.clone(),
                };
                list.push(ForwardInfo { net: entry.name.to_string(), forward, state });
            }
        }
        list
    }
}

/// The port that has what a gateway in `vlan` knows as `mac`. Another VLAN may have a guest with
/// that address, too: it is not meant.
fn behind(fdb: &Fdb, vlan: &Vlan, mac: &str) -> Option<PortId> {
    fdb.lookup(mac.parse().ok()?, fdb::untagged(vlan)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlan_switch::policy::{Domain, VidSet};

    /// A guest in one VLAN may take the address of a guest in another, which is its right.
    #[test]
    fn a_gateway_knows_a_nic_by_its_own_vlan() {
        let fdb = Fdb::new(64, 64);
        let mac = "52:54:00:00:00:01";
        let id = |n| PortId::new(n).unwrap();
        let all = [Domain::OPEN, Domain::customer(10), Domain::customer(20), Domain::service(20)];
        for (n, domain) in all.into_iter().enumerate() {
            fdb.add_static(mac.parse().unwrap(), domain, id(n)).unwrap();
        }
        let trunk = |native| Vlan::Trunk { tagged: VidSet::new([10, 20]), native };
        for (vlan, whose) in [
            (Vlan::Open, Some(0)),
            (Vlan::Access(10), Some(1)),
            (Vlan::Access(20), Some(2)),
            (Vlan::Access(30), None),
            (Vlan::Qinq(20), Some(3)),
            (Vlan::Qinq(10), None),
            (trunk(Some(20)), Some(2)),
            // Gateways send and take frames without tags.
            (trunk(None), None),
            (Vlan::QinqTrunk(VidSet::new([20])), None),
        ] {
            assert_eq!(behind(&fdb, &vlan, mac), whose.map(id), "{vlan}");
        }
        for unknown in ["52:54:00:00:00:02", "ff:ff:ff:ff:ff:ff", "", "no address"] {
            assert_eq!(behind(&fdb, &Vlan::Access(20), unknown), None, "{unknown}");
        }
    }
}
