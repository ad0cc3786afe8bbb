//! What is changed while the switch runs outlives it: ports that come, go and are told otherwise by
//! the API, limits, groups, sampling, pinned addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use vmlan_config::address::{Address, NamedAddress, PortName};
use vmlan_config::refusal::Refusal;
use vmlan_config::settings::{Changes, Pin, Plan};
use vmlan_frame::Mac;
use vmlan_switch::policy::Domain;

use super::{Entry, Failed, Kept, Ports, held_json};

/// What the holder calls them, and what is held beside them.
const NAME: &str = "what was changed";
const CHANGES: &[u8] = b"vmlan changes 1";

/// How long a switch has to live with them. One that dies before that may have died of them: after
/// so many in a row they are left out.
const TRIAL: Duration = Duration::from_secs(1);
const MAX_DEATHS: u32 = 4;

/// What the next switch is to know.
#[derive(Default)]
pub(super) struct KeptChanges {
    /// The plan that this switch was started with, and the one that was applied last. None: it is
    /// about to start.
    from: Vec<Plan>,
    /// What is held.
    held: Option<Changes>,
    /// Ports that could not be opened again, which nobody wanted to be gone.
    lost: Vec<NamedAddress>,
    /// Switches that have died of them, this one included until it has lived for long enough.
    deaths: u32,
    proven: Option<Instant>,
    /// An address was pinned.
    pinned: bool,
    /// Somebody was told that they cannot be held.
    warned: bool,
    /// At the start: ports that are not as configured, how they are if so, and how they were told
    /// to be. Those of them that could not be opened.
    instead: BTreeMap<PortName, (Option<Address>, Address)>,
    left_out: Vec<NamedAddress>,
}

impl KeptChanges {
    /// A port is gone, and the next switch is to have it, if it can.
    pub(super) fn lost(&mut self, port: NamedAddress) {
        self.found(&port.name);
        self.lost.push(port);
    }

    /// A port that was lost is there again, or is not wanted.
    pub(super) fn found(&mut self, name: &PortName) {
        self.lost.retain(|port| port.name != *name);
    }

    /// This was put into force.
    pub(super) fn applied(&mut self, plan: &Plan) {
        self.lost.clear();
        if !self.from.is_empty() {
            self.from.truncate(1);
            self.from.push(plan.clone());
        }
    }

    /// This is what the next switch is started with.
    fn configured(&mut self, plan: &Plan) {
        self.from = vec![plan.clone()];
    }
}

impl Ports {
    /// Makes the switch what `own` says, its configuration, but for what was changed while the last
    /// one ran.
    ///
    /// # Errors
    /// As [`Ports::apply`].
    pub fn begin(&mut self, own: &Plan) -> Result<(), Failed> {
        let changes = self.holding.found.remove(NAME).and_then(|held| {
            let changes = held_json::read(held, CHANGES);
            if changes.is_none() {
                left_out(&"it is not of this release");
            }
            changes
        });
        let changes = changes.and_then(|changes| self.try_changes(changes));
        let changed = changes.as_ref().and_then(|changes| plan(changes, own));
        let goes_on = changed.as_ref().is_some_and(|changed| self.begin_changed(changed, own));
        if !goes_on && let Err(failed) = self.apply(own, false) {
            changes.into_iter().for_each(|changes| self.take_back(changes));
            return Err(failed);
        }
        self.changes.proven = changes.is_some().then(|| Instant::now() + TRIAL);
        self.changes.lost = std::mem::take(&mut self.changes.left_out);
        self.changes.configured(own);
        let pins = changes.filter(|_| changed.is_some()).map(|changes| changes.pins);
        if let Some(pins) = pins.filter(|pins| !pins.is_empty()) {
            pins.iter().for_each(|pin| self.pin_again(pin));
            if let Err(refusal) = self.enforce() {
                log::error!("pinned addresses: {}", refusal.message);
            }
        }
        self.keep_changes();
        Ok(())
    }

