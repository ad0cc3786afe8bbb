//! A whole configuration, put into force by difference: what is the same is not touched, and what
//! fails leaves everything as it was.
//!
//! Before anything is closed, what can be known of its successor is looked at. Then new ports come
//! first, then changed ones, then policies and limits in one step. Ports that are no longer wanted
//! go last. Only if a place moves from one port to another is its old owner closed first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use vmlan_attach::ADOPTION;

use super::limits::log_limit;
use super::{Entry, Kept, Ports, Rules};
use crate::events::Event;
use crate::info::Applied;
use vmlan_config::address::{Address, Kind, NamedAddress, PortName, SflowTable};
use vmlan_config::address_change::say_changes;
use vmlan_config::refusal::Refusal;
use vmlan_config::settings::Plan;

/// A port that could not be made as asked for, and why.
pub struct Failed {
    /// The port, if it was one.
    pub port: Option<PortName>,
    /// Why, and what became of what runs.
    pub refusal: Refusal,
}

impl Failed {
    /// At the start nothing runs that could be changed or not.
    pub fn first(self) -> Refusal {
        let text = self.refusal.message.strip_suffix(UNCHANGED);
        Refusal::new(self.refusal.cause, text.unwrap_or(&self.refusal.message))
    }
}

const UNCHANGED: &str = "; nothing was changed";

/// What is to be done.
#[derive(Default)]
struct Steps {
    added: Vec<NamedAddress>,
    reopened: Vec<NamedAddress>,
    live: Vec<NamedAddress>,
    removed: Vec<PortName>,
    unchanged: Vec<PortName>,
    /// Ports whose place another port is to take.
    early: BTreeSet<PortName>,
}

/// Two kinds of sockets cannot share a path.
fn place(address: &Address) -> (u8, String) {
    let sort = match address.kind() {
        Kind::VhostUser | Kind::VfioUser | Kind::Stream => 0,
        Kind::Tap | Kind::Packet | Kind::Xdp | Kind::Nat => 1,
        Kind::Pcap => 2,
    };
    (sort, address.place().to_owned())
}

impl Steps {
    fn new(running: &[Entry], wanted: &[NamedAddress]) -> Self {
        let mut steps = Self::default();
        let mut by_name: BTreeMap<_, _> = running.iter().map(|e| (&e.name, &e.address)).collect();
        for named in wanted {
            let new = &named.address;
            match by_name.remove(&named.name) {
                None => steps.added.push(named.clone()),
                Some(old) if old == new => steps.unchanged.push(named.name.clone()),
                Some(old) if new.differs_only_live(old) => steps.live.push(named.clone()),
                Some(_) => steps.reopened.push(named.clone()),
            }
        }
        steps.removed = by_name.into_keys().cloned().collect();
        let moved = steps.added.iter().chain(&steps.reopened);
        let taken: BTreeMap<_, _> = moved.map(|n| (place(&n.address), &n.name)).collect();
        let goes = |e: &&Entry| {
            let reopened = steps.reopened.iter().any(|n| n.name == e.name);
            reopened || steps.removed.contains(&e.name)
        };
        let early = running.iter().filter(goes);
        let early = early.filter(|e| taken.get(&place(&e.address)).is_some_and(|n| **n != e.name));
        steps.early = early.map(|e| e.name.clone()).collect();
        steps
    }
}

/// All that is needed to go back.
struct Undo {
    rules: Rules,
    sflow: Option<SflowTable>,
    order: Vec<PortName>,
    opened: Vec<PortName>,
    closed: Vec<(NamedAddress, Kept)>,
    addresses: Vec<NamedAddress>,
}

