//! Words: tables beside the paper's numbers, and a figure.

use super::super::paper::{Scene, WORKLOADS, Way, theirs};
use super::super::plot::{Figure, Panel, X};
use super::super::report::{Table, number};
use super::super::slides::{RECEIVE, SIZES, TRANSMIT};
use super::super::sockets::{Kind, Workload};
use super::{Case, Measured, OTHERS, Results};
use crate::alike::Spreads;
use crate::bench::Samples;
use vmlan_config::human_text::to_f64;

/// Below the tables.
pub(super) const NOTE: &str = "`vmlan load` in Linux guests and on the host: sockets of the \
    kernel. UDP8 and UDP-1460 in thousands of datagrams a second that the receiving program got (* \
    where the sender was more than a tenth faster), TCP (writes of 1,460 bytes) and TCPw (of 64 \
    KiB) in Mbit/s there, TCPRR and UDPRR in thousands of transactions a second; pktgen60 and \
    pktgen1500 in thousands of frames a second from the guest's kernel that reached the host; in \
    parentheses, times BASE. acc, irq: register accesses (virtio-net: doorbells) and interrupts \
    of the first guest for 1,000 of its frames in both directions, as the switch counts them; \
    QEMU's own NICs do not tell. paper: Linux and FreeBSD guests of 2013, and times BASE.";

/// Where there is no KVM.
pub(super) const TCG: &str = "Without KVM: QEMU runs the guest's instructions by a program, which \
    makes the guest slow and an exit cheap. The counts for 1,000 frames hold anywhere; the rates, \
    and what a technique gains in them, want a host with KVM (docs/measuring-with-kvm.md).";

pub(super) fn way(way: Way) -> &'static str {
    match way {
        Way::Host => "guest to host",
        Way::FromHost => "host to guest",
        Way::Switch => "guest to guest",
        Way::Taps => "guest to guest over TAP devices",
    }
}

fn place(scene: Scene) -> String {
    let cpus = if scene.threads == 1 { "1 CPU" } else { "2 CPUs" };
    format!("{}, {cpus}", way(scene.way))
}

fn load(case: &Case) -> String {
    let Workload { name, bytes, .. } = case.workload;
    if case.slides { format!("{name} of {bytes} B") } else { name.to_owned() }
}

/// A cell in words.
pub(super) fn label(case: &Case) -> String {
    format!("{}, {}, {}", place(case.scene), load(case), case.row.name)
}

/// What one has shown.
pub(super) fn show(case: &Case, seen: &Measured) -> String {
    let unit = case.workload.unit();
    format!(
        "{:.2} {unit} (sent {:.2}), {}",
        seen.value,
        seen.sent,
        costs(seen.accesses_per_kframe, seen.interrupts_per_kframe)
    )
}

fn costs(accesses: Option<f64>, interrupts: Option<f64>) -> String {
    format!("acc {}, irq {}", number(accesses), number(interrupts))
}

fn same(a: &Case, b: &Case) -> bool {
    (a.scene, a.workload, a.slides) == (b.scene, b.workload, b.slides)
}

fn base<'a>(all: &'a Results<'_>, case: &Case) -> Option<&'a Samples<Measured>> {
    all.iter().find(|(c, _)| same(c, case) && c.row.name == "BASE").map(|(_, samples)| samples)
}

/// Beside BASE, what a row is to be compared with: the goals' pairs, both with TSO or both without.
const GOALS: &[(&str, &str)] = &[
    ("CSB", "virtio"),
    ("CSB+TSO", "QEMU's e1000"),
    ("vmxnet3", "virtio"),
    ("vmxnet3+TSO", "virtio+TSO"),
    ("vmxnet3+TSO", "QEMU's vmxnet3"),
    ("vmxnet3 mapped", "vmxnet3"),
    ("vmxnet3 mapped", "virtio"),
    ("vmxnet3+TSO mapped", "QEMU's vmxnet3"),
    ("e1000e", "QEMU's e1000e"),
    ("e1000e", "stock"),
    ("e1000e mapped", "e1000e"),
];

