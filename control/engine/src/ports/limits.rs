//! Limits that ports share: listed, set, removed.

use super::Ports;
use crate::events::Event;
use crate::info::LimitInfo;
use vmlan_config::address::{Direction, LimitTable, PortName};
use vmlan_config::refusal::{Cause, Refusal};

impl Ports {
    /// The shared limits, sorted by name.
    pub fn limits(&self) -> Vec<LimitInfo> {
        self.rules.limits().keys().filter_map(|name| self.limit(name)).collect()
    }

    fn limit(&self, name: &PortName) -> Option<LimitInfo> {
        let table = self.rules.limits().get(name)?.table;
        let text = |key: &str| table.pairs().into_iter().find(|(k, _)| *k == key).map(|(_, v)| v);
        Some(LimitInfo {
            name: name.to_string(),
            rate: text("rate"),
            frames: text("frames"),
            burst: text("burst").unwrap_or_default(),
            ports: self.users(name),
        })
    }

    /// Names of the ports that have this limit.
    fn users(&self, limit: &PortName) -> Vec<String> {
        let both = [Direction::From, Direction::To];
        let uses = |e: &&super::Entry| {
            both.iter().any(|d| e.address.policy().limit(*d).shared.as_ref() == Some(limit))
        };
        self.entries.iter().filter(uses).map(|e| e.name.to_string()).collect()
    }

    /// Describes one limit.
    ///
    /// # Errors
    /// If no limit has that name.
    pub fn get_limit(&self, name: &PortName) -> Result<LimitInfo, Refusal> {
        self.limit(name).ok_or_else(|| no_limit(name))
    }

    /// Makes a limit, or changes it under the ports that have it.
    ///
    /// # Errors
    /// None, as long as the table of addresses holds what it held.
    pub fn set_limit(&mut self, name: &PortName, table: LimitTable) -> Result<LimitInfo, Refusal> {
        let mut tables = self.rules.tables();
        let old = tables.insert(name.clone(), table);
        self.rules.set_limits(&tables, self.workers.now());
        self.enforce()?;
        log_limit(name, old, Some(table));
        self.limit_changed(name, old, Some(table));
        self.get_limit(name)
    }

    /// Removes a limit that no port uses.
    ///
    /// # Errors
    /// If no limit has that name, or a port uses it.
    pub fn remove_limit(&mut self, name: &PortName) -> Result<(), Refusal> {
        let users = self.get_limit(name)?.ports;
        if let Some(user) = users.first() {
            let text = format!(
                "limit {name}: {} use it: take from_limit or to_limit away from {user} first \
                    (`vmlan port set {user} from_limit=`)",
                users.join(", ")
            );
            return Err(Refusal::new(Cause::Exists, text));
        }
        let mut tables = self.rules.tables();
        let old = tables.remove(name);
        self.rules.set_limits(&tables, self.workers.now());
        log_limit(name, old, None);
        self.limit_changed(name, old, None);
        Ok(())
    }

    fn limit_changed(&mut self, name: &PortName, old: Option<LimitTable>, new: Option<LimitTable>) {
        if old != new {
            let limit = Some(name.to_string());
            self.has_changed(Event { limit, ..Event::new("limit-changed") });
        }
    }
}

/// One line, if anything changed.
pub(super) fn log_limit(name: &PortName, old: Option<LimitTable>, new: Option<LimitTable>) {
    if old != new {
        let say = |table: Option<LimitTable>| table.map_or("unset".to_owned(), |t| t.to_string());
        log::info!("limit {name}: {} -> {}", say(old), say(new));
    }
}

fn no_limit(name: &PortName) -> Refusal {
    let text = format!("limit {name}: there is none: see `vmlan limit list`");
    Refusal::new(Cause::NotFound, text)
}
