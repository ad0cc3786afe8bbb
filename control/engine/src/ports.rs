//! The ports of a running switch: opened, numbered, listed, closed.
//!
//! Everything here runs on the control thread. A port is taken from the workers before it is
//! closed, so that no frame of it is under way when its memory goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlan_frame::{Changed, Mac};
use vmlan_keeper::hold::{Hold, HoldError};
use vmlan_switch::Switch;

use crate::action::Holder;
use crate::events::Event;
use crate::info::PortInfo;
use crate::worker::Workers;
use vmlan_config::address::{Address, Kind, NamedAddress, Pcap, PortName, SflowTable, Spec};
use vmlan_config::address_change::say_changes;
use vmlan_config::refusal::{Cause, Refusal};
use vmlan_config::settings::{Networks, World};

mod announce;
mod apply;
mod changes;
mod entry;
mod fdb;
#[cfg(any(test, feature = "fuzz"))]
#[path = "ports/tests/given.rs"]
pub(crate) mod given;
mod held_json;
mod held_tap;
mod keepers;
mod leases;
mod limits;
mod link_watch;
mod mtu;
mod nat;
mod observe;
mod open;
mod policy;
mod rehearse;
mod report;
mod sflow;
#[cfg(test)]
mod tests;
use announce::Announcer;
pub use apply::Failed;
use changes::KeptChanges;
use entry::Entry;
use link_watch::LinkWatch;
use observe::Observer;
use open::{Gateways, Holding, Opened};
use policy::{Kept, Rules};
use sflow::Export;

/// All ports. Closed in the reverse order of their coming when dropped.
pub struct Ports {
    entries: Vec<Entry>,
    rules: Rules,
    /// What is sampled.
    sflow: Option<SflowTable>,
    export: Export,
    workers: Workers,
    switch: Arc<Switch>,
    changed: Changed,
    /// What gateways share.
    gateways: nat::Host,
    holding: Holding,
    changes: KeptChanges,
    /// A port came up or went down, and the control thread has been notified but has not looked
    /// yet.
    notified: Arc<AtomicBool>,
    observer: Observer,
    announcer: Announcer,
}

impl Ports {
    /// No ports yet. `changed` is called when any port came up or went down, and then not again
    /// before [`Ports::looked`]: a VMM that comes and goes fast must not fill the control thread's
    /// queue.
    pub fn new(
        workers: Workers,
        switch: Arc<Switch>,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let look_again = workers.changed();
        let notified = Arc::new(AtomicBool::new(false));
        let before = notified.clone();
        let news: Changed = Arc::new(move || {
            if !before.swap(true, Ordering::AcqRel) {
                changed();
            }
        });
        let gateways = nat::Host { dir: std::env::temp_dir(), news: news.clone() };
        let changed: Changed = Arc::new(move || {
            news();
            // This may wait.
            look_again();
        });
        Self {
            entries: Vec::new(),
            rules: Rules::default(),
            sflow: None,
            export: Export::default(),
            workers,
            switch,
            changed,
            gateways,
            holding: Holding::default(),
            changes: KeptChanges::default(),
            notified,
            observer: Observer::default(),
            announcer: Announcer::default(),
        }
    }

    /// Makes the sockets of gateways in `dir`.
    #[must_use]
    pub fn with_gateways_in(mut self, dir: &std::path::Path) -> Self {
        dir.clone_into(&mut self.gateways.dir);
        self
    }

    /// Has `hold` have the descriptors of ports for the next switch. Ports that are opened go on
    /// with what it has now.
    ///
    /// # Errors
    /// That of `hold`.
    pub fn with_hold(mut self, hold: Arc<dyn Hold>) -> Result<Self, HoldError> {
        self.holding = Holding::new(hold)?;
        Ok(self)
    }

    /// All ports are open that there are at the start: lets go of what was held of others.
    pub fn forget_unclaimed(&mut self) {
        self.holding.forget_unclaimed();
    }

