//! The export of samples of a running switch: turned on and off, and kept in step with its ports.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use vmlan_frame::error_chain;
use vmlan_uplink::sflow::{self, Config, Sflow};

use super::{Entry, Ports};
use crate::events::Event;
use crate::info::SflowInfo;
use vmlan_config::address::SflowTable;
use vmlan_config::refusal::{Cause, Refusal};

/// The export, if there is one: what runs of `Ports::sflow`.
#[derive(Default)]
pub(super) struct Export(Option<Sflow>);

impl Export {
    /// Samples the ports that came, and lets go of those that are leaving. Their policies are to be
    /// made after this.
    pub(super) fn follow(&self, entries: &mut [Entry]) {
        let Some(sflow) = &self.0 else { return };
        let mut staying = Vec::new();
        for entry in entries.iter_mut().filter(|e| !e.leaving) {
            let Some(number) = entry.id.map(vmlan_switch::PortId::index) else { continue };
            staying.push(number);
            let (name, port) = (entry.name.as_str(), entry.opened.port());
            entry.kept.sampling.get_or_insert_with(|| sflow.add(number, name, port, seed()));
        }
        sflow.keep(&staying);
    }
}

fn config(table: &SflowTable) -> Config {
    Config {
        collector: table.collector,
        agent: table.agent,
        sampling: table.sampling,
        polling: (table.polling > 0).then(|| Duration::from_secs(table.polling.into())),
        header: table.header.into(),
    }
}

/// A number that a guest cannot foresee: it must not know which of its frames are seen.
fn seed() -> u64 {
    RandomState::new().hash_one(0)
}

impl Ports {
    /// Describes the export of samples.
    pub fn sflow_info(&self) -> SflowInfo {
        let (Some(table), Some(sflow)) = (&self.sflow, &self.export.0) else {
            return SflowInfo { state: "off".into(), ..SflowInfo::default() };
        };
        let counts = sflow.counts();
        SflowInfo {
            state: sflow.trouble().unwrap_or_else(|| "exporting".into()),
            collector: Some(table.collector.to_string()),
            sampling: Some(table.sampling),
            polling: Some(table.polling),
            agent: table.agent.map(|a| a.to_string()),
            header: Some(table.header.into()),
            samples: counts.samples,
            lost: counts.lost,
            datagrams: counts.datagrams,
            failed: counts.failed,
        }
    }

    /// From now on, exports samples as `table` says; `None`: stops.
    ///
    /// # Errors
    /// If no socket or thread can be made. Then nothing has changed.
    pub fn export(&mut self, table: Option<SflowTable>) -> Result<SflowInfo, Refusal> {
        let changes = self.sflow != table;
        self.set_sflow(table)?;
        self.enforce()?;
        if changes {
            self.has_changed(Event::new("sflow-changed"));
        }
        Ok(self.sflow_info())
    }

    /// As [`Ports::export`], but ports are not sampled before [`Ports::enforce`]. What is right
    /// already is not touched.
    pub(super) fn set_sflow(&mut self, table: Option<SflowTable>) -> Result<(), Refusal> {
        if self.sflow == table {
            return Ok(());
        }
        let failed = |e| Refusal::new(Cause::Failed, format!("sflow: {}", error_chain(&e)));
        let started = table.as_ref().map(|table| sflow::start(config(table)));
        self.export = Export(started.transpose().map_err(failed)?);
        self.entries.iter_mut().for_each(|e| e.kept.sampling = None);
        match &table {
            Some(t) => log::info!("sflow: one frame of {} to {}", t.sampling, t.collector),
            None => log::info!("sflow: off"),
        }
        self.sflow = table;
        Ok(())
    }
}
