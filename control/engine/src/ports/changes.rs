//! What is changed while the switch runs outlives it: ports that come, go and are told otherwise by
//! the API, limits, groups, sampling, pinned addresses.

use std::collections::{BTreeMap, BTreeSet};

use vmlan_config::address::{Address, NamedAddress, PortName};
use vmlan_config::refusal::Refusal;
use vmlan_config::settings::{Changes, Pin, Plan};
use vmlan_switch::policy::Domain;

use super::{Entry, Failed, Kept, Ports, held_json};

/// What the holder calls them, and what is held beside them.
const NAME: &str = "what was changed";
const CHANGES: &[u8] = b"vmlan changes 1";

/// What the next switch is to know.
#[derive(Default)]
pub(super) struct KeptChanges {
    /// The plan that this switch was started with, and the one that was applied last. None: it is
    /// about to start.
    from: Vec<Plan>,
    /// What is held.
    held: Option<Changes>,
    /// An address was pinned.
    pinned: bool,
    /// Somebody was told that they cannot be held.
    warned: bool,
    /// At the start: ports that are not as configured, and what they are instead if they cannot be
    /// opened.
    instead: BTreeMap<PortName, Option<Address>>,
}

impl KeptChanges {
    /// This was put into force.
    pub(super) fn applied(&mut self, plan: &Plan) {
        if !self.from.is_empty() {
            self.from.truncate(1);
            self.from.push(plan.clone());
        }
    }
}

impl Ports {
    /// Makes the switch what `own` says, its configuration, but for what was changed while the last
    /// one ran.
    ///
    /// # Errors
    /// As [`Ports::apply`].
    pub fn begin(&mut self, own: &Plan) -> Result<(), Failed> {
        let left = self.holding.found.remove(NAME);
        let changes: Option<Changes> = left.and_then(|held| held_json::read(held, CHANGES));
        let changed = changes.as_ref().and_then(|changes| plan(changes, own));
        let pins = changes.filter(|_| changed.is_some()).map(|changes| changes.pins);
        if !changed.is_some_and(|changed| self.begin_changed(&changed, own)) {
            self.apply(own, false)?;
        }
        self.changes.from = vec![own.clone()];
        pins.iter().flatten().for_each(|pin| self.pin_again(pin));
        self.keep_changes();
        Ok(())
    }

    /// False: it cannot be so, and nothing was done.
    fn begin_changed(&mut self, changed: &Plan, own: &Plan) -> bool {
        let configured = |name: &PortName| {
            let port = own.ports.iter().find(|port| port.name == *name);
            port.map(|port| port.address.clone())
        };
        let others = changed.ports.iter().map(|port| (port.name.clone(), configured(&port.name)));
        let addresses = changed.ports.iter().map(|port| &port.address);
        let others = others.zip(addresses).filter(|((_, own), is)| own.as_ref() != Some(*is));
        self.changes.instead = others.map(|(other, _)| other).collect();
        for name in self.changes.instead.keys() {
            log::info!("port {name}: goes on as it was told while the last switch ran");
        }
        let done = self.apply(changed, false);
        self.changes.instead.clear();
        let Err(failed) = done else { return true };
        left_out(&failed.first());
        self.holding.find_again();
        false
    }

    /// A port that cannot be opened: as it is configured, if it was told otherwise since; not at
    /// all, if it was added since.
    pub(super) fn instead(
        &mut self,
        name: &PortName,
        refusal: Refusal,
    ) -> Result<Option<Entry>, Refusal> {
        match self.changes.instead.get(name).cloned() {
            None => Err(refusal),
            Some(None) => {
                log::error!("{refusal}; it was added while the last switch ran, and is left out");
                Ok(None)
            }
            Some(Some(address)) => {
                log::error!("{refusal}; it is opened as it is configured");
                self.open(NamedAddress { name: name.clone(), address }, Kept::default()).map(Some)
            }
        }
    }

    /// Names of ports that the next switch will not have: whoever holds them is connected to this
    /// one.
    pub fn fleeting(&self) -> Vec<String> {
        self.entries.iter().filter(|e| e.kept.is_fleeting()).map(|e| e.name.to_string()).collect()
    }

    /// Has held what was changed, if that is something else than before.
    pub(super) fn keep_changes(&mut self) {
        let Some(hold) = self.holding.hold.clone().filter(|_| !self.changes.from.is_empty()) else {
            return;
        };
        let lasting = self.entries.iter().filter(|e| !e.kept.is_fleeting());
        let named = |e: &Entry| NamedAddress { name: e.name.clone(), address: e.address.clone() };
        let running = Plan {
            ports: lasting.map(named).collect(),
            limits: self.rules.tables(),
            groups: self.rules.named.clone(),
            sflow: self.sflow.clone(),
        };
        let changes = Changes::new(&self.changes.from, &running, self.pins());
        if self.changes.held.as_ref() == Some(&changes) {
            return;
        }
        let done = match changes.is_nothing() {
            true => hold.forget(NAME).map_err(|e| e.to_string()),
            false => held_json::put(&*hold, NAME, CHANGES, &changes),
        };
        self.changes.held = done.is_ok().then_some(changes);
        if let Err(why) = done {
            // What was held before is not true any more.
            let _ = hold.forget(NAME);
            if !std::mem::replace(&mut self.changes.warned, true) {
                log::warn!("{NAME} is not held for the next switch: {why}");
            }
        }
    }

    /// An address was pinned, or is not any more.
    pub(super) fn keep_pins(&mut self) {
        self.changes.pinned = true;
        self.keep_changes();
    }

    /// Addresses that were pinned to ports, and that no port lists.
    fn pins(&self) -> BTreeSet<Pin> {
        if !self.changes.pinned {
            return BTreeSet::new();
        }
        let pinned = self.switch.fdb().list().into_iter().filter(|entry| entry.age.is_none());
        let pin = |entry: vmlan_switch::FdbEntry| {
            let port = self.entries.iter().find(|port| port.id == Some(entry.port))?;
            let listed = port.kept.pins().contains(&(entry.mac, entry.domain));
            let (mac, domain, port) =
                (entry.mac.to_string(), entry.domain.bits(), port.name.to_string());
            (!listed).then_some(Pin { mac, domain, port })
        };
        pinned.filter_map(pin).collect()
    }

    fn pin_again(&mut self, pin: &Pin) {
        self.changes.pinned = true;
        let port = self.entries.iter().find(|port| port.name.as_str() == pin.port);
        let mac = pin.mac.parse().ok();
        // What a port lists has been pinned to it.
        let mac = mac.filter(|mac| self.listed_by(*mac).is_none_or(|by| by.as_str() == pin.port));
        let known = port.and_then(|port| port.id).zip(mac);
        let domain = Domain::from_bits(pin.domain);
        let done = known.map(|(id, mac)| self.switch.fdb().add_static(mac, domain, id));
        if done.is_none_or(|done| done.is_err()) {
            log::warn!("{}: is not pinned to port {} any more", pin.mac, pin.port);
        }
    }
}

/// What the changes make of `own`.
fn plan(changes: &Changes, own: &Plan) -> Option<Plan> {
    let changed = changes.applied_to(own).inspect_err(|e| left_out(e)).ok()?;
    changed.check(|_| 0).inspect_err(|e| left_out(e)).ok()?;
    Some(changed)
}

fn left_out(why: &dyn std::fmt::Display) {
    log::error!("what was changed while the last switch ran is left out: {why}");
}
