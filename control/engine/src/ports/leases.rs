//! What gateways and the rest of the switch tell each other: who is behind which port, addresses
//! kept for ports, leases.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use vmlan_config::address::{Address, PortName, Spec};
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_frame::Mac;

use super::open::{Gateways, Opened};
use super::{Entry, Ports};
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
        // Once for all that is asked in one go: a guest may have filled the table.
        let known = OnceCell::new();
        let whose = |mac: &str| -> Option<String> {
            let mac: Mac = mac.parse().ok()?;
            let known = known.get_or_init(|| switch.fdb().list());
            let mut found = known.iter().filter(|entry| entry.mac == mac);
            found.find_map(|entry| names.get(&entry.port).cloned())
        };
        let mut changed = false;
        for entry in &mut self.entries {
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