    /// Says that this switch is about to go on with `changes`, in case it dies of them.
    fn try_changes(&mut self, mut changes: Changes) -> Option<Changes> {
        if changes.deaths >= MAX_DEATHS {
            left_out(&format!("{MAX_DEATHS} switches have died soon after they went on with it"));
            return None;
        }
        changes.deaths += 1;
        self.put_back(&changes);
        self.changes.deaths = changes.deaths;
        Some(changes)
    }

    /// It is about to end in good order, and has not died of them.
    fn take_back(&self, mut changes: Changes) {
        changes.deaths = changes.deaths.saturating_sub(1);
        self.put_back(&changes);
    }

    fn put_back(&self, changes: &Changes) {
        if let Some(hold) = &self.holding.hold {
            let _ = held_json::put(&**hold, NAME, CHANGES, changes);
        }
    }

    /// As [`Self::take_back`], once it has begun.
    pub(super) fn end_trial(&mut self) {
        if self.changes.proven.take().is_some() {
            self.changes.deaths -= 1;
            self.keep_changes();
        }
    }

    /// The running plan is that of the file which the next switch is started with.
    pub fn configured(&mut self, plan: &Plan) {
        self.changes.configured(plan);
        self.keep_changes();
    }

    /// This switch has not died of the changes that it went on with. Says when it has to be called
    /// again.
    pub(super) fn prove_changes(&mut self) -> Option<Duration> {
        let left = self.changes.proven?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        (self.changes.deaths, self.changes.proven) = (0, None);
        self.keep_changes();
        None
    }

