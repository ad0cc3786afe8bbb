//! Receive livelock, the paper's figure 3: offered load swept far past capacity against what the
//! application receives.

use serde::Serialize;
use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells};
use super::rounds::Cell;
use super::{Run, Samples, raw, sockets};
use crate::failure::Failure;
use crate::native::{Cores, Lab, MAC_B, Plug, Technique, Window, technique};
use vmlan_config::human_text::{si, to_f64};

const TECHNIQUES: [&str; 5] = ["plain", "moderated", "polling", "csb", "virtio"];

/// Frames a second that are asked of the source, 0 for all it has. One of them saturates an
/// application that takes all that [`APPLICATION_NS`] allows, and one is [`FAR`] times as much.
const LOADS: [u64; 7] = [50_000, 100_000, 220_000, 400_000, 800_000, 2_400_000, 0];

/// Of a short run: enough for the peak and far beyond it.
const SHORT_LOADS: [u64; 4] = [100_000, 220_000, 2_400_000, 0];

/// What the application does with each datagram.
const APPLICATION_NS: &str = "5000";
/// As in the paper.
const BURST: &str = "100";
/// The goal: so much of the peak is left...
const GOAL: f64 = 0.9;
/// ...at so many times the load that saturates the application.
const FAR: f64 = 10.0;
/// Where less than this of what is offered is received, the application is saturated.
const SATURATED: f64 = 0.95;

/// Who runs first in the guest: its driver, as in a kernel without NAPI, or driver and application
/// in turns, as with NAPI. Every technique is measured with both.
const SCHEDULES: [&str; 2] = ["interrupts-first", "in-turns"];

struct Case {
    schedule: &'static str,
    load: u64,
    technique: &'static Technique,
}

/// For each second.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    offered: f64,
    received: f64,
    /// Datagrams that found the socket's queue full.
    queue_full: f64,
    #[serde(flatten)]
    window: Window,
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    // The guest under test keeps its own processor, whatever the source takes: otherwise the
    // kernel's scheduler is measured.
    run.setup.cores = Cores::Receiver;
    let mut cases = Vec::new();
    let loads = run.args.axis(&LOADS, &SHORT_LOADS);
    for (schedule, load) in SCHEDULES.iter().flat_map(|s| loads.iter().map(|load| (*s, *load))) {
        cases.extend(techniques.iter().map(|technique| Case { schedule, load, technique }));
    }
    let name = |w: &Case| {
        let asked = if w.load == 0 { "all there is".into() } else { si(to_f64(w.load)) + "/s" };
        format!("{}, {}, {asked}", w.schedule, w.technique.name)
    };
    let show = |_: &Case, s: &Measured| {
        format!("offered {}/s, the application received {}/s", si(s.offered), si(s.received))
    };
    let samples = run.rounds(&cases, name, show, measure)?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    report(&all)
}

fn measure(cell: Cell<'_, Case>) -> Result<Measured, Failure> {
    let load = cell.what.load.to_string();
    let plugs = [("a", technique::one("virtio")?), ("b", cell.what.technique)]
        .map(|(name, technique)| Plug { name, technique, keys: "" });
    // A full receiver loses frames at once: nobody slows the source down.
    let mut lab = Lab::start(cell.setup, &plugs, &["--full-wait", "0"])?;
    let warm_up = sockets::warm_up(cell.setup);
    let sink = "stack --json -f livelock-sink --ip 10.0.0.2/24";
    let sink = sink.split(' ').chain(["--mac", MAC_B, "--app-ns", APPLICATION_NS]);
    let sink = sink.chain(["--warmup", &warm_up]);
    let sink: Vec<_> = sink.chain(["--schedule", cell.what.schedule]).collect();
    let b = lab.ready_guest("b", &sink)?;
    let source = "pkt-gen --json -f tx --dst-ip 10.0.0.2 --dst-port 7009 -l 60";
    let source = source.split(' ').chain(["-d", MAC_B, "-b", BURST, "-R", &load]);
    let a = lab.ready_guest("a", &source.collect::<Vec<_>>())?;
    let seen = lab.measure(vec![a, b], cell.time, cell.news, &mut || ())?;
    Measured::of(&seen.said[1], seen.window)
}

impl Measured {
    fn of(sink: &serde_json::Value, window: Window) -> Result<Self, Failure> {
        let field = |name: &str| {
            let found = sink.get(name).and_then(serde_json::Value::as_f64);
            found.ok_or_else(|| Failure::Failed(format!("the sink's summary has no {name}")))
        };
        let seconds = field("seconds")?.max(1e-6);
        Ok(Self {
            offered: window.sent_per_s,
            received: field("messages_per_s")?,
            queue_full: field("dropped")? / seconds,
            window,
        })
    }
}