    /// Devices of the host may have been made anew, and leases given: has those held that there
    /// are. Says when it has to be called again.
    pub fn keep(&mut self) -> Option<Duration> {
        self.holding.warn();
        let proven = self.prove_changes();
        self.entries.iter_mut().filter_map(|entry| entry.opened.keep()).chain(proven).min()
    }

    /// Ends ports that are held so that the next switch goes on with them exactly. Other ports are
    /// closed as ever.
    pub fn hand_over(&mut self) {
        self.end_trial();
        // What one has sent is to arrive at another before that is taken away.
        self.entries.iter().for_each(|entry| entry.opened.pause());
        for entry in &mut self.entries {
            // No worker is in it any more when this returns.
            if let (true, Some(id)) = (entry.opened.is_held(), entry.id.take()) {
                self.workers.remove(id);
            }
        }
        // Some may be kept by their peers: they are waited for together.
        self.entries.iter_mut().for_each(|entry| entry.opened.leave());
        for mut entry in self.entries.extract_if(.., |entry| entry.opened.is_held()) {
            entry.opened.hand_over();
            log::info!("port {}: left to the next switch", entry.name);
        }
    }

    /// Its workers, for whoever plays them.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The control thread looks now; what comes later is notified again.
    pub fn looked(&self) {
        self.notified.store(false, Ordering::Release);
    }

    /// Opens a port.
    ///
    /// # Errors
    /// A refusal that names the port. Nothing of it is left then.
    pub fn add(&mut self, named: NamedAddress) -> Result<PortInfo, Refusal> {
        self.add_held(named, None)
    }

    /// Opens a port, for as long as `holder` is held if there is one.
    ///
    /// # Errors
    /// As [`Ports::add`].
    pub fn add_held(
        &mut self,
        named: NamedAddress,
        holder: Option<Holder>,
    ) -> Result<PortInfo, Refusal> {
        if self.find(&named.name).is_none() {
            self.check(&named.name, Some(&named.address), None)?;
        }
        let entry = self.open(named, Kept::new(holder))?;
        self.entries.push(entry);
        if let Err(refusal) = self.enforce() {
            self.entries.pop().into_iter().for_each(|entry| drop(self.close(entry)));
            return Err(refusal);
        }
        self.mirror();
        let info = self.entries.last().map(|entry| self.info(entry)).unwrap_or_default();
        self.entries.last().iter().for_each(|entry| self.changes.found(&entry.name));
        self.has_changed(Event::of("port-added", &info.name));
        Ok(info)
    }

    /// Checks all ports as they will be with `name` at `new`, or without it.
    fn check(
        &self,
        name: &PortName,
        new: Option<&Address>,
        old: Option<&Address>,
    ) -> Result<(), Refusal> {
        let others = self.entries.iter().filter(|e| e.name != *name);
        let others = others.map(|e| (&e.name, &e.address));
        let limits = self.rules.tables();
        let ports = others.clone().chain(new.map(|new| (name, new)));
        let world = World::new(ports, &limits, &self.rules.named)?;
        if let Some(new) = new {
            world.check(name, new, old)?;
        }
        let before = Networks::of(self.entries.iter().map(|e| (&e.name, &e.address)));
        for (user, address) in others {
            let checked = world.check(user, address, Some(address));
            let checked = checked.and_then(|()| world.check_kept(user, address, &before));
            checked.map_err(|wrong| wrong.by(name, address))?;
        }
        Ok(())
    }

