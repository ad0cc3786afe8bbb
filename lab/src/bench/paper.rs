//! The paper's figures 4 and 5 rebuilt: sockets in guests, with the host and with another guest.

mod numbers;

use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::sockets::{Job, Kind, Measured, Workload, show};
use super::{Run, Samples, raw};
use crate::alike::Spreads;
use crate::failure::Failure;
use crate::native::{Technique, host};
use vmlan_config::human_text::to_f64;

/// The paper's columns.
pub(super) const WORKLOADS: [Workload; 5] = [
    Workload { name: "UDP8", kind: Kind::Datagrams, bytes: 8 },
    Workload { name: "UDP-1460", kind: Kind::Datagrams, bytes: 1460 },
    Workload { name: "TCP", kind: Kind::Stream, bytes: 1460 },
    Workload { name: "TCPw", kind: Kind::Stream, bytes: 65_536 },
    Workload { name: "TCPRR", kind: Kind::Requests, bytes: 1 },
];

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the host, over TAP (the paper's rows TX).
    Host,
    /// From the host (RX).
    FromHost,
    /// By the switch, where the paper has VALE.
    Switch,
    /// Over two TAP devices and the kernel's bridge.
    Taps,
}

/// With how many threads in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) way: Way,
    pub(super) threads: u8,
}

const fn scene(way: Way, threads: u8) -> Scene {
    Scene { way, threads }
}

const SCENES: [Scene; 8] = [
    scene(Way::Switch, 1),
    scene(Way::Taps, 1),
    scene(Way::Host, 1),
    scene(Way::FromHost, 1),
    scene(Way::Switch, 2),
    scene(Way::Taps, 2),
    scene(Way::Host, 2),
    scene(Way::FromHost, 2),
];

impl Scene {
    fn name(self) -> String {
        let way = match self.way {
            Way::Host => "guest to host (over TAP)",
            Way::FromHost => "host to guest (over TAP)",
            Way::Switch => "guest to guest, by the switch",
            Way::Taps => "guest to guest, over two TAP devices and the kernel's bridge",
        };
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads" };
        format!("{way}, {threads}")
    }

    /// The paper's rows, and ours.
    fn techniques(self) -> &'static [&'static str] {
        match self.way {
            Way::Host => &[
                "plain",
                "moderated",
                "combined",
                "combined-0",
                "csb",
                "csb-moderated",
                "mapped",
                "virtio",
            ],
            Way::FromHost => &["plain", "moderated-100", "combined-100", "csb-100", "virtio"],
            Way::Switch => &["plain", "moderated", "combined", "csb", "mapped", "virtio"],
            Way::Taps => &["plain", "moderated", "combined", "csb", "virtio"],
        }
    }

    /// What the paper measures of receiving.
    fn has(self, workload: Workload) -> bool {
        self.way != Way::FromHost || workload.kind == Kind::Stream
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
    let skipped = host::enter().err();
    let scenes = run.args.axis(&SCENES, &SCENES[..4]).iter();
    let mut cases = Vec::new();
    for &scene in scenes.filter(|s| s.way == Way::Switch || skipped.is_none()) {
        let techniques = run.args.techniques(scene.techniques())?;
        for workload in WORKLOADS.into_iter().filter(|w| scene.has(*w)) {
            cases.extend(techniques.iter().map(|technique| Case { scene, workload, technique }));
        }
    }
    run.failures.extend(skipped.iter().map(|why| format!("what is beside the host: {why}")));
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
        match scene.way {
            Way::Host => job.guest_to_host(),
            Way::FromHost => job.host_to_guest(),
            Way::Switch => job.guest_to_guest(),
            Way::Taps => job.guest_to_guest_over_taps(),
        }
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
        "`vmlan stack`, a guest's network stack: TCP and requests are smoltcp's; UDP streams go \
         past it, straight to the driver with a header made beforehand. Real sockets of Linux \
         guests are in the tables with Linux guests. UDP8 and UDP-1460 in thousands \
         of datagrams a second that the receiving \
         application got (* where the sender was more than a tenth faster), TCP (writes of 1,460 \
         bytes) and TCPw (of 64 KiB) in Mbit/s there, TCPRR in thousands of transactions a second; \
         in parentheses, times plain. paper: Linux and FreeBSD guests in its figures 4 and 5 \
         (rows TX and RX over TAP; guest to guest over VALE and over TAP, which are figures 6 to \
         9; virtio from figure 11), and times BASE: for the shape, absolute figures of other \
         hardware are not a target."
            .to_owned(),
        "combined-0 is the point of the paper's figure 10: send combining helps without \
         moderation (VirtualBox with 2 CPUs, UDP8: 225 k/s instead of 60; with 1 CPU 24 and 24). \
         Figure 11's rows with TSO are not here: smoltcp does not make segments for a NIC to cut; \
         Linux guests do (`make bench-kvm`)."
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
        ratios: all.iter().filter_map(|(w, s)| over_plain(all, w, s)).collect(),
    })
}

fn over_plain(
    all: &Results<'_>,
    what: &Case,
    samples: &Samples<Measured>,
) -> Option<(String, Spreads)> {
    let is = |w: &Case| {
        (w.scene, w.workload) == (what.scene, what.workload) && w.technique.name == "plain"
    };
    let (_, plain) = all.iter().find(|(w, _)| is(w) && what.technique.name != "plain")?;
    let (name, place, load) = (what.technique.name, what.scene.name(), what.workload.name);
    Some((format!("{name} / plain, {load}, {place}"), samples.ratios(plain, |s| s.value)))
}

fn table(all: &Results<'_>, scene: Scene) -> Table {
    let mut heads = vec!["NIC".to_owned()];
    for w in WORKLOADS.into_iter().filter(|w| scene.has(*w)) {
        heads.extend([format!("{} {}", w.name, w.unit()), "paper".into()]);
    }
    let mut table =
        Table { title: scene.name(), heads, is_long: scene.threads > 1, ..Table::default() };
    let mut names: Vec<&str> = Vec::new();
    for (what, _) in all.iter().filter(|(w, _)| w.scene == scene) {
        if !names.contains(&what.technique.name) {
            names.push(what.technique.name);
        }
    }
    for name in names {
        let mut row = vec![name.to_owned()];
        for column in (0..WORKLOADS.len()).filter(|n| scene.has(WORKLOADS[*n])) {
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
    let times = plain.unwrap_or_default().times();
    format!("{}{star}{times}", number(Some(value)))
}

/// `409 / 475 (10x / 24x)`
pub(super) fn theirs(scene: Scene, name: &str, column: usize) -> String {
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
        let groups = ["switch, 1", "taps, 1", "to host, 1", "from host, 1", "switch, 2", "taps, 2"];
        let groups = groups.into_iter().chain(["to host, 2", "from host, 2"]);
        Panel {
            title: workload.name.into(),
            x: X::Groups(groups.map(str::to_owned).collect()),
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
            cases.extend(WORKLOADS.map(|workload| Case { scene: SCENES[0], workload, technique }));
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
