//! What the ports have to tell: counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use vmlan_switch::policy::{Limiter, Limits};

use super::{Entry, Ports};
use crate::stats::{FdbStats, LimitStats, PortStats, SharedLimit, Stats};

impl Ports {
    /// Reads all counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let table = self.workers.table();
        let policy = |e: &Entry| Some(&*table.get(e.id?)?.policy);
        let read = |e: &Entry| {
            let kind = e.address.kind().name();
            let port = PortStats::read(e.name.as_str(), kind, e.is_up(), &*e.opened.port());
            policy(e).map_or_else(|| port.clone(), |p| port.clone().limited(p))
        };
        let mut shared = BTreeMap::new();
        for e in &self.entries {
            let Some(policy) = policy(e) else { continue };
            add_shared(&mut shared, e, "from_limit", &policy.from);
            add_shared(&mut shared, e, "to_limit", &policy.to);
        }
        let fdb = FdbStats { unlearned: self.switch.fdb().unlearned() };
        let ports = self.entries.iter().map(read).collect();
        Stats { ports, limits: shared.into_values().collect(), fdb }
    }
}

fn add_shared(
    shared: &mut BTreeMap<String, SharedLimit>,
    entry: &Entry,
    key: &str,
    limits: &Limits,
) {
    let (Some(name), Some(limiter)) = (entry.address.text(key), &limits.shared) else { return };
    let new = |limiter: &Arc<Limiter>| SharedLimit {
        name: name.to_owned(),
        ports: Vec::new(),
        counts: LimitStats::read(limiter),
    };
    let line = shared.entry(name.to_owned()).or_insert_with(|| new(limiter));
    let port = entry.name.to_string();
    if !line.ports.contains(&port) {
        line.ports.push(port);
    }
}