    /// Opens a port that takes part once [`Ports::enforce`] has given it its policy.
    fn open(&mut self, named: NamedAddress, mut kept: Kept) -> Result<Entry, Refusal> {
        let NamedAddress { name, address } = named;
        let refuse = |cause, text: &str| Err(Refusal::new(cause, format!("port {name}: {text}")));
        if self.find(&name).is_some() {
            return refuse(
                Cause::Exists,
                "that name is taken: choose another, or delete the port first",
            );
        }
        let same_place = |e: &&Entry| e.address.site() == address.site();
        if let Some(other) = self.entries.iter().find(same_place) {
            let text = format!(
                "port {} is at '{}' already: give it a place of its own",
                other.name,
                address.place()
            );
            return refuse(Cause::Exists, &text);
        }
        let watch = LinkWatch::new(self.changed.clone(), kept.first.clone(), self.switch.clone());
        let reserved = self.reserved(Some((&name, &address)));
        let gateways = Gateways { host: &self.gateways, reserved };
        let holding = &mut self.holding;
        let opened = match Opened::new(&name, &address, &watch.changed(), &gateways, holding) {
            Ok(opened) => opened,
            Err(text) => return refuse(Cause::Failed, &forbidden(&address).unwrap_or(text)),
        };
        watch.set_port(&opened.port());
        kept.closed();
        let port = opened.moves_frames().then(|| opened.port());
        let id = match port.map(|port| self.workers.reserve(name.as_str(), port)) {
            None => None,
            Some(Ok(id)) => {
                watch.set_id(id);
                Some(id)
            }
            Some(Err(full)) => return refuse(Cause::Failed, &format!("{full}: delete one first")),
        };
        self.observer.opened(&name, kept.policy().is_some());
        log::info!("port {name}: {address}");
        Ok(Entry { name, address, opened, id, kept, leaving: false })
    }

    /// Puts into force what addresses, limits and groups say.
    fn enforce(&mut self) -> Result<(), Refusal> {
        self.export.follow(&mut self.entries);
        policy::enforce(&mut self.rules, &mut self.entries, &self.workers, self.switch.fdb())
            .map_err(|text| Refusal::new(Cause::Failed, text))?;
        self.tell_gateways();
        Ok(())
    }

    /// Closes a port.
    ///
    /// # Errors
    /// If no port has that name, or another port refers to it.
    pub fn remove(&mut self, name: &PortName) -> Result<(), Refusal> {
        let Some(index) = self.find(name) else {
            return self.give_up(name).then_some(()).ok_or_else(|| Refusal::no_port(name));
        };
        self.check(name, None, None)?;
        self.changes.found(name);
        let entry = self.entries.remove(index);
        self.close(entry);
        self.mirror();
        self.has_changed(Event::of("port-removed", name.as_str()));
        // Policies of fewer ports cannot fail.
        self.enforce()
    }

    /// Closes ports whose holders are gone.
    pub fn remove_abandoned(&mut self) {
        loop {
            let gone = self.entries.iter().filter(|e| e.kept.is_abandoned());
            let gone: Vec<_> = gone.map(|e| e.name.clone()).collect();
            let stays = |name: &PortName| Some((name.clone(), self.remove(name).err()?));
            let staying: Vec<_> = gone.iter().filter_map(stays).collect();
            // One that has gone may have been what another stayed for.
            if staying.len() == gone.len() {
                for (name, refusal) in staying {
                    log::warn!("port {name}: nobody holds it any more, but it stays: {refusal}");
                }
                return;
            }
        }
    }

    /// True if somebody holds a port.
    pub fn any_held(&self) -> bool {
        self.entries.iter().any(|e| e.kept.is_held())
    }

    /// Closes a port; what outlives it is returned.
    fn close(&self, mut entry: Entry) -> Kept {
        if let Some(id) = entry.id {
            self.workers.remove(id);
        }
        if let Some(mirror) = entry.opened.mirror() {
            self.workers.clear_mirror(&mirror);
        }
        if entry.opened.is_held() && !self.holding.is_claimed() {
            // The start of this switch fails: what was held before is held on.
            entry.opened.hand_over();
        }
        entry.opened.close();
        log::info!("port {}: closed", entry.name);
        entry.kept.closed();
        entry.kept
    }

