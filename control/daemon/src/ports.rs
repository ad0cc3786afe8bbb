//! The ports of a running switch: opened, numbered, listed, closed.
//!
//! Everything here runs on the control thread. A port is taken from the workers before it is closed, so
//! that no frame of it is under way when its memory goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlan_frame::Mac;
use vmlan_switch::policy::Domain;
use vmlan_switch::{PortId, Switch};

use crate::address::{Address, Kind, NamedAddress, PortName};
use crate::control::{Cause, FdbLine, PortInfo, Refusal};
use crate::settings::watched;
use crate::worker::Workers;

mod open;
mod socket;
mod tell;
use open::{Changed, Opened, is_link_up};

struct Entry {
    name: PortName,
    address: Address,
    opened: Opened,
    id: Option<PortId>,
}

/// All ports. Closed in the reverse order of their coming when dropped.
pub struct Ports {
    entries: Vec<Entry>,
    workers: Workers,
    switch: Arc<Switch>,
    changed: Changed,
    /// A port came up or went down, and the control thread was told, but has not looked yet.
    news: Arc<AtomicBool>,
}

impl Ports {
    /// No ports yet. `changed` is called when any port came up or went down, and then not again before
    /// [`Ports::looked`]: a VMM that comes and goes fast must not fill the control thread's queue.
    #[must_use]
    pub fn new(
        workers: Workers,
        switch: Arc<Switch>,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let look_again = workers.changed();
        let news = Arc::new(AtomicBool::new(false));
        let told = news.clone();
        let changed: Changed = Arc::new(move || {
            look_again();
            if !told.swap(true, Ordering::AcqRel) {
                changed();
            }
        });
        Self { entries: Vec::new(), workers, switch, changed, news }
    }

    /// The news of ports has arrived; further news will be told again.
    pub fn looked(&self) {
        self.news.store(false, Ordering::Release);
    }

    /// Opens a port.
    ///
    /// # Errors
    /// A refusal that names the port. Nothing of it is left then.
    pub fn add(&mut self, named: NamedAddress) -> Result<PortInfo, Refusal> {
        self.check_watched(&named)?;
        self.add_planned(named)
    }

    /// Opens a port of those a switch is started with: what a capture file watches may come after it.
    ///
    /// # Errors
    /// As [`Ports::add`].
    pub fn add_planned(&mut self, named: NamedAddress) -> Result<PortInfo, Refusal> {
        let entry = self.open(named)?;
        let info = entry.info();
        self.entries.push(entry);
        self.mirror();
        Ok(info)
    }

    fn check_watched(&self, named: &NamedAddress) -> Result<(), Refusal> {
        watched(named, self.entries.iter().map(|e| (&e.name, e.address.kind())))
            .map_err(|text| Refusal::new(Cause::Invalid, format!("port {}: {text}", named.name)))
    }

    fn open(&self, named: NamedAddress) -> Result<Entry, Refusal> {
        let NamedAddress { name, address } = named;
        let refuse = |cause, text: &str| Err(Refusal::new(cause, format!("port {name}: {text}")));
        if self.find(&name).is_some() {
            return refuse(
                Cause::Exists,
                "that name is taken: choose another, or delete the port first",
            );
        }
        let same_place =
            |e: &&Entry| e.address.kind() == address.kind() && e.address.place() == address.place();
        if let Some(other) = self.entries.iter().find(same_place) {
            let text = format!(
                "port {} is at '{}' already: give it a place of its own",
                other.name,
                address.place()
            );
            return refuse(Cause::Exists, &text);
        }
        let opened = match Opened::new(&name, &address, &self.changed) {
            Ok(opened) => opened,
            Err(text) => return refuse(Cause::Failed, &text),
        };
        let id = match opened.moves_frames().then(|| self.workers.add(name.as_str(), opened.port()))
        {
            None => None,
            Some(Ok(id)) => Some(id),
            Some(Err(full)) => return refuse(Cause::Failed, &format!("{full}: delete one first")),
        };
        log::info!("port {name}: {address}");
        Ok(Entry { name, address, opened, id })
    }

