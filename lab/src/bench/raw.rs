//! Frames straight from the driver, guest to guest.

use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::{Run, Samples};
use crate::alike::Spreads;
use crate::failure::Failure;
use crate::native::pair::Task;
use crate::native::{Lab, Technique, Window};
use crate::probe::{
    copy,
    limit::{self, Guest, Ring},
};
use vmlan_config::human_text::{count, si};

const SIZES: [u32; 4] = [60, 256, 512, 1514];
/// Without FCS; larger ones are those of guests that leave the cutting to others.
const ETHERNET: u32 = 1514;
/// As pkt-gen builds them.
const LARGEST: u32 = 65_535;
/// Keys of a guest with large frames: rings whose buffers take 16 MiB.
const LARGE_KEYS: &str = "buffer=65600,size=256";

const TECHNIQUES: [&str; 10] = [
    "plain",
    "posted",
    "msi-unread",
    "csb",
    "mapped",
    "virtio",
    "csb-256",
    "csb-4096",
    "mapped-4096",
    "virtio-4096",
];

/// The paper, section 4.4: pkt-gen in both guests, e1000 with CSB, VALE; frames of 64 and of 1500
/// bytes.
const PAPER: &str = "The paper (2013, i7-3930K, KVM, VALE; pkt-gen in both guests, e1000 with \
    CSB): 5 Mframes/s at 64 bytes, 1.89 Mframes/s and 22.7 Gbit/s at 1500. For the shape: absolute \
    figures of other hardware are not a target.";

struct Case {
    technique: &'static Technique,
    bytes: u32,
}

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let sizes = run.args.sizes(run.args.axis(&SIZES, &[60, 1514]), 60, LARGEST)?;
    let cases: Vec<_> = sizes
        .iter()
        .flat_map(|&bytes| techniques.iter().map(move |technique| Case { technique, bytes }))
        .filter(|case| !case.is_large() || case.technique.kind == "vhost-user")
        .collect();
    let name = |w: &Case| format!("{}, {} B", w.technique.name, w.bytes);
    let samples = run.rounds(
        &cases,
        name,
        |_, window| show(window),
        |cell| {
            let keys = if cell.what.is_large() { LARGE_KEYS } else { "" };
            let mut lab = Lab::pair(cell.setup, cell.what.technique, keys)?;
            let task = Task { bytes: cell.what.bytes, ping: false, sender: &[] };
            let window = lab.pkt_gen(task, cell.time, cell.news)?.window;
            // Both cores are to be idle.
            drop(lab);
            Ok(Window { limit_frames_per_s: cell.what.limit(), ..window })
        },
    )?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    report(&all, &sizes)
}

impl Case {
    /// More than an Ethernet frame: from virtio to virtio in one piece.
    fn is_large(&self) -> bool {
        self.bytes > ETHERNET
    }

    /// Frames a second that nothing does better: by their cache lines, or, of large ones, by
    /// copying them once.
    fn limit(&self) -> Option<f64> {
        match self.bytes {
            60 => limit::frames_per_s(rings(self.technique)?, Guest::PktGen).ok(),
            bytes if bytes > ETHERNET => copy::per_s(usize::try_from(bytes).ok()?),
            _ => None,
        }
    }
}

/// Frames of this size have a limit that is measured.
pub(super) fn has_limit(bytes: u32) -> bool {
    bytes == 60 || bytes > ETHERNET
}

/// Rings whose lines are counted.
fn rings(technique: &Technique) -> Option<Ring> {
    match technique.switch {
        "" if technique.kind == "vhost-user" => Some(Ring::Split),
        keys if keys.contains("csb=on") => Some(Ring::Csb),
        keys if keys.contains("model=e1000") => Some(Ring::E1000),
        _ => None,
    }
}

/// What the column "of the limit" is.
pub(super) const LIMIT: &str = "of the limit: frames for each CPU second of the switch, over those \
    that two threads move whose only work is the cache lines of such frames, all asked for at \
    once (`vmlan probe --only limit`); of large frames, over those that one core copies out of one \
    16 MiB into others. Measured in the same cell (docs/measuring.md).";

