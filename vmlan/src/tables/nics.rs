//! What emulated NICs counted, for people.

use vmlan_config::human_text::{columns_and, count, folded, si, to_f64};
use vmlan_engine::stats::{Accesses, CsbStats, DeviceStats, PortStats, Ratios, Stats, grown};

/// Registers named in the table for people.
const TOP: usize = 4;

/// Totals of all emulated NICs since each port was added; empty if there are none.
pub(super) fn totals(stats: &Stats, width: usize) -> String {
    let rows = stats.ports.iter().filter_map(|p| Some(row(&p.name, p.device.as_ref()?, &count)));
    let table = lined_up("", rows.collect(), width);
    if table.is_empty() { table } else { table + &folded(WORDS, 0) + "\n" }
}

/// Rates between two readings, `seconds` apart; the ratios are of that time alone.
pub(super) fn rates(before: &Stats, after: &Stats, seconds: f64, width: usize) -> String {
    let (no_port, no_device) = (PortStats::default(), DeviceStats::default());
    let rows = after.ports.iter().filter_map(|p| {
        let old = before.ports.iter().find(|o| o.name == p.name).unwrap_or(&no_port);
        let mut device = p.device.as_ref()?.since(old.device.as_ref().unwrap_or(&no_device));
        let since = |value: fn(&PortStats) -> u64| grown(value(p), value(old));
        let (frames, doorbells) = (since(PortStats::frames), since(|p| p.doorbells));
        device.ratios = Ratios::new(&device, frames, doorbells);
        Some(row(&p.name, &device, &|n| si(to_f64(n) / seconds)))
    });
    lined_up("/s", rows.collect(), width)
}

/// More register accesses for 1,000 frames than this come from a driver that started, not from
/// frames.
const START_UP: f64 = 20_000.0;

/// What the words of the table mean.
const WORDS: &str = "REG: register accesses that left the guest (stores to mapped doorbells are \
    not among them). RAISED: interrupts due (again, if the guest left one unserved); HELD: of \
    these, held back for a while by moderation; DELIVERED: those the guest got.";

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
    let csb = d.csb.map(|csb| csb_text(csb, show));
    let behind: Vec<_> =
        [top_registers(d, show)].into_iter().chain(csb).filter(|s| !s.is_empty()).collect();
    ([vec![name.to_owned()], numbers.to_vec(), ratios.to_vec()].concat(), behind.join("; "))
}

fn lined_up(unit: &str, rows: Vec<Row>, width: usize) -> String {
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
    columns_and(&cells, 1, &tops, width)
}

/// `csb on: 1,000 interrupts kept in, 3 asked for; 5 kicks asked for`.
pub(crate) fn csb_text(csb: CsbStats, show: &dyn Fn(u64) -> String) -> String {
    let CsbStats { on, suppressed, guest_asked, host_asked } = csb;
    let on = if on { "on" } else { "off" };
    let [kept, guest, host] = [suppressed, guest_asked, host_asked].map(show);
    format!("csb {on}: {kept} causes kept in, {guest} interrupts asked for, {host} kicks asked for")
}

/// `TDT 1,000 w, ICR 20 r`: the registers that cost most.
pub(crate) fn top_registers(device: &DeviceStats, show: impl Fn(u64) -> String) -> String {
    let mut all: Vec<_> = device.registers.iter().filter(|(_, n)| n.reads + n.writes > 0).collect();
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