    /// Closes a port.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn remove(&mut self, name: &PortName) -> Result<(), Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let entry = self.entries.remove(index);
        self.close(entry);
        self.mirror();
        Ok(())
    }

    fn close(&self, mut entry: Entry) {
        if let Some(id) = entry.id {
            self.workers.remove(id);
        }
        if let Some(mirror) = entry.opened.mirror() {
            self.workers.clear_mirror(&mirror);
        }
        entry.opened.close();
        log::info!("port {}: closed", entry.name);
    }

    /// Changes keys of a port's address. Those in [`crate::address::Kind::live_keys`] at once; for others the port is closed and
    /// opened again, which a VM sees as its link going down and up.
    ///
    /// # Errors
    /// If there is no such port, a key or value is wrong, or the port cannot be opened as asked; then it is
    /// opened as it was.
    pub fn set(&mut self, name: &PortName, keys: &[(String, String)]) -> Result<PortInfo, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let old = self.entries[index].address.clone();
        let mut new = old.clone();
        let wrong = |e| Refusal::new(Cause::Invalid, format!("port {name}: {e}"));
        for (key, value) in keys {
            new.replace(key, value).map_err(wrong)?;
        }
        let new = new.checked().map_err(wrong)?;
        // Not for other keys: a port that is watched may have gone meanwhile, and come again.
        if new.ports() != old.ports() {
            self.check_watched(&NamedAddress { name: name.clone(), address: new.clone() })?;
        }
        if new.differs_only_in(&old, new.kind().live_keys()) {
            self.set_live(index, new)?;
        } else if new != old {
            self.reopen(index, old, new)?;
        }
        self.mirror();
        Ok(self.entries[index].info())
    }

    fn set_live(&mut self, index: usize, new: Address) -> Result<(), Refusal> {
        let entry = &mut self.entries[index];
        let fail = |e| Refusal::new(Cause::Failed, format!("port {}: mode: {e}", entry.name));
        if new.number("mode") != entry.address.number("mode") {
            socket::set_mode(&new).map_err(fail)?;
        }
        entry.opened.set_link(is_link_up(&new));
        log::info!("port {}: now {new}", entry.name);
        entry.address = new;
        Ok(())
    }

    fn reopen(&mut self, index: usize, old: Address, new: Address) -> Result<(), Refusal> {
        let entry = self.entries.remove(index);
        let name = entry.name.clone();
        if old.kind() == Kind::VfioUser && entry.opened.port().is_up() {
            log::warn!(
                "port {name}: is opened anew under a running VM: its NIC is dead until the VM is started again"
            );
        }
        self.close(entry);
        let opened = self.open(NamedAddress { name: name.clone(), address: new });
        let (entry, refusal) = match opened {
            Ok(entry) => (entry, None),
            Err(refusal) => {
                let again = self.open(NamedAddress { name, address: old });
                let lost =
                    |e| Refusal::new(Cause::Failed, format!("{refusal}; now it is gone: {e}"));
                (again.map_err(lost)?, Some(refusal))
            }
        };
        self.entries.insert(index, entry);
        self.mirror();
        refusal.map_or(Ok(()), Err)
    }

    /// Tells the workers which ports each capture file watches. A port has one watcher: of two files that
    /// ask for it, the one that came later has it.
    fn mirror(&self) {
        for file in &self.entries {
            let Some(mirror) = file.opened.mirror() else { continue };
            self.workers.clear_mirror(&mirror);
            let wanted =
                |e: &&Entry| file.address.ports().is_none_or(|list| list.contains(&e.name));
            let ports: Vec<_> = self
                .entries
                .iter()
                .filter(wanted)
                .filter_map(|e| Some((e.id?, file.opened.interface(e.name.as_str())?)))
                .collect();
            self.workers.set_mirror(&mirror, &ports);
        }
    }

    fn find(&self, name: &PortName) -> Option<usize> {
        self.entries.iter().position(|e| e.name == *name)
    }

    /// Describes all ports.
    #[must_use]
    pub fn list(&self) -> Vec<PortInfo> {
        self.entries.iter().map(Entry::info).collect()
    }

    /// Describes one port.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &PortName) -> Result<PortInfo, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        Ok(self.entries[index].info())
    }

    /// The forwarding table, sorted by address.
    #[must_use]
    pub fn fdb(&self) -> Vec<FdbLine> {
        let tick = self.ageing() / 30;
        let line = |e: vmlan_switch::FdbEntry| {
            let port = self.entries.iter().find(|p| p.id == Some(e.port))?;
            Some(FdbLine {
                mac: e.mac.to_string(),
                port: port.name.to_string(),
                r#static: e.age.is_none(),
                age: e.age.map(|ticks| (tick * u32::from(ticks)).as_secs()),
            })
        };
        let mut lines: Vec<_> = self.switch.fdb().list().into_iter().filter_map(line).collect();
        lines.sort_unstable_by(|a, b| a.mac.cmp(&b.mac));
        lines
    }

    /// Pins an address to a port.
    ///
    /// # Errors
    /// If there is no such port, it takes no frames, or the table has no room.
    pub fn add_mac(&self, mac: Mac, name: &PortName) -> Result<FdbLine, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let no_target = || {
            let text = format!("port {name}: a capture file takes no frames: name another port");
            Refusal::new(Cause::Invalid, text)
        };
        let id = self.entries[index].id.ok_or_else(no_target)?;
        self.switch
            .fdb()
            .add_static(mac, Domain::OPEN, id)
            .map_err(|e| Refusal::new(Cause::Invalid, e.to_string()))?;
        Ok(FdbLine { mac: mac.to_string(), port: name.to_string(), r#static: true, age: None })
    }

    /// Forgets an address, pinned or learned.
    ///
    /// # Errors
    /// If it is not known.
    pub fn remove_mac(&self, mac: Mac) -> Result<(), Refusal> {
        let unknown =
            || Refusal::new(Cause::NotFound, format!("{mac} is not known: see `vmlan fdb list`"));
        self.switch.fdb().remove(mac, Domain::OPEN).then_some(()).ok_or_else(unknown)
    }

    /// How long an address is remembered.
    #[must_use]
    pub fn ageing(&self) -> Duration {
        self.switch.options().ageing
    }

    /// A thirtieth of the ageing time went by; returns how many learned addresses are left.
    #[must_use]
    pub fn age(&self) -> usize {
        self.switch.fdb().tick()
    }

    /// True if any port could send something.
    #[must_use]
    pub fn any_up(&self) -> bool {
        self.entries.iter().any(|e| e.id.is_some() && e.is_up())
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        while let Some(entry) = self.entries.pop() {
            self.close(entry);
        }
        self.workers.stop();
    }
}

impl Entry {
    /// A capture file is up for as long as it is written.
    fn is_up(&self) -> bool {
        !self.opened.moves_frames() || self.opened.port().is_up()
    }

    fn info(&self) -> PortInfo {
        let details = self.opened.details().into_iter();
        PortInfo {
            name: self.name.to_string(),
            kind: self.address.kind().to_string(),
            address: self.address.to_string(),
            up: self.is_up(),
            details: details.map(|(k, v)| (k.to_owned(), v.into())).collect(),
        }
    }
}