/// One technique's curve.
struct Curve {
    technique: &'static Technique,
    /// Offered, received: medians, by load.
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn peak(&self) -> f64 {
        self.points.iter().map(|p| p.1).fold(0.0, f64::max)
    }

    /// The least load that is more than the application gets. Not where it gets about all that it
    /// ever gets: that may be the highest load of all. `None` if it keeps up with every load.
    fn saturating(&self) -> Option<f64> {
        let beyond = self.points.iter().filter(|p| p.1 < SATURATED * p.0).map(|p| p.0);
        beyond.min_by(f64::total_cmp)
    }

    /// Offered and received far past saturation: nearest to [`FAR`] times that load, and where
    /// least is received. `None` if the source got nowhere near.
    fn far(&self) -> Option<[(f64, f64); 2]> {
        let load = self.saturating()?;
        let far = || self.points.iter().copied().filter(|p| p.0 >= FAR * load);
        let nearest = far().min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some([nearest, far().min_by(|a, b| a.1.total_cmp(&b.1))?])
    }
}

fn curves(all: &Results<'_>, schedule: &str) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for (what, samples) in all.iter().filter(|(w, _)| w.schedule == schedule) {
        let at = curves.iter().position(|c| c.technique == what.technique).unwrap_or_else(|| {
            curves.push(Curve { technique: what.technique, points: Vec::new() });
            curves.len() - 1
        });
        let both = samples.median(|s| s.offered).zip(samples.median(|s| s.received));
        curves[at].points.extend(both);
    }
    curves
}

