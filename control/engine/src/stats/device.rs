//! What emulated NICs count beside frames: register accesses, interrupts and what became of them,
//! the NIC's own statistics registers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vmlan_frame::NicCounters;

use vmlan_config::human_text::to_f64;

/// Counters of an emulated NIC, all since its port was added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Accesses that left the guest, by the datasheet's name of the register; those that did not
    /// occur are left out. Plain stores to mapped doorbells are not among them.
    pub registers: BTreeMap<String, Accesses>,
    /// Times that an unmoderated NIC would have interrupted.
    pub raised: u64,
    /// Of these, those that moderation held back for a while.
    pub held: u64,
    /// Interrupts delivered to the guest.
    pub delivered: u64,
    /// The statistics registers, by the datasheet's names; never cleared by a read.
    pub statistics: BTreeMap<String, u64>,
    /// Of its shared status block, if it offers one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csb: Option<CsbStats>,
    /// The costs of a frame; over frames of both directions.
    #[serde(flatten)]
    pub ratios: Ratios,
}

/// What a shared status block (CSB) saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsbStats {
    /// The guest has turned it on.
    pub on: bool,
    /// Causes that did not interrupt, because the guest was looking by itself.
    pub suppressed: u64,
    /// Interrupts delivered because the guest asked for them.
    pub guest_asked: u64,
    /// Times that the switch asked the guest for a kick, before it slept or waited for room.
    pub host_asked: u64,
}

impl CsbStats {
    fn since(self, old: Option<Self>) -> Self {
        let old = old.unwrap_or_default();
        Self {
            suppressed: grown(self.suppressed, old.suppressed),
            guest_asked: grown(self.guest_asked, old.guest_asked),
            host_asked: grown(self.host_asked, old.host_asked),
            ..self
        }
    }
}

/// What a frame costs, and what a doorbell or an interrupt pays for. `None`: nothing to divide by
/// yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Ratios {
    /// Register accesses for 1,000 frames.
    pub accesses_per_1000_frames: Option<f64>,
    pub frames_per_doorbell: Option<f64>,
    pub frames_per_interrupt: Option<f64>,
}

/// Accesses to one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Accesses {
    pub reads: u64,
    pub writes: u64,
}

impl DeviceStats {
    /// Of a NIC that moved `frames`, both ways, for so many doorbells.
    pub fn new(device: NicCounters, frames: u64, doorbells: u64) -> Self {
        let mut registers: BTreeMap<String, Accesses> = BTreeMap::new();
        for access in device.registers {
            let sum = registers.entry(access.register.to_owned()).or_default();
            sum.reads += access.reads;
            sum.writes += access.writes;
        }
        let statistics = device.statistics.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let NicCounters { raised, held, delivered, csb, .. } = device;
        let csb = csb.map(|csb| {
            let vmlan_frame::CsbCounters { on, suppressed, guest_asked, host_asked } = csb;
            CsbStats { on, suppressed, guest_asked, host_asked }
        });
        let ratios = Ratios::default();
        let mut new = Self { registers, raised, held, delivered, statistics, csb, ratios };
        new.ratios = Ratios::new(&new, frames, doorbells);
        new
    }

    /// Reads and writes of all registers.
    pub fn accesses(&self) -> Accesses {
        let sum = |a: Accesses, b: &Accesses| Accesses {
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
        };
        self.registers.values().fold(Accesses::default(), sum)
    }

    /// What was counted since `old`. If the port was added again meanwhile: since then.
    pub fn since(&self, old: &Self) -> Self {
        let none = Accesses::default();
        let mut new = self.clone();
        for (name, n) in &mut new.registers {
            let old = old.registers.get(name).unwrap_or(&none);
            *n = Accesses { reads: grown(n.reads, old.reads), writes: grown(n.writes, old.writes) };
        }
        new.raised = grown(new.raised, old.raised);
        new.held = grown(new.held, old.held);
        new.delivered = grown(new.delivered, old.delivered);
        new.csb = new.csb.map(|csb| csb.since(old.csb));
        new
    }
}

impl Ratios {
    /// Of a NIC that moved `frames`, both ways, for so many doorbells.
    pub fn new(d: &DeviceStats, frames: u64, doorbells: u64) -> Self {
        let ratio = |a: u64, b: u64| (b > 0).then(|| to_f64(a) / to_f64(b));
        let Accesses { reads, writes } = d.accesses();
        Self {
            accesses_per_1000_frames: ratio(1000 * (reads + writes), frames),
            frames_per_doorbell: ratio(frames, doorbells),
            frames_per_interrupt: ratio(frames, d.delivered),
        }
    }
}

/// What was added to `old`; all of `new` if the counter started again.
pub fn grown(new: u64, old: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}