    /// Changes keys of a port's address; an empty value removes a key. Live ones
    /// ([`vmlan_config::address::Kind::is_live`]) at once; for others the port is closed and opened
    /// again, which a VM sees as its link going down and up.
    ///
    /// # Errors
    /// If there is no such port, a key or value is wrong, or the port cannot be opened as asked;
    /// then it is opened as it was.
    pub fn set(&mut self, name: &PortName, keys: &[(String, String)]) -> Result<PortInfo, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let old = self.entries[index].address.clone();
        let mut new = old.draft();
        let wrong = |e| Refusal::new(Cause::Invalid, format!("port {name}: {e}"));
        for (key, value) in keys {
            new.replace(key, value).map_err(wrong)?;
        }
        let new = new.check().map_err(|e| {
            // What was set before cannot be left out.
            let before = e.key().filter(|key| keys.iter().all(|(given, _)| given != key));
            let fix = before.map(|key| format!(" (`{key}=` leaves it out)")).unwrap_or_default();
            Refusal::new(Cause::Invalid, format!("port {name}: {e}{fix}"))
        })?;
        self.check(name, Some(&new), Some(&old))?;
        if !new.differs_only_live(&old) {
            self.reopen(index, old.clone(), new)?;
        } else if new != old {
            self.set_live(index, new)?;
        }
        self.log_changes(name, &old);
        if self.entries[index].address != old {
            self.has_changed(Event::of("port-changed", name.as_str()));
        }
        Ok(self.info(&self.entries[index]))
    }

    /// One line for a port that was at `old`, if it is not any more.
    fn log_changes(&self, name: &PortName, old: &Address) {
        let now = self.entries.iter().find(|e| e.name == *name);
        let changes = now.map(|e| e.address.changes(old)).filter(|changes| !changes.is_empty());
        if let Some(changes) = changes {
            log::info!("port {name}: {}", say_changes(&changes));
        }
    }

    fn set_live(&mut self, index: usize, new: Address) -> Result<(), Refusal> {
        let old = std::mem::replace(&mut self.entries[index].address, new);
        let done = match self.enforce() {
            Ok(()) => self.entries[index].follow(&old),
            Err(refusal) => Err(refusal),
        };
        if done.is_err() {
            self.entries[index].address = old;
            // As it was a moment ago, so there is room for it.
            let _ = self.enforce();
        }
        done
    }

    fn reopen(&mut self, index: usize, old: Address, new: Address) -> Result<(), Refusal> {
        let name = self.entries[index].name.clone();
        let new = NamedAddress { name: name.clone(), address: new };
        self.rehearse(&new)?;
        let entry = self.entries.remove(index);
        let kept = self.close_for_good(entry);
        let refusal = match self.open(new, kept.clone()) {
            Err(refusal) => refusal,
            Ok(entry) => {
                self.entries.insert(index, entry);
                let Err(refusal) = self.enforce() else {
                    self.mirror();
                    return Ok(());
                };
                let entry = self.entries.remove(index);
                self.close(entry);
                refusal
            }
        };
        let (old, lasting) = (NamedAddress { name, address: old }, !kept.is_fleeting());
        let again = self.open(old.clone(), kept);
        let entry = again.map_err(|e| {
            self.lost(old, lasting);
            Refusal::new(Cause::Failed, format!("{refusal}; now it is gone: {e}"))
        })?;
        self.entries.insert(index, entry);
        self.enforce()?;
        self.mirror();
        Err(Refusal::new(
            refusal.cause,
            format!("{refusal}; it was closed, and opened again as it was"),
        ))
    }

    /// A port could not be opened again: the others go on without it. The next switch is to have
    /// it, if it is a lasting one.
    fn lost(&mut self, port: NamedAddress, lasting: bool) {
        let name = port.name.clone();
        if lasting {
            self.changes.lost(port);
        }
        if let Err(refusal) = self.enforce() {
            log::error!("without port {name}: {}", refusal.message);
        }
        self.mirror();
        self.has_changed(Event::of("port-removed", name.as_str()));
    }

    /// As [`Ports::close`], for a port that will be opened again with other keys: what is pinned to
    /// it is kept.
    fn close_for_good(&self, entry: Entry) -> Kept {
        if entry.address.kind() == Kind::VfioUser && entry.opened.port().is_up() {
            log::warn!(
                "port {}: is opened again under a running VM: its NIC is dead until the VM is \
                    started again",
                entry.name
            );
        }
        let pinned = self.pinned(std::slice::from_ref(&entry)).into_iter();
        let pinned: Vec<_> = pinned.map(|(_, mac, domain)| (mac, domain)).collect();
        let mut kept = self.close(entry);
        kept.keep_pinned(pinned);
        kept
    }

    /// Tells the workers which ports each capture file watches. A port has one watcher: of two
    /// files that ask for it, the one that came later has it.
    fn mirror(&self) {
        for file in &self.entries {
            let Some(mirror) = file.opened.mirror() else { continue };
            let Spec::Pcap(Pcap { ports, .. }) = file.address.spec() else { continue };
            self.workers.clear_mirror(&mirror);
            let wanted = |e: &&Entry| ports.as_ref().is_none_or(|list| list.contains(&e.name));
            let ports: Vec<_> = self
                .entries
                .iter()
                .filter(wanted)
                .filter_map(|e| Some((e.id?, file.opened.interface(e.name.as_str())?)))
                .collect();
            self.workers.set_mirror(&mirror, &ports);
        }
    }

    /// The port that lists `mac` in its `macs`, which pins it there.
    fn listed_by(&self, mac: Mac) -> Option<&PortName> {
        let lists = |e: &&Entry| e.address.policy().macs.listed().contains(&mac);
        self.entries.iter().find(lists).map(|e| &e.name)
    }

    /// True if this port runs and is where it is to be.
    pub fn has(&self, port: &NamedAddress) -> bool {
        let is = |e: &Entry| e.name == port.name && e.address.place() == port.address.place();
        self.entries.iter().any(is)
    }

    fn find(&self, name: &PortName) -> Option<usize> {
        self.entries.iter().position(|e| e.name == *name)
    }

    /// Describes all ports.
    pub fn list(&self) -> Vec<PortInfo> {
        self.entries.iter().map(|entry| self.info(entry)).collect()
    }

    /// Describes one port.
    ///
    /// # Errors
    /// If no port has that name.
    pub fn get(&self, name: &PortName) -> Result<PortInfo, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        Ok(self.info(&self.entries[index]))
    }

    /// Policies and gateways follow the MTUs of devices.
    pub fn follow_links(&mut self) {
        let follows =
            |e: &Entry| e.id.is_none() || e.kept.policy().is_none_or(|p| p.mtu == e.mtu());
        if self.entries.iter().all(follows) {
            return;
        }
        if let Err(refusal) = self.enforce() {
            log::error!("mtu: {}", refusal.message);
        }
    }

    /// How long an address is remembered.
    pub fn ageing(&self) -> Duration {
        self.switch.options().ageing
    }

    /// A thirtieth of the ageing time went by; returns how many learned addresses are left.
    pub fn age(&self) -> usize {
        // A frame that was under way when its port went down may have been learned from since.
        let down = self.entries.iter().filter(|e| !e.is_up()).filter_map(|e| e.id);
        down.for_each(|id| self.switch.went_down(id));
        self.switch.fdb().tick()
    }

    /// Forgets what was learned at ports that went down. If it is too soon for that, how long to
    /// wait.
    #[must_use]
    pub fn forget_departed(&self) -> Option<Duration> {
        self.switch.forget_departed(self.workers.now()).map(Duration::from_nanos)
    }

    /// As [`Workers::balance`].
    #[must_use]
    pub fn balance(&self) -> Option<Duration> {
        self.workers.balance()
    }

    /// True if any port could send something.
    pub fn any_up(&self) -> bool {
        self.entries.iter().any(|e| e.id.is_some() && e.is_up())
    }
}

/// Why the sandbox kept a port from being opened, if it did.
fn forbidden(address: &Address) -> Option<String> {
    let path = address.makes()?;
    vmlan_sandbox::forbids(path)
}

impl Drop for Ports {
    fn drop(&mut self) {
        // Some may be kept by their peers: they are waited for together.
        self.entries.iter_mut().for_each(|entry| entry.opened.stop());
        while let Some(entry) = self.entries.pop() {
            self.close(entry);
        }
        self.workers.stop();
    }
}