    /// False: it cannot be so, and nothing was done.
    fn begin_changed(&mut self, changed: &Plan, own: &Plan) -> bool {
        let configured = |name: &PortName| {
            let port = own.ports.iter().find(|port| port.name == *name);
            port.map(|port| port.address.clone())
        };
        let others = changed.ports.iter().filter_map(|port| {
            let own = configured(&port.name);
            let other = own.as_ref() != Some(&port.address);
            other.then(|| (port.name.clone(), (own, port.address.clone())))
        });
        self.changes.instead = others.collect();
        for name in self.changes.instead.keys() {
            log::info!("port {name}: goes on as it was told while the last switch ran");
        }
        let done = self.apply(changed, false);
        self.changes.instead.clear();
        let Err(failed) = done else { return true };
        left_out(&failed.first());
        self.changes.left_out.clear();
        self.holding.find_again();
        self.holding.found.remove(NAME);
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
            Some((None, address)) => {
                log::error!("{refusal}; it was added while the last switch ran, and is left out");
                // It may be possible the next time.
                self.changes.left_out.push(NamedAddress { name: name.clone(), address });
                Ok(None)
            }
            Some((Some(address), _)) => {
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
        let named = |e: &Entry| NamedAddress { name: e.name.clone(), address: e.address.clone() };
        let mut running = Plan {
            ports: self.entries.iter().map(named).collect(),
            limits: self.rules.tables(),
            groups: self.rules.named.clone(),
            sflow: self.sflow.clone(),
        };
        self.add_lost(&mut running);
        let fleeting = self.fleeting();
        running.ports.retain(|port| !fleeting.iter().any(|name| port.name.as_str() == name));
        let mut changes = Changes::new(&self.changes.from, &running, self.pins());
        changes.deaths = self.changes.deaths;
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

    /// The next switch is not to have a port that was lost. False: there is none.
    pub(super) fn give_up(&mut self, name: &PortName) -> bool {
        let before = self.changes.lost.len();
        self.changes.found(name);
        self.keep_changes();
        self.changes.lost.len() < before
    }

    /// Adds ports that were lost to those that run, but for those that do not go with what has come
    /// since.
    fn add_lost(&self, running: &mut Plan) {
        let mut lost = self.changes.lost.clone();
        lost.retain(|port| self.find(&port.name).is_none());
        let now = running.ports.len();
        while !lost.is_empty() {
            running.ports.extend(lost.iter().cloned());
            let Err(conflict) = running.check_running() else { return };
            running.ports.truncate(now);
            match lost.iter().position(|port| port.name == conflict.port) {
                Some(place) => drop(lost.remove(place)),
                None => drop(lost.pop()),
            }
        }
    }

    /// An address was pinned, or is not any more.
    pub(super) fn keep_pins(&mut self) {
        self.changes.pinned = true;
        self.keep_changes();
    }

    /// Addresses that were pinned to these ports, and that the port does not list.
    pub(super) fn pinned<'e>(&self, ports: &'e [Entry]) -> Vec<(&'e Entry, Mac, Domain)> {
        if !self.changes.pinned {
            return Vec::new();
        }
        let pinned = self.switch.fdb().list().into_iter().filter(|entry| entry.age.is_none());
        let pin = |entry: vmlan_switch::FdbEntry| {
            let port = ports.iter().find(|port| port.id == Some(entry.port))?;
            let listed = port.kept.pins().contains(&(entry.mac, entry.domain));
            (!listed).then_some((port, entry.mac, entry.domain))
        };
        pinned.filter_map(pin).collect()
    }

    /// All of them, as they are held.
    fn pins(&self) -> BTreeSet<Pin> {
        let pin = |(port, mac, domain): (&Entry, Mac, Domain)| Pin {
            mac: mac.to_string(),
            domain: domain.bits(),
            port: port.name.to_string(),
        };
        self.pinned(&self.entries).into_iter().map(pin).collect()
    }

    fn pin_again(&mut self, pin: &Pin) {
        self.changes.pinned = true;
        let port = self.entries.iter_mut().find(|port| port.name.as_str() == pin.port);
        match (port, pin.mac.parse()) {
            (Some(port), Ok(mac)) => port.kept.keep_pinned([(mac, Domain::from_bits(pin.domain))]),
            _ => log::warn!("{}: is not pinned to port {} any more", pin.mac, pin.port),
        }
    }
}

/// What the changes make of `own`. A port that does not go with the rest is as it is configured.
fn plan(changes: &Changes, own: &Plan) -> Option<Plan> {
    let mut changed = changes.applied_to(own).inspect_err(|e| left_out(e)).ok()?;
    while let Err(conflict) = changed.check_running() {
        let is = |port: &NamedAddress| port.name == conflict.port;
        let own = own.ports.iter().find(|port| is(port));
        let place = changed.ports.iter().position(is);
        match (place.and_then(|place| changed.ports.get_mut(place)), own, place) {
            (Some(port), Some(own), _) if port != own => *port = own.clone(),
            (Some(_), None, Some(place)) => drop(changed.ports.remove(place)),
            _ => {
                left_out(&conflict);
                return None;
            }
        }
        log::error!("{conflict}: what it was told while the last switch ran is left out");
    }
    Some(changed)
}

fn left_out(why: &dyn std::fmt::Display) {
    log::error!("what was changed while the last switch ran is left out, make it again: {why}");
}

#[cfg(test)]
mod tests {
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::{Arc, Mutex};

    use vmlan_keeper::hold::{Held, Hold, HoldError};
    use vmlan_switch::{Options, Switch};

    use super::*;
    use crate::worker::Workers;

    /// Has one thing.
    #[derive(Debug, Default)]
    struct Memo(Mutex<Option<(OwnedFd, Vec<u8>)>>);

    impl Hold for Memo {
        fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError> {
            assert_eq!((name, fds.len()), (NAME, 1));
            *self.0.lock().unwrap() = Some((fds[0].try_clone_to_owned().unwrap(), bytes.into()));
            Ok(())
        }

        fn forget(&self, _: &str) -> Result<(), HoldError> {
            *self.0.lock().unwrap() = None;
            Ok(())
        }

