//! Who gets what, and what it costs the others: the fairness paper's figures 6 to 10, and shares, limits, neighbours and uplinks.

mod limits;
mod neighbour;
mod queues;
mod scene;
mod shares;
mod uplink;

use serde_json::Value;

use super::plot::{Figure, Panel};
use super::report::{Report, Table};
use super::{Run, raw};
use crate::exit::Failure;
use crate::lab::{Cores, Technique};

/// NICs of guests that are flooded: one that is interrupted for everything, and one that is asked.
const TECHNIQUES: [&str; 2] = ["plain", "virtio"];

/// What a part has found.
#[derive(Default)]
struct Part {
    notes: Vec<String>,
    tables: Vec<Table>,
    panels: Vec<Panel>,
    /// An array.
    cells: Value,
}

type Measure = fn(&mut Run<'_>, &[&'static Technique]) -> Result<Part, Failure>;

const PARTS: [(&str, Measure); 5] = [
    ("queues", queues::run),
    ("shares", shares::run),
    ("limits", limits::run),
    ("neighbour", neighbour::run),
    ("uplink", uplink::run),
];

const NOTES: [&str; 2] = [
    "One worker. Floods come from one thread of this program that drives all flooding virtio-net ports by polling: frames lie ready, only descriptors are \
     written. It has the first core, where it shares that with other guests it sleeps 30 us when little has moved; the switch has the last one.",
    "Cycles and instructions: this machine's hypervisor offers no counters for them (perf stat: not supported), so what is given is CPU time \
     (/proc/PID/task/TID/schedstat, to the nanosecond): unhalted cycles are that times the clock. Instructions are not given.",
];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let parts = wanted(&run.args.part)?;
    // The switch is what is shared: it must not share its core.
    run.setup.cores = Cores::Apart;
    let mut report = Report {
        title: "Fairness: the paper's figures 6 to 10, shares, limits, neighbours".into(),
        notes: NOTES.map(str::to_owned).to_vec(),
        tables: Vec::new(),
        figure: Figure { title: "vmlan bench fairness".into(), columns: 2, panels: Vec::new() },
        cells: Value::Array(Vec::new()),
    };
    for (name, measure) in parts {
        eprintln!("{name}:");
        let part = measure(run, &techniques)?;
        report.notes.extend(part.notes);
        report.tables.extend(part.tables);
        report.figure.panels.extend(part.panels);
        let found = part.cells.as_array().cloned().unwrap_or_default();
        if let Value::Array(cells) = &mut report.cells {
            cells.extend(found.into_iter().map(|cell| named(cell, name)));
        }
    }
    report.notes.extend(raw::techniques(techniques.into_iter()));
    Ok(report)
}

fn named(mut cell: Value, part: &str) -> Value {
    cell["part"] = part.into();
    cell
}

/// All parts, or those that were asked for.
fn wanted(asked: &[String]) -> Result<Vec<(&'static str, Measure)>, Failure> {
    if let Some(odd) = asked.iter().find(|a| !PARTS.iter().any(|(name, _)| name == a)) {
        let all = PARTS.map(|(name, _)| name).join(", ");
        return Err(Failure::Usage(format!("--part {odd}: there are {all}")));
    }
    let is_wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    Ok(PARTS.into_iter().filter(|(name, _)| is_wanted(name)).collect())
}
