//! Ozaki and Nakao's "Analysis of Network I/O Performance in KVM" (2007) again, with each NIC there
//! is.

mod accesses;
mod chips;
mod steps;
mod tcp_window;

use serde_json::Value;

use super::part::{self, Part};
use super::plot::Figure;
use super::report::Report;
use super::{Run, Samples};
use crate::failure::Failure;
use crate::native::Chip;
use crate::native::chip::{Choice, WAYS};

type Measure = fn(&mut Run<'_>, &Choice) -> Result<Part, Failure>;
type Row = (&'static str, u32, (&'static [&'static str], Measure));

/// With their shares of the time, and the ways that each has.
const PARTS: [Row; 3] = [
    ("accesses", 5, (&accesses::WAYS, accesses::run)),
    ("windows", 3, (&tcp_window::WAYS, tcp_window::run)),
    ("chips", 3, (&chips::NAMES, chips::run)),
];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let choice = Choice::of(&run.args.only)?;
    let mut parts = part::wanted(&PARTS, &run.args.part)?;
    let left_out = left_out(&choice, &parts);
    parts.retain(|(_, _, (ways, _))| ways.iter().any(|way| choice.with(way).next().is_some()));
    match &left_out {
        Some(text) if parts.is_empty() => return Err(Failure::Failed(text.clone())),
        Some(text) => eprintln!("{text}"),
        None => {}
    }
    let mut report = Report {
        title:
            "The KVM analysis: register accesses, TCP by window, and four NICs beside virtio-net"
                .into(),
        notes: Vec::new(),
        tables: Vec::new(),
        figure: Figure { title: "vmlan bench kvm-analysis".into(), columns: 2, panels: Vec::new() },
        cells: Value::Array(Vec::new()),
        ratios: Vec::new(),
    };
    part::all(run, &parts, &mut report, |run, (_, measure)| measure(run, &choice))?;
    report.notes.extend(choice.chips.iter().map(|c| format!("- {}: {}", c.name, c.note)));
    let ways = WAYS.iter().filter(|(name, _)| choice.with(name).next().is_some());
    report.notes.extend(ways.map(|(name, note)| format!("- {name}: {note}")));
    report.notes.extend(left_out);
    Ok(report)
}

/// What was named and these parts do not measure, in a line.
fn left_out(choice: &Choice, parts: &[Row]) -> Option<String> {
    let of_part = |(name, _, (ways, _)): &Row| {
        let all = choice.left_out(ways);
        (!all.is_empty()).then(|| format!("{name} of {}", all.join(", ")))
    };
    let all: Vec<_> = parts.iter().filter_map(of_part).collect();
    (!all.is_empty()).then(|| format!("not measured: {}", all.join("; ")))
}

/// A line or a row of bars for each NIC: those of its points that there are.
fn series(
    choice: &Choice,
    points: impl Fn(&'static Chip) -> Vec<(f64, f64)>,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let all = choice.chips.iter().map(|&nic| (nic.name.to_owned(), points(nic)));
    all.filter(|(_, points)| !points.is_empty()).collect()
}