fn report(all: &Results<'_>) -> Result<Report, Failure> {
    let keys = |w: &Case| {
        let technique = w.technique.name;
        json!({ "schedule": w.schedule, "technique": technique, "asked": w.load })
    };
    let curves = SCHEDULES.map(|schedule| (schedule, curves(all, schedule)));
    let mut notes = vec![
        format!(
            "`vmlan pkt-gen` tx (virtio) in bursts of {BURST} to `vmlan stack -f livelock-sink`, \
             60-byte frames; the application works {APPLICATION_NS} ns on a datagram; a full \
             receiver loses frames at once (`--full-wait 0`). offered: frames the switch took from \
             the source; received: datagrams that the application took. saturated: the least load \
             of which it got less than {:.0} %; far beyond: the least load of {FAR} times that \
             and more; at worst: the load beyond at which least was received.",
            SATURATED * 100.0
        ),
        "The schedule is that of every row of a table. interrupts-first: the driver comes before \
         the application for as long as frames come, as hardware interrupts do in a kernel without \
         NAPI. in-turns: after 64 frames it is the application's turn, as with NAPI. Goal: 90 % of \
         the peak at ten times the load that saturates."
            .to_owned(),
        "The paper (figure 3, interrupts first): most configurations fall to very low rates or 0; \
         only Linux with virtio (without VHOST) and FreeBSD's polling, which keeps time for \
         processes, hold their peak, up to 20 Mframes/s offered. It does not name the CSB among \
         them. What the CSB does against livelock is that an awake driver is not interrupted and \
         reads no register; what it does not do is to choose between driver and application: \
         where the driver comes first for as long as frames come, it starves the application with \
         a CSB as without."
            .to_owned(),
    ];
    notes.extend(raw::techniques(all.iter().map(|c| c.0.technique)));
    Ok(Report {
        title: "Receive livelock: the paper's figure 3".into(),
        notes,
        tables: curves
            .iter()
            .map(|(schedule, curves)| verdicts(schedule, curves))
            .chain(curves.iter().map(|(schedule, curves)| loads(all, schedule, curves)))
            .collect(),
        figure: figure(&curves),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

fn verdicts(schedule: &str, curves: &[Curve]) -> Table {
    let heads = [
        "NIC",
        "peak/s",
        "saturated at/s",
        "far beyond, offered/s",
        "received/s",
        "of the peak",
        "goal 90 %",
        "at worst, offered/s",
        "received/s",
        "of the peak",
    ];
    let mut table = Table::new(format!("What is left of the peak, {schedule}"), &heads);
    for curve in curves {
        let peak = curve.peak();
        let share = |received: f64| format!("{:.0} %", received / peak * 100.0);
        let saturated = curve.saturating().map_or_else(|| "-".into(), si);
        let mut row = vec![curve.technique.name.into(), si(peak), saturated];
        match curve.far() {
            None => row.extend(
                ["-", "-", "-", "the source is too slow", "-", "-", "-"].map(str::to_owned),
            ),
            Some([near, worst]) => {
                let goal = if near.1 >= GOAL * peak { "met" } else { "missed" };
                row.extend([si(near.0), si(near.1), share(near.1), goal.into()]);
                row.extend([si(worst.0), si(worst.1), share(worst.1)]);
            }
        }
        table.rows.push(row);
    }
    table
}

/// A row for each load: offered and received of each technique.
fn loads(all: &Results<'_>, schedule: &str, curves: &[Curve]) -> Table {
    let mut heads = vec!["asked of the source".to_owned()];
    heads.extend(curves.iter().map(|c| format!("{}: offered, received", c.technique.name)));
    let mut table =
        Table { title: format!("Frames a second, {schedule}"), heads, ..Table::default() }.long();
    for load in LOADS.into_iter().filter(|load| all.iter().any(|(w, _)| w.load == *load)) {
        let asked = if load == 0 { "all".into() } else { si(to_f64(load)) };
        let cell = |c: &Curve| {
            let here =
                |w: &Case| (w.schedule, w.load, w.technique) == (schedule, load, c.technique);
            let found = all.iter().find(|(w, _)| here(w));
            let both =
                found.and_then(|(_, s)| s.median(|s| s.offered).zip(s.median(|s| s.received)));
            both.map_or_else(|| "-".into(), |(o, r)| format!("{}, {}", si(o), si(r)))
        };
        table.rows.push([asked].into_iter().chain(curves.iter().map(cell)).collect());
    }
    table
}

fn figure(curves: &[(&str, Vec<Curve>)]) -> Figure {
    let panel = |(schedule, curves): &(&str, Vec<Curve>)| Panel {
        title: format!("received against offered load, {schedule}"),
        x: X::Lines {
            label: "offered, frames/s".into(),
            marks: [1e4, 1e5, 1e6, 1e7].to_vec(),
            log: true,
        },
        y: "received by the application, datagrams/s".into(),
        log: false,
        series: curves.iter().map(|c| (c.technique.name.to_owned(), c.points.clone())).collect(),
    };
    Figure {
        title: "vmlan bench livelock: the paper's figure 3".into(),
        columns: 2,
        panels: curves.iter().map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_about_loads_far_past_saturation() {
        for loads in [LOADS.as_slice(), &SHORT_LOADS] {
            verdicts_over(loads);
        }
    }

    fn verdicts_over(loads: &[u64]) {
        let case = |name, load| Case {
            schedule: SCHEDULES[0],
            load,
            technique: technique::one(name).unwrap(),
        };
        let cases: Vec<_> = ["plain", "virtio"]
            .into_iter()
            .flat_map(|name| loads.iter().map(move |load| case(name, *load)))
            .collect();
        // Nearly all that an application of APPLICATION_NS can ever take: so much the CSB gets.
        let plateau: f64 = 195_000.0;
        let seen = |w: &Case| {
            let offered = if w.load == 0 { 5e6 } else { to_f64(w.load) };
            let falls = if w.technique.name == "plain" { 1e6 } else { 4.5e6 };
            let received = if offered > falls { 1000.0 } else { offered.min(plateau) };
            Measured { offered, received, queue_full: 0.0, window: Window::default() }
        };
        let all: Vec<_> = cases.iter().map(|w| (w, Samples::near(vec![Some(seen(w))]))).collect();
        let report = report(&all).unwrap();
        let rows: Vec<_> = report.tables[0].rows.iter().map(|r| r.join(" ")).collect();
        assert_eq!(
            rows,
            [
                "plain 195.00 k 220.00 k 2.40 M 1000 1 % missed 2.40 M 1000 1 %",
                "virtio 195.00 k 220.00 k 2.40 M 195.00 k 100 % met 5.00 M 1000 1 %"
            ]
        );
        assert!(report.tables[1].rows.is_empty(), "nothing was measured in turns");
        assert_eq!(report.tables[2].rows.len(), loads.len());
        assert!(report.figure.svg("").unwrap().contains("virtio"));
    }

    #[test]
    fn a_peak_at_the_highest_load_does_not_hide_where_it_saturates() {
        let technique = technique::one("plain").unwrap();
        let points = vec![(1e5, 0.99e5), (2e5, 1.24e5), (24e5, 1.22e5), (124e5, 1.32e5)];
        let curve = Curve { technique, points };
        assert_eq!(curve.saturating(), Some(2e5));
        assert_eq!(curve.far(), Some([(24e5, 1.22e5); 2]));
        let points = vec![(1e5, 0.99e5), (2e5, 1.98e5)];
        assert_eq!(Curve { technique, points }.far(), None, "it keeps up");
    }
}
