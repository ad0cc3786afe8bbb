//! Ozaki and Nakao's "Analysis of Network I/O Performance in KVM" (2007) again, with each NIC there is.

mod accesses;
mod chips;
mod steps;
mod windows;

use serde_json::Value;

use super::part::{self, Part};
use super::plot::Figure;
use super::report::Report;
use super::{Run, Samples};
use crate::exit::Failure;
use crate::lab::{Chip, chip};

type Measure = fn(&mut Run<'_>, &[&'static Chip]) -> Result<Part, Failure>;

const PARTS: [(&str, Measure); 3] =
    [("accesses", accesses::run), ("windows", windows::run), ("chips", chips::run)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let nics = chip::named(&run.args.only)?;
    let parts = part::wanted(&PARTS, &run.args.part)?;
    let mut report = Report {
        title:
            "The KVM analysis: register accesses, TCP by window, and four NICs beside virtio-net"
                .into(),
        notes: Vec::new(),
        tables: Vec::new(),
        figure: Figure { title: "vmlan bench kvm-analysis".into(), columns: 2, panels: Vec::new() },
        cells: Value::Array(Vec::new()),
    };
    for (name, measure) in parts {
        eprintln!("{name}:");
        measure(run, &nics)?.join(&mut report, name);
    }
    report.notes.extend(nics.iter().map(|c| format!("- {}: {}", c.name, c.note)));
    let is_used = |way: &str| nics.iter().any(|c| c.way(way).is_some());
    let ways = chip::WAYS.iter().filter(|(name, _)| is_used(name));
    report.notes.extend(ways.map(|(name, note)| format!("- {name}: {note}")));
    Ok(report)
}

/// A line or a row of bars for each NIC: those of its points that there are.
fn series(
    nics: &[&'static Chip],
    points: impl Fn(&'static Chip) -> Vec<(f64, f64)>,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let all = nics.iter().map(|&nic| (nic.name.to_owned(), points(nic)));
    all.filter(|(_, points)| !points.is_empty()).collect()
}

/// Those of `nics` that have the way.
fn with(nics: &[&'static Chip], way: &str) -> Vec<&'static Chip> {
    nics.iter().copied().filter(|nic| nic.way(way).is_some()).collect()
}