/// Each row over BASE, and the goals' ratios.
pub(super) fn ratios(all: &Results<'_>) -> Vec<(String, Spreads)> {
    let over = |row: Option<&'static str>, name: &'static str| {
        let is = move |c: &Case| row.map_or(c.row.name != name, |row| c.row.name == row);
        all.iter().filter(move |(c, _)| is(c)).filter_map(move |(case, samples)| {
            let (_, other) = all.iter().find(|(c, _)| same(c, case) && c.row.name == name)?;
            let what = format!("{} / {name}, {}, {}", case.row.name, load(case), place(case.scene));
            Some((what, samples.ratios(other, |seen| seen.value)))
        })
    };
    let goals = GOALS.iter().flat_map(|(row, name)| over(Some(row), name));
    over(None, "BASE").chain(goals).collect()
}

/// A table for each scene, and the slides' two.
pub(super) fn all(all: &Results<'_>) -> Vec<Table> {
    let mut scenes: Vec<Scene> = Vec::new();
    for (case, _) in all {
        if !scenes.contains(&case.scene) {
            scenes.push(case.scene);
        }
    }
    scenes.sort_by_key(|scene| (scene.threads, way(scene.way)));
    let mut tables: Vec<_> = scenes.into_iter().map(|scene| sockets(all, scene)).collect();
    let ways = [(Way::Host, &TRANSMIT), (Way::FromHost, &RECEIVE)];
    tables.extend(ways.map(|(way, theirs)| datagrams(all, way, theirs)));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// Rows that have something, each once, in order.
fn rows<'a>(all: &'a Results<'_>, is: impl Fn(&Case) -> bool) -> Vec<&'a Case> {
    let mut found: Vec<&Case> = Vec::new();
    for (case, _) in all.iter().filter(|(c, _)| is(c)) {
        if !found.iter().any(|other| other.row.name == case.row.name) {
            found.push(case);
        }
    }
    found
}

fn sockets(all: &Results<'_>, scene: Scene) -> Table {
    let is = |c: &Case| c.scene == scene && !c.slides;
    let columns: Vec<_> = WORKLOADS.into_iter().chain(OTHERS).enumerate().collect();
    let has = |w: Workload| all.iter().any(|(c, _)| is(c) && c.workload == w);
    let columns: Vec<_> = columns.into_iter().filter(|(_, w)| has(*w)).collect();
    let mut heads = vec!["NIC".to_owned()];
    for (_, w) in &columns {
        heads.extend([
            format!("{} {}", w.name, w.unit()),
            "for 1,000 frames".into(),
            "paper".into(),
        ]);
    }
    let mut table =
        Table { title: place(scene), heads, is_long: scene.threads > 1, ..Table::default() };
    for first in rows(all, is) {
        let mut row = vec![first.row.name.to_owned()];
        for (n, w) in &columns {
            let found =
                all.iter().find(|(c, _)| is(c) && c.row.name == first.row.name && c.workload == *w);
            row.extend(found.map_or([const { String::new() }; 2], |(c, s)| ours(all, c, s)));
            // The paper has no others.
            let known = first.row.paper.filter(|_| *n < WORKLOADS.len());
            row.push(known.map_or_else(|| "-".into(), |name| theirs(scene, name, *n)));
        }
        table.rows.push(row);
    }
    table
}

fn datagrams(all: &Results<'_>, way_of: Way, theirs: &[(&str, [f64; 5]); 2]) -> Table {
    let is = |c: &Case| c.slides && c.scene.way == way_of;
    let mut heads = vec!["NIC".to_owned()];
    for bytes in SIZES {
        heads.extend([format!("{bytes} B, k/s"), "for 1,000 frames".into(), "slides".into()]);
    }
    let title = format!("Datagrams by size, {}, 1 CPU (the slides' tables)", way(way_of));
    let mut table = Table { title, heads, ..Table::default() };
    for first in rows(all, is) {
        let mut row = vec![first.row.name.to_owned()];
        let known = theirs.iter().find(|(name, _)| first.row.slides == Some(name));
        for (n, bytes) in SIZES.into_iter().enumerate() {
            let mine =
                |c: &Case| is(c) && c.row.name == first.row.name && c.workload.bytes == bytes;
            let found = all.iter().find(|(c, _)| mine(c));
            row.extend(found.map_or([const { String::new() }; 2], |(c, s)| ours(all, c, s)));
            row.push(number(known.map(|(_, values)| values[n])));
        }
        table.rows.push(row);
    }
    table
}

/// `12.3* (4.50x [4.1, 4.9] near, 5 pairs)`, and what it cost.
fn ours(all: &Results<'_>, case: &Case, samples: &Samples<Measured>) -> [String; 2] {
    let Some(value) = samples.median(|s| s.value) else { return ["-".into(), "-".into()] };
    let slow = case.workload.kind == Kind::Datagrams
        && samples.median(|s| s.sent).is_some_and(|sent| sent > 1.1 * value);
    let star = if slow { "*" } else { "" };
    let times = base(all, case).filter(|_| case.row.name != "BASE");
    let times = times.map(|base| samples.ratios(base, |s| s.value));
    let times = times.unwrap_or_default().times();
    let counted = |of: fn(&Measured) -> Option<f64>| {
        let known: Vec<_> = samples.0.iter().flatten().filter_map(of).collect();
        super::super::rounds::middle(known)
    };
    let costs = costs(counted(|s| s.accesses_per_kframe), counted(|s| s.interrupts_per_kframe));
    [format!("{}{star}{times}", number(Some(value))), costs]
}

/// A panel for each workload: bars for each row in each scene.
pub(super) fn figure(all: &Results<'_>) -> Figure {
    let mut groups: Vec<Scene> = Vec::new();
    for (case, _) in all.iter().filter(|(c, _)| !c.slides) {
        if !groups.contains(&case.scene) {
            groups.push(case.scene);
        }
    }
    let panel = |workload: &Workload| {
        let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (case, samples) in all.iter().filter(|(c, _)| !c.slides && c.workload == *workload) {
            let name = case.row.name;
            let at = series.iter().position(|s| s.0 == name).unwrap_or_else(|| {
                series.push((name.into(), Vec::new()));
                series.len() - 1
            });
            let group = groups.iter().position(|scene| *scene == case.scene).unwrap_or(0);
            let found = samples.median(|s| s.value);
            series[at].1.extend(found.map(|value| (to_f64(group as u64), value)));
        }
        Panel {
            title: workload.name.into(),
            x: X::Groups(groups.iter().map(|scene| place(*scene)).collect()),
            y: workload.unit().into(),
            log: true,
            series,
        }
    };
    let measured = |w: &&Workload| all.iter().any(|(c, _)| !c.slides && c.workload == **w);
    let workloads: Vec<_> = WORKLOADS.into_iter().chain(OTHERS).collect();
    Figure {
        title: "vmlan bench guests: sockets of Linux guests".into(),
        columns: 2,
        panels: workloads.iter().filter(measured).map(panel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROWS;
    use super::*;

    #[test]
    fn ours_stand_beside_the_papers_with_what_they_cost() {
        let scene = Scene { way: Way::Host, threads: 1 };
        let workload = WORKLOADS[0];
        let cases: Vec<_> = ["BASE", "CSB", "CSB+TSO", "QEMU's e1000"]
            .map(|name| {
                let row = ROWS.iter().find(|row| row.name == name).unwrap();
                Case { scene, row, workload, slides: false }
            })
            .into();
        let seen = |case: &Case| {
            let (value, accesses) = match case.row.name {
                "BASE" => (10.0, Some(1200.0)),
                "CSB" | "CSB+TSO" => (40.0, Some(3.0)),
                _ => (20.0, None),
            };
            Measured {
                value,
                sent: 2.0 * value,
                accesses_per_kframe: accesses,
                interrupts_per_kframe: accesses.map(|n| n / 10.0),
            }
        };
        let results: Vec<_> =
            cases.iter().map(|c| (c, Samples::near(vec![Some(seen(c)); 5]))).collect();
        let tables = all(&results);
        let rows: Vec<_> = tables[0].rows.iter().map(|row| row.join(" | ")).collect();
        assert_eq!(
            rows,
            [
                "BASE | 10.0* | acc 1200, irq 120 | 30 / 17 (1.00x / 1.00x)",
                "CSB | 40.0* (4.00 [4.00, 4.00]x near, 5 pairs) | acc 3.00, irq 0.30 | 353 / 392 \
                 (11.8x / 23.1x)",
                "CSB+TSO | 40.0* (4.00 [4.00, 4.00]x near, 5 pairs) | acc 3.00, irq 0.30 | -",
                "QEMU's e1000 | 20.0* (2.00 [2.00, 2.00]x near, 5 pairs) | acc -, irq - | -",
            ]
        );
        let what: Vec<_> = ratios(&results).into_iter().map(|(what, _)| what).collect();
        assert_eq!(what.len(), 4, "{what:?}");
        assert!(what[3].starts_with("CSB+TSO / QEMU's e1000, UDP8, guest to host"), "{what:?}");
        assert!(figure(&results).svg("").unwrap().contains("guest to host, 1 CPU"));
    }
}
