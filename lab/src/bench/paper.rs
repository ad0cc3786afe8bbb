//! The paper's figures 4 and 5 rebuilt: sockets in guests, with the host and with another guest.

mod numbers;

use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::sockets::{Job, Kind, Measured, Workload, show};
use super::{Run, Samples, raw};
use crate::failure::Failure;
use crate::native::{Technique, host};
use vmlan_config::human_text::to_f64;

const TECHNIQUES: [&str; 6] = ["plain", "moderated", "combined", "csb", "mapped", "virtio"];

/// The paper's columns.
const WORKLOADS: [Workload; 5] = [
    Workload { name: "UDP8", kind: Kind::Datagrams, bytes: 8 },
    Workload { name: "UDP-1460", kind: Kind::Datagrams, bytes: 1460 },
    Workload { name: "TCP", kind: Kind::Stream, bytes: 1460 },
    Workload { name: "TCPw", kind: Kind::Stream, bytes: 65_536 },
    Workload { name: "TCPRR", kind: Kind::Requests, bytes: 1 },
];

/// Who talks to whom, with how many threads in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scene {
    /// The peer is the host.
    host: bool,
    threads: u8,
}

const SCENES: [Scene; 4] = [
    Scene { host: true, threads: 1 },
    Scene { host: true, threads: 2 },
    Scene { host: false, threads: 1 },
    Scene { host: false, threads: 2 },
];

impl Scene {
    fn name(self) -> String {
        let peer = if self.host { "guest to host" } else { "guest to guest" };
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads" };
        format!("{peer}, {threads}")
    }
}

struct Case {
    scene: Scene,
    workload: Workload,
    technique: &'static Technique,
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let skipped = host::enter().err();
    let scenes = SCENES.iter().filter(|s| !s.host || skipped.is_none());
    let mut cases = Vec::new();
    for &scene in scenes {
        for workload in WORKLOADS {
            cases.extend(techniques.iter().map(|technique| Case { scene, workload, technique }));
        }
    }
    let name = |w: &Case| format!("{}, {}, {}", w.scene.name(), w.workload.name, w.technique.name);
    let shown = |w: &Case, seen: &Measured| show(w.workload, seen);
    let samples = run.rounds(&cases, name, shown, |cell| {
        let Case { scene, workload, technique } = *cell.what;
        let threads = scene.threads;
        let job = Job {
            setup: cell.setup,
            technique,
            workload,
            threads,
            window: 0,
            time: cell.time,
            news: cell.news,
        };
        if scene.host { job.guest_to_host() } else { job.guest_to_guest() }
    })?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    report(&all, skipped)
}

fn report(all: &Results<'_>, skipped: Option<String>) -> Result<Report, Failure> {
    let keys = |w: &Case| {
        let (scene, workload, unit) = (w.scene.name(), w.workload.name, w.workload.unit());
        json!({ "scene": scene, "workload": workload, "unit": unit, "technique": w.technique.name })
    };
    let mut notes = vec![
        "`vmlan stack`: UDP8 and UDP-1460 in thousands of datagrams a second that the receiving \
         application got (* where the sender was more than a tenth faster), TCP (writes of 1,460 \
         bytes) and TCPw (of 64 KiB) in Mbit/s there, TCPRR in thousands of transactions a second; \
         in parentheses, times plain. paper: Linux and FreeBSD guests in its figures 4 and 5 \
         (guest to host over TAP, rows TX; guest to guest over VALE; virtio from figure 11), and \
         times BASE: for the shape, absolute figures of other hardware are not a target."
            .to_owned(),
        "threads: driver and application of a guest take turns (1), or have a thread each (2), for \
         the paper's 1 and 2 CPUs of a guest. The host is this program in a network namespace of \
         its own, behind a tap port, with sockets of the kernel."
            .to_owned(),
    ];
    notes.extend(skipped.map(|why| format!("guest to host is left out: {why}")));
    notes.extend(raw::techniques(all.iter().map(|c| c.0.technique)));
    let scenes = SCENES.iter().filter(|s| all.iter().any(|(w, _)| w.scene == **s));
    Ok(Report {
        title: "The paper's figures 4 and 5: sockets".into(),
        notes,
        tables: scenes.map(|scene| table(all, *scene)).collect(),
        figure: figure(all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
    })
}

fn table(all: &Results<'_>, scene: Scene) -> Table {
    let mut heads = vec!["NIC".to_owned()];
    for w in WORKLOADS {
        heads.extend([format!("{} {}", w.name, w.unit()), "paper".into()]);
    }
    let mut table = Table { title: scene.name(), heads, rows: Vec::new() };
    let mut names: Vec<&str> = Vec::new();
    for (what, _) in all.iter().filter(|(w, _)| w.scene == scene) {
        if !names.contains(&what.technique.name) {
            names.push(what.technique.name);
        }
    }
    for name in names {
        let mut row = vec![name.to_owned()];
        for column in 0..WORKLOADS.len() {
            row.extend([ours(all, scene, name, column), theirs(scene, name, column)]);
        }
        table.rows.push(row);
    }
    table
}

fn find<'a>(
    all: &'a Results<'_>,
    scene: Scene,
    name: &str,
    column: usize,
) -> Option<&'a Samples<Measured>> {
    let is =
        |w: &Case| w.scene == scene && w.technique.name == name && w.workload == WORKLOADS[column];
    all.iter().find(|(w, _)| is(w)).map(|(_, samples)| samples)
}