        fn all(&self) -> Result<Vec<Held>, HoldError> {
            let held = self.0.lock().unwrap();
            let all = held.iter().map(|(fd, bytes)| Held {
                name: NAME.into(),
                fds: vec![fd.try_clone().unwrap()],
                bytes: bytes.clone(),
            });
            Ok(all.collect())
        }

        fn end(&self) {}
    }

    fn new(hold: &Arc<Memo>) -> Ports {
        let switch = Switch::new(Options::default());
        let workers = Workers::played(switch.clone()).unwrap();
        Ports::new(workers, switch, || {}).with_hold(hold.clone()).unwrap()
    }

    /// A switch that goes on with what `hold` has, and is started with nothing.
    fn start(hold: &Arc<Memo>) -> Ports {
        let mut ports = new(hold);
        ports.begin(&Plan::default()).map_err(Failed::first).unwrap();
        ports
    }

    fn set_limit(ports: &mut Ports, name: &str) {
        let limit = [("rate".to_owned(), "1Mbit".to_owned())];
        let limit = vmlan_config::address::LimitTable::new(&limit).unwrap();
        ports.set_limit(&name.parse().unwrap(), limit).unwrap();
    }

    fn limits(ports: &Ports) -> usize {
        ports.limits().len()
    }

    /// One that nobody wanted to be gone comes again.
    #[test]
    fn a_port_that_was_lost_is_the_next_switchs() {
        let hold = Arc::new(Memo::default());
        let port = |text: &str| text.parse::<NamedAddress>().unwrap();
        let mut ports = start(&hold);
        ports.changes.lost(port("lan=packet:eth9"));
        ports.keep_changes();
        let next = || {
            let held = hold.all().unwrap().pop()?;
            let changes: Changes = held_json::read(held, CHANGES)?;
            Some(changes.applied_to(&Plan::default()).unwrap().ports)
        };
        assert_eq!(next().unwrap(), [port("lan=packet:eth9")]);
        // What came since goes before it.
        ports.changes.lost(port("other=packet:eth9"));
        ports.keep_changes();
        assert_eq!(next().unwrap(), [port("lan=packet:eth9")]);
        ports.remove(&"other".parse().unwrap()).unwrap();
        ports.remove(&"lan".parse().unwrap()).unwrap();
        assert!(next().is_none() && ports.remove(&"lan".parse().unwrap()).is_err());
    }

    /// One that cannot begin has not died of the changes: they are the next one's.
    #[test]
    fn starts_that_fail_do_not_count() {
        let hold = Arc::new(Memo::default());
        set_limit(&mut start(&hold), "tenant");
        let nowhere = ["a=stream:/nowhere/at/all".parse().unwrap()];
        for _ in 0..2 * MAX_DEATHS {
            let mut ports = new(&hold);
            let plan = Plan { ports: nowhere.to_vec(), ..Plan::default() };
            assert!(ports.begin(&plan).is_err());
        }
        assert_eq!(limits(&start(&hold)), 1);
    }

    /// One that dies of what was changed must not do so without an end.
    #[test]
    fn changes_that_switches_die_of_are_left_out() {
        let hold = Arc::new(Memo::default());
        set_limit(&mut start(&hold), "tenant");
        for _ in 0..2 * MAX_DEATHS {
            // Told to end, it has not died.
            start(&hold).hand_over();
        }
        for _ in 0..MAX_DEATHS {
            // It is dropped before it has proven anything.
            assert_eq!(limits(&start(&hold)), 1);
        }
        let mut ports = start(&hold);
        assert_eq!(limits(&ports), 0);
        // From here on others count, and one that lives for long enough begins anew.
        set_limit(&mut ports, "other");
        for _ in 0..2 * MAX_DEATHS {
            let mut ports = start(&hold);
            assert_eq!(limits(&ports), 1);
            assert!(ports.prove_changes().is_some());
            ports.changes.proven = Some(Instant::now());
            assert!(ports.prove_changes().is_none());
        }
    }
}
