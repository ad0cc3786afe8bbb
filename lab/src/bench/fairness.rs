//! Who gets what, and what it costs the others: the fairness paper's figures 6 to 10, and shares,
//! limits, neighbours and uplinks.

mod limits;
mod neighbour;
mod queues;
mod scene;
mod shares;
mod uplink;

use serde_json::Value;

use super::part::{self, Part};
use super::plot::Figure;
use super::report::Report;
use super::{Run, raw};
use crate::failure::Failure;
use crate::native::{Cores, Technique};

/// NICs of guests that are flooded: one that is interrupted for everything, and one that is asked.
const TECHNIQUES: [&str; 2] = ["plain", "virtio"];

type Measure = fn(&mut Run<'_>, &[&'static Technique]) -> Result<Part, Failure>;

/// With their shares of the time.
const PARTS: [(&str, u32, Measure); 5] = [
    ("queues", 4, queues::run),
    ("shares", 2, shares::run),
    ("limits", 3, limits::run),
    ("neighbour", 4, neighbour::run),
    ("uplink", 1, uplink::run),
];

const NOTES: [&str; 2] = [
    "One worker. Floods come from one thread of this program that drives all flooding virtio-net \
     ports by polling: frames lie ready, only descriptors are written. It has the first core, \
     where it shares that with other guests it sleeps 30 us when little has moved; the switch has \
     the last one.",
    "Cycles and instructions: this machine's hypervisor offers no counters for them (perf stat: \
     not supported), so what is given is CPU time (/proc/PID/task/TID/schedstat, to the \
     nanosecond): unhalted cycles are that times the clock. Instructions are counted by callgrind \
     instead, in simulated time (`make bench-instructions`).",
];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let parts = part::wanted(&PARTS, &run.args.part)?;
    // The switch is what is shared: it must not share its core.
    run.setup.cores = Cores::Apart;
    let mut report = Report {
        title: "Fairness: the paper's figures 6 to 10, shares, limits, neighbours".into(),
        notes: NOTES.map(str::to_owned).to_vec(),
        tables: Vec::new(),
        figure: Figure { title: "vmlan bench fairness".into(), columns: 2, panels: Vec::new() },
        cells: Value::Array(Vec::new()),
        ratios: Vec::new(),
    };
    part::all(run, &parts, &mut report, |run, measure| measure(run, &techniques))?;
    report.notes.extend(raw::techniques(techniques.into_iter()));
    Ok(report)
}
