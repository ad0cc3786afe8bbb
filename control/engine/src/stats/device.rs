//! What emulated NICs count beside frames: register accesses, interrupts and what became of them,
//! the NIC's own statistics registers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vmlan_frame::NicCounters;

use super::{PortStats, Stats};
use vmlan_config::text::{columns_and, count, si, to_f64};

/// Registers named in the table for people.
const TOP: usize = 4;

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

    /// `csb on: 1,000 interrupts kept in, 3 asked for; 5 kicks asked for`.
    fn show(self, show: &dyn Fn(u64) -> String) -> String {
        let Self { on, suppressed, guest_asked, host_asked } = self;
        let on = if on { "on" } else { "off" };
        let [kept, guest, host] = [suppressed, guest_asked, host_asked].map(show);
        format!(
            "csb {on}: {kept} causes kept in, {guest} interrupts asked for, {host} kicks asked for"
        )
    }
}

/// What a frame costs, and what a doorbell or an interrupt pays for. `None`: nothing to divide by
/// yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Register accesses for 1,000 frames.
    pub accesses_per_1000_frames: Option<f64>,
    /// Frames for each doorbell.
    pub frames_per_doorbell: Option<f64>,
    /// Frames for each interrupt.
    pub frames_per_interrupt: Option<f64>,
}

/// Accesses to one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accesses {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

impl DeviceStats {
    /// Of a NIC that moved `frames`, both ways, for so many doorbells.
    #[must_use]
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
    #[must_use]
    pub fn accesses(&self) -> Accesses {
        let sum = |a: Accesses, b: &Accesses| Accesses {
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
        };
        self.registers.values().fold(Accesses::default(), sum)
    }

    /// What was counted since `old`. If the port was added again meanwhile: since then.
    fn since(&self, old: &Self) -> Self {
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

    /// `TDT 1,000 w, ICR 20 r`: the registers that cost most.
    fn top(&self, show: impl Fn(u64) -> String) -> String {
        let mut all: Vec<_> =
            self.registers.iter().filter(|(_, n)| n.reads + n.writes > 0).collect();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(n.reads + n.writes));
        let ways = |n: &Accesses| match (n.reads, n.writes) {
            (reads, 0) => format!("{} r", show(reads)),
            (0, writes) => format!("{} w", show(writes)),
            (reads, writes) => format!("{} r {} w", show(reads), show(writes)),
        };
        let words: Vec<_> =
            all.iter().take(TOP).map(|(name, n)| format!("{name} {}", ways(n))).collect();
        words.join(", ")
    }
}

impl Ratios {
    fn new(d: &DeviceStats, frames: u64, doorbells: u64) -> Self {
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
pub(super) fn grown(new: u64, old: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

/// Totals of all emulated NICs since each port was added; empty if there are none.
pub(super) fn totals(stats: &Stats) -> String {
    let rows = stats.ports.iter().filter_map(|p| Some(row(&p.name, p.device.as_ref()?, &count)));
    let table = lined_up("", rows.collect());
    if table.is_empty() { table } else { table + WORDS }
}

/// Rates between two readings, `seconds` apart; the ratios are of that time alone.
pub(super) fn rates(before: &Stats, after: &Stats, seconds: f64) -> String {
    let (no_port, no_device) = (PortStats::default(), DeviceStats::default());
    let rows = after.ports.iter().filter_map(|p| {
        let old = before.ports.iter().find(|o| o.name == p.name).unwrap_or(&no_port);
        let mut device = p.device.as_ref()?.since(old.device.as_ref().unwrap_or(&no_device));
        let since = |value: fn(&PortStats) -> u64| grown(value(p), value(old));
        let (frames, doorbells) = (since(PortStats::frames), since(|p| p.doorbells));
        device.ratios = Ratios::new(&device, frames, doorbells);
        Some(row(&p.name, &device, &|n| si(to_f64(n) / seconds)))
    });
    lined_up("/s", rows.collect())
}

/// More register accesses for 1,000 frames than this come from a driver that started, not from
/// frames.
const START_UP: f64 = 20_000.0;

/// What the words of the table mean.
const WORDS: &str = "REG: register accesses that left the guest (stores to mapped doorbells are \
    not among them). RAISED: interrupts due (again, if the guest left one unserved); HELD: of \
    these, \
                     held back\nfor a while by moderation; DELIVERED: those the guest got.\n";

/// A line, and what stands behind it.
type Row = (Vec<String>, String);

fn row(name: &str, d: &DeviceStats, show: &dyn Fn(u64) -> String) -> Row {
    let ratio = |r: Option<f64>| r.map_or_else(|| "-".to_owned(), |r| format!("{r:.1}"));
    let Accesses { reads, writes } = d.accesses();
    let numbers = [reads, writes, d.raised, d.held, d.delivered].map(show);
    let r = &d.ratios;
    let ratios = [
        r.accesses_per_1000_frames.filter(|n| *n < START_UP),
        r.frames_per_doorbell,
        r.frames_per_interrupt,
    ]
    .map(ratio);
    let csb = d.csb.map(|csb| csb.show(show));
    let behind: Vec<_> = [d.top(show)].into_iter().chain(csb).filter(|s| !s.is_empty()).collect();
    ([vec![name.to_owned()], numbers.to_vec(), ratios.to_vec()].concat(), behind.join("; "))
}

fn lined_up(unit: &str, rows: Vec<Row>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let counted = ["REG READS", "REG WRITES", "RAISED", "HELD", "DELIVERED"];
    let ratios = ["REG/1000 FRAMES", "FRAMES/DOORBELL", "FRAMES/INTERRUPT"].map(str::to_owned);
    let counted = counted.map(|head| format!("{head}{unit}"));
    let head = [vec!["NIC".to_owned()], counted.to_vec(), ratios.to_vec()].concat();
    let (mut cells, mut tops) = (vec![head], vec![format!("TOP REGISTERS{unit}")]);
    for (row, top) in rows {
        cells.push(row);
        tops.push(top);
    }
    columns_and(&cells, 1, &tops)
}