/// `409 (10x)`, with a star where the receiver does not keep up.
fn ours(all: &Results<'_>, scene: Scene, name: &str, column: usize) -> String {
    let Some(samples) = find(all, scene, name, column) else { return "-".into() };
    let Some(value) = samples.median(|s| s.value) else { return "-".into() };
    let slow = WORKLOADS[column].kind == Kind::Datagrams
        && samples.median(|s| s.sent).is_some_and(|sent| sent > 1.1 * value);
    let star = if slow { "*" } else { "" };
    let plain = find(all, scene, "plain", column).map(|plain| samples.ratios(plain, |s| s.value));
    let times = plain.and_then(|times| {
        let (class, spread) = times.most()?;
        Some(format!(" ({}x {}, {} pairs)", spread.words(), class.name(), spread.pairs))
    });
    let times = times.unwrap_or_default();
    format!("{}{star}{times}", number(Some(value)))
}

/// `409 / 475 (10x / 24x)`
fn theirs(scene: Scene, name: &str, column: usize) -> String {
    let (found, base) = (numbers::of(scene, name, column), numbers::of(scene, "plain", column));
    let join = |words: Vec<String>| words.join(" / ");
    let values: Vec<_> = found.iter().flatten().map(|v| v.to_string()).collect();
    let times = found.iter().zip(base).filter_map(|(v, base)| Some((*v)? / base?));
    let times: Vec<_> = times.map(|t| format!("{}x", number(Some(t)))).collect();
    if values.is_empty() { "-".into() } else { format!("{} ({})", join(values), join(times)) }
}

/// A panel for each workload: bars for each technique in each scene.
fn figure(all: &Results<'_>) -> Figure {
    let panel = |workload: &Workload| {
        let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (what, samples) in all.iter().filter(|(w, _)| w.workload == *workload) {
            let name = what.technique.name;
            let at = series.iter().position(|s| s.0 == name).unwrap_or_else(|| {
                series.push((name.into(), Vec::new()));
                series.len() - 1
            });
            let group = SCENES.iter().position(|s| *s == what.scene).unwrap_or(0);
            let found = samples.median(|s| s.value);
            series[at].1.extend(found.map(|value| (to_f64(group as u64), value)));
        }
        let groups = ["host, 1 thread", "host, 2", "guest, 1 thread", "guest, 2"];
        Panel {
            title: workload.name.into(),
            x: X::Groups(groups.map(str::to_owned).to_vec()),
            y: workload.unit().into(),
            log: true,
            series,
        }
    };
    Figure {
        title: "vmlan bench paper: sockets in guests, to the host and to another guest".into(),
        columns: 2,
        panels: WORKLOADS.iter().map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Window, technique};

    #[test]
    fn ours_stand_beside_the_papers() {
        let mut cases = Vec::new();
        for technique in technique::named(&["plain", "csb", "mapped"]).unwrap() {
            cases.extend(WORKLOADS.map(|workload| Case { scene: SCENES[2], workload, technique }));
        }
        let seen = |w: &Case| {
            let value = if w.technique.name == "plain" { 40.0 } else { 1000.0 };
            let sent = if w.technique.name == "csb" { 2000.0 } else { value };
            Measured { value, sent, window: Window::default() }
        };
        let all: Vec<_> = cases.iter().map(|w| (w, Samples::near(vec![Some(seen(w))]))).collect();
        let report = report(&all, Some("no rights".into())).unwrap();
        assert_eq!(report.tables.len(), 1);
        let rows: Vec<_> = report.tables[0].rows.iter().map(|row| row[..3].join(", ")).collect();
        assert_eq!(
            rows,
            [
                "plain, 40.0 (1.00x near, 1 pairs), 32 / 20 (1.00x / 1.00x)",
                "csb, 1000* (25.0x near, 1 pairs), 1526 / 838 (47.7x / 41.9x)",
                "mapped, 1000 (25.0x near, 1 pairs), -"
            ]
        );
        assert!(report.notes.iter().any(|n| n.contains("no rights")));
        assert!(report.figure.svg("").unwrap().contains("UDP-1460"));
        assert_eq!(report.cells[0]["figures"]["value"], 40.0);
    }
}