impl Ports {
    /// Makes the switch what `plan`, which was checked, says; with `dry_run` only says what that
    /// would change.
    ///
    /// # Errors
    /// If something cannot be opened or made. Then all is as it was, but that ports may have been
    /// closed and opened again, which the refusal says.
    pub fn apply(&mut self, plan: &Plan, dry_run: bool) -> Result<Applied, Failed> {
        let steps = Steps::new(&self.entries, &plan.ports);
        let applied = self.difference(&steps, plan, dry_run);
        if dry_run || applied.is_nothing() && self.rules.named == plan.groups {
            if !dry_run {
                self.changes.applied(plan);
                self.keep_changes();
            }
            return Ok(applied);
        }
        let mut undo = Undo {
            rules: self.rules.clone(),
            sflow: self.sflow.clone(),
            order: self.entries.iter().map(|e| e.name.clone()).collect(),
            opened: Vec::new(),
            closed: Vec::new(),
            addresses: Vec::new(),
        };
        match self.carry_out(plan, &steps, &mut undo) {
            Ok(()) => {
                self.log(&applied, &undo.rules);
                self.changes.applied(plan);
                self.has_changed(Event::new("applied"));
                Ok(Applied { generation: self.generation(), ..applied })
            }
            Err(failed) => Err(self.go_back(undo, failed)),
        }
    }

    /// One line for each port and limit that changed; ports that came and went have theirs.
    fn log(&self, applied: &Applied, old: &Rules) {
        for (name, changes) in &applied.changes {
            log::info!("port {name}: {}", say_changes(changes));
        }
        let (old, new) = (old.tables(), self.rules.tables());
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for name in names {
            log_limit(name, old.get(name).copied(), new.get(name).copied());
        }
    }

    fn difference(&self, steps: &Steps, plan: &Plan, dry_run: bool) -> Applied {
        let named = |list: &[NamedAddress]| list.iter().map(|n| n.name.to_string()).collect();
        let names = |list: &[PortName]| list.iter().map(PortName::to_string).collect();
        let running = self.rules.limits();
        let limits = plan.limits.iter();
        let is_other = |name: &PortName, table| running.get(name).is_none_or(|s| s.table != table);
        let gone = running.keys().filter(|name| !plan.limits.contains_key(*name));
        let mut changed: Vec<String> = named(&steps.live);
        changed.extend(steps.reopened.iter().map(|n| n.name.to_string()));
        changed.sort_unstable();
        let both = steps.live.iter().chain(&steps.reopened);
        let changes = both.filter_map(|n| {
            let old = &self.entries[self.find(&n.name)?].address;
            Some((n.name.to_string(), n.address.changes(old)))
        });
        Applied {
            dry_run,
            added: named(&steps.added),
            changes: changes.collect(),
            changed,
            reopened: named(&steps.reopened),
            removed: names(&steps.removed),
            unchanged: names(&steps.unchanged),
            limits_set: limits
                .filter(|(n, t)| is_other(n, **t))
                .map(|(n, _)| n.to_string())
                .collect(),
            limits_removed: gone.map(PortName::to_string).collect(),
            sflow: plan.sflow != self.sflow,
            generation: self.generation(),
        }
    }

    fn carry_out(&mut self, plan: &Plan, steps: &Steps, undo: &mut Undo) -> Result<(), Failed> {
        for named in &steps.reopened {
            let port = Some(named.name.clone());
            self.rehearse(named).map_err(|refusal| Failed { port, refusal })?;
        }
        for name in &steps.early {
            self.close_named(name, undo);
        }
        for named in &steps.added {
            self.open_named(named, None, undo)?;
        }
        for named in &steps.reopened {
            self.close_named(&named.name, undo);
            let old = undo.closed.iter().find(|(old, _)| old.name == named.name);
            let kept = old.map(|(_, kept)| kept.clone());
            self.open_named(named, kept, undo)?;
        }
        self.sort(&undo.order);
        for named in &steps.live {
            self.address(named, undo)?;
        }
        for entry in &mut self.entries {
            entry.leaving = steps.removed.contains(&entry.name);
        }
        self.rules.named.clone_from(&plan.groups);
        self.rules.set_limits(&plan.limits, self.workers.now());
        let other = |refusal| Failed { port: None, refusal };
        self.set_sflow(plan.sflow.clone()).map_err(other)?;
        // Ports take part together: none sends before the others can receive.
        let end = Instant::now() + ADOPTION;
        self.entries.iter_mut().for_each(|entry| entry.opened.wait_for_adoption(end));
        self.enforce().map_err(other)?;
        while let Some(index) = self.entries.iter().position(|e| e.leaving) {
            let entry = self.entries.remove(index);
            self.close(entry);
        }
        if !(steps.added.is_empty() && steps.removed.is_empty() && steps.reopened.is_empty())
            || self.captures(&steps.live)
        {
            self.mirror();
        }
        Ok(())
    }

