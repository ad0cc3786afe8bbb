//! What a running switch reports: counters, and what would become of a frame.

use super::Ports;
use crate::explain::{Explained, Known};
use crate::stats::{FdbStats, LimitStats, PortStats, SharedLimit, Stats};
use vmlan_config::address::PortName;
use vmlan_config::refusal::{Cause, Refusal};

impl Ports {
    /// Reads all counters.
    pub fn stats(&self) -> Stats {
        let read = |e: &super::Entry| {
            let kind = e.address.kind().name();
            let mut port = PortStats::read(e.name.as_str(), kind, e.is_up(), &*e.opened.port());
            port.gateway = e.opened.gateway();
            match e.kept.policy() {
                Some(policy) => port.limited(policy),
                None => port,
            }
        };
        let limiters = self.rules.limits().values();
        let shared = self.limits().into_iter().zip(limiters).map(|(info, shared)| SharedLimit {
            name: info.name,
            ports: info.ports,
            counts: LimitStats::read(&shared.limiter),
        });
        let fdb = FdbStats { unlearned: self.switch.fdb().unlearned() };
        let ports = self.entries.iter().map(read).collect();
        Stats { ports, limits: shared.collect(), fdb, sandbox: vmlan_sandbox::state() }
    }

    /// Says what would become of `frame` if `name` sent it now.
    ///
    /// # Errors
    /// If there is no such port, or it never sends.
    pub fn explain(&self, name: &PortName, frame: &[u8]) -> Result<Explained, Refusal> {
        let index = self.find(name).ok_or_else(|| Refusal::no_port(name))?;
        let no_source = || {
            let text = format!("port {name}: a capture file sends nothing: name another port");
            Refusal::new(Cause::Invalid, text)
        };
        let id = self.entries[index].id.ok_or_else(no_source)?;
        let (table, now) = (self.workers.table(), self.workers.now());
        let told = self.switch.explain(&table, id, frame, now).ok_or_else(no_source)?;
        let ports = self.entries.iter();
        let ports = ports.filter_map(|e| Some((e.id?, e.name.as_str(), &e.address)));
        let known = Known { ports: ports.collect() };
        Ok(Explained::new(&told, frame.len(), id, &known))
    }
}