/// For the line of a measurement that is done.
pub(super) fn show(w: &Window) -> String {
    format!(
        "{} frames/s, {:.2} Gbit/s, {:.0} accesses and {:.1} interrupts for 1,000 frames",
        si(w.frames_per_s),
        w.gbit_per_s,
        w.accesses_per_kframe,
        w.interrupts_per_kframe
    )
}

fn report(all: &[(&Case, Samples<Window>)], sizes: &[u32]) -> Result<Report, Failure> {
    let keys = |w: &Case| json!({ "technique": w.technique.name, "bytes": w.bytes });
    let limit = sizes.iter().any(|&bytes| has_limit(bytes)).then(|| LIMIT.to_owned());
    let notes = [words(), PAPER.to_owned()]
        .into_iter()
        .chain(limit)
        .chain(techniques(all.iter().map(|c| c.0.technique)));
    Ok(Report {
        title: "Frames straight from the driver, guest to guest".into(),
        notes: notes.collect(),
        tables: sizes.iter().map(|&bytes| table(all, bytes)).collect(),
        figure: figure(all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: all.iter().filter_map(|(w, s)| ratio(all, w, s)).collect(),
    })
}

/// Over the row that this one adds to.
fn ratio(
    all: &[(&Case, Samples<Window>)],
    what: &Case,
    samples: &Samples<Window>,
) -> Option<(String, Spreads)> {
    let from = what.technique.from?;
    let (_, base) = all.iter().find(|(w, _)| w.technique.name == from && w.bytes == what.bytes)?;
    let words = format!("{} / {from}, {} B", what.technique.name, what.bytes);
    Some((words, samples.ratios(base, |w| w.frames_per_s)))
}

pub(super) fn words() -> String {
    "`vmlan pkt-gen` tx to rx; a guest with nothing to do sleeps at once (`--spin 0`). accesses, \
     interrupts: register accesses that left the guest (virtio: doorbells) and interrupts, both \
     guests, for each 1,000 frames delivered. CPU in cores: of the switch, the sender, the \
     receiver. drops: frames lost in the rounds together. over: frames/s over those of the row \
     that this one adds one thing to."
        .into()
}

/// What each technique is, in a note each.
pub(super) fn techniques(
    used: impl Iterator<Item = &'static Technique>,
) -> impl Iterator<Item = String> {
    let mut seen: Vec<&'static Technique> = Vec::new();
    used.for_each(|t| {
        if !seen.contains(&t) {
            seen.push(t);
        }
    });
    seen.into_iter().map(|t| format!("- {}: {}", t.name, t.words()))
}

fn table(all: &[(&Case, Samples<Window>)], bytes: u32) -> Table {
    let table = Table::new(format!("{bytes} bytes"), &HEADS);
    let mut table = if [60, 1514].contains(&bytes) { table } else { table.long() };
    table.heads.extend(has_limit(bytes).then(|| "of the limit".to_owned()));
    let here = || all.iter().filter(|(w, _)| w.bytes == bytes);
    for (what, samples) in here() {
        let from = what.technique.from;
        let base = from.and_then(|from| here().find(|(w, _)| w.technique.name == from));
        let mut row = row(what.technique.name, samples, base.map(|(_, base)| base));
        if let (Some(from), Some(last)) = (from.filter(|_| base.is_some()), row.last_mut()) {
            *last = format!("{from}: {last}");
        }
        row.extend(has_limit(bytes).then(|| samples.by_class(Window::of_limit).words()));
        table.rows.push(row);
    }
    table
}

/// Heads of the columns that [`row`] fills.
pub(super) const HEADS: [&str; 10] = [
    "NIC",
    "frames/s",
    "Gbit/s",
    "accesses",
    "interrupts",
    "CPU switch",
    "sender",
    "receiver",
    "drops",
    "over",
];

/// What was seen of a NIC.
pub(super) fn row(
    name: &str,
    samples: &Samples<Window>,
    base: Option<&Samples<Window>>,
) -> Vec<String> {
    let m = |value: fn(&Window) -> f64| number(samples.median(value));
    let guest = |n: usize| number(samples.median(|w| w.cpu_guests.get(n).copied().unwrap_or(0.0)));
    let drops = samples.0.iter().flatten().map(|w| w.drops).sum();
    let times = base.map(|base| samples.ratios(base, |w| w.frames_per_s));
    vec![
        name.into(),
        samples.median(|w| w.frames_per_s).map_or_else(|| "-".into(), si),
        m(|w| w.gbit_per_s),
        m(|w| w.accesses_per_kframe),
        m(|w| w.interrupts_per_kframe),
        m(|w| w.cpu_switch),
        guest(0),
        guest(1),
        count(drops),
        times.unwrap_or_default().words(),
    ]
}

fn figure(all: &[(&Case, Samples<Window>)]) -> Figure {
    let sizes: Vec<f64> = SIZES.iter().map(|&s| s.into()).collect();
    let panel = |title: &str, y: &str, value: fn(&Window) -> f64| {
        let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (what, samples) in all {
            let name = what.technique.name;
            let at = series.iter().position(|s| s.0 == name).unwrap_or_else(|| {
                series.push((name.into(), Vec::new()));
                series.len() - 1
            });
            if let Some(found) = samples.median(value) {
                series[at].1.push((what.bytes.into(), found));
            }
        }
        let x = X::Lines { label: "bytes of a frame".into(), marks: sizes.clone(), log: true };
        Panel { title: title.into(), x, y: y.into(), log: true, series }
    };
    Figure {
        title: "vmlan bench raw: frames straight from the driver, guest to guest".into(),
        columns: 2,
        panels: vec![
            panel("frames", "frames/s", |w| w.frames_per_s),
            panel("bits", "bit/s", |w| w.gbit_per_s * 1e9),
            panel("register accesses, both guests", "for 1,000 frames", |w| w.accesses_per_kframe),
            panel("interrupts, both guests", "for 1,000 frames", |w| w.interrupts_per_kframe),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::technique;

    #[test]
    fn rings_are_those_of_the_technique() {
        let of = |name| rings(technique::one(name).unwrap());
        let found = ["plain", "mapped", "e1000e-mapped", "csb-4096", "virtio"].map(of);
        let all = [Ring::E1000, Ring::E1000, Ring::E1000, Ring::Csb, Ring::Split];
        assert_eq!(found, all.map(Some));
        assert_eq!(of("vmxnet3-mapped"), None);
    }

    #[test]
    fn the_report_has_a_row_for_each_technique_and_a_table_for_each_size() {
        let window = |rate| Window {
            frames_per_s: rate,
            gbit_per_s: 1.5,
            cpu_switch: 0.5,
            cpu_guests: vec![0.25, 0.5],
            drops: 2,
            limit_frames_per_s: Some(2e7),
            ..Window::default()
        };
        let what = |name, bytes| Case { technique: technique::one(name).unwrap(), bytes };
        let cases =
            [what("msi-unread", 60), what("csb", 60), what("msi-unread", 1514), what("csb", 1514)];
        let samples =
            |rate: f64| Samples::near(vec![Some(window(rate)), None, Some(window(rate * 2.0))]);
        let all: Vec<_> = cases.iter().zip([1e5, 2e6, 1e5, 1e6].map(samples)).collect();
        let report = report(&all, &[60, 1514]).unwrap();
        assert_eq!(report.tables.len(), 2);
        let row = report.tables[0].rows[1].join(" ");
        assert_eq!(
            row,
            "csb 3.00 M 1.50 0.00 0.00 0.50 0.25 0.50 4 msi-unread: near: 20.0 to 20.0, 2 pairs \
                near: 0.20 to 0.40, 2 pairs"
        );
        let heads = [0, 1].map(|n| report.tables[n].heads.last().unwrap().as_str());
        assert_eq!(heads, ["of the limit", "over"]);
        assert!(report.notes[2].starts_with("of the limit"), "{:?}", report.notes);
        assert_eq!(report.cells.as_array().unwrap().len(), 12);
        assert!(report.cells[1]["figures"].is_null() && report.cells[0]["figures"]["drops"] == 2);
        assert!(report.figure.svg("").unwrap().contains("csb"));
    }
}