    /// True if one of `ports` is a capture file.
    fn captures(&self, ports: &[NamedAddress]) -> bool {
        ports.iter().any(|named| named.address.kind() == Kind::Pcap)
    }

    /// Closes a port that may be wanted again.
    fn close_named(&mut self, name: &PortName, undo: &mut Undo) {
        let Some(index) = self.find(name) else { return };
        let entry = self.entries.remove(index);
        let old = NamedAddress { name: entry.name.clone(), address: entry.address.clone() };
        let kept = self.close_for_good(entry);
        undo.closed.push((old, kept));
    }

    fn open_named(
        &mut self,
        named: &NamedAddress,
        kept: Option<Kept>,
        undo: &mut Undo,
    ) -> Result<(), Failed> {
        let opened = self.open(named.clone(), kept.unwrap_or_default());
        let opened = opened.map_or_else(|e| self.instead(&named.name, e), |entry| Ok(Some(entry)));
        let port = Some(named.name.clone());
        if let Some(entry) = opened.map_err(|refusal| Failed { port, refusal })? {
            self.entries.push(entry);
            undo.opened.push(named.name.clone());
        }
        Ok(())
    }

    /// Gives a port that stays open another address.
    fn address(&mut self, named: &NamedAddress, undo: &mut Undo) -> Result<(), Failed> {
        let Some(index) = self.find(&named.name) else { return Ok(()) };
        let entry = &mut self.entries[index];
        let old = std::mem::replace(&mut entry.address, named.address.clone());
        let done = entry.follow(&old);
        undo.addresses.push(NamedAddress { name: named.name.clone(), address: old });
        done.map_err(|refusal| Failed { port: Some(named.name.clone()), refusal })
    }

    /// Back to what was before.
    fn go_back(&mut self, undo: Undo, failed: Failed) -> Failed {
        let (mut lost, mut gone, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for name in undo.opened.iter().rev() {
            if let Some(index) = self.find(name) {
                let entry = self.entries.remove(index);
                self.close(entry);
            }
        }
        for (named, kept) in undo.closed {
            let lasting = !kept.is_fleeting();
            match self.open(named.clone(), kept) {
                Ok(entry) => {
                    again.push(entry.name.to_string());
                    self.entries.push(entry);
                }
                Err(refusal) => {
                    lost.push(refusal.message);
                    gone.push(named.name.clone());
                    if lasting {
                        self.changes.lost(named);
                    }
                }
            }
        }
        for NamedAddress { name, address } in undo.addresses {
            let Some(index) = self.find(&name) else { continue };
            let entry = &mut self.entries[index];
            let new = std::mem::replace(&mut entry.address, address);
            lost.extend(entry.follow(&new).err().map(|refusal| refusal.message));
        }
        self.sort(&undo.order);
        self.entries.iter_mut().for_each(|entry| entry.leaving = false);
        self.rules = undo.rules;
        lost.extend(self.set_sflow(undo.sflow).err().map(|refusal| refusal.message));
        lost.extend(self.enforce().err().map(|refusal| refusal.message));
        self.mirror();
        for name in gone {
            self.has_changed(Event::of("port-removed", name.as_str()));
        }
        let now = match (lost.as_slice(), again.as_slice()) {
            ([], []) => UNCHANGED.to_owned(),
            // A VM on a vfio-user port has lost its NIC by that.
            ([], again) => format!("; closed, and opened again as they were: {}", again.join(", ")),
            (lost, _) => format!("; and not all is as it was: {}", lost.join("; ")),
        };
        let refusal = Refusal::new(failed.refusal.cause, format!("{}{now}", failed.refusal));
        Failed { refusal, ..failed }
    }

    /// Ports that were there before keep their order. The others follow in theirs.
    fn sort(&mut self, order: &[PortName]) {
        let places: BTreeMap<_, _> = order.iter().enumerate().map(|(i, name)| (name, i)).collect();
        let place = |e: &Entry| places.get(&e.name).copied().unwrap_or(usize::MAX);
        self.entries.sort_by_key(place);
    }
}
