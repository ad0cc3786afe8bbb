//! Figures 5 to 9: TCP bandwidth against the window.

use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::sockets::{Job, Kind, Measured, Workload, show};
use super::{Part, Run, Samples, series};
use crate::failure::Failure;
use crate::native::chip::Choice;
use crate::native::{Chip, Technique};

/// What a connection may have under way, in KiB.
const WINDOWS: [u32; 8] = [4, 8, 16, 32, 48, 64, 128, 256];
pub(super) const WAYS: [&str; 2] = ["plain", "moderated"];
/// Of a short run.
const SHORT: [u32; 3] = [4, 32, 256];
/// Writes longer than most windows, so that the window alone is what limits.
const TCP: Workload = Workload { name: "TCP", kind: Kind::Stream, bytes: 65_536 };
/// A window is enough when it has so much of what the best one has.
const ENOUGH: f64 = 0.9;

const NOTES: [&str; 2] = [
    "TCP: `vmlan stack` tcp-stream to tcp-sink between two guests with the same NIC, Mbit/s of \
     payload that arrive; KiB of the sender's and of the receiver's buffer (`--window`, as iperf's \
     -w). *: frames were dropped, for a receiver had no room. enough: the smallest window with \
     nine tenths of the most.",
    "The analysis (iperf between host and guest, windows to about 100 KB): bandwidth grows with \
     the window until it saturates, below 40 KB with rtl8139 and with the later paravirtual \
     driver, at 80 KB with the earlier one, which is the fastest (469 Mbit/s received; the later \
     one, not tuned yet, 82.5; host to itself 1,600). The faster the NIC, the more window it can \
     use, and a window beyond rtl8139's receive buffer of 32 KiB costs it frames; what waits for \
     an interrupt that is held back needs a window for that time.",
];

struct Case {
    chip: &'static Chip,
    way: &'static Technique,
    kib: u32,
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

pub(super) fn run(run: &mut Run<'_>, choice: &Choice) -> Result<Part, Failure> {
    let mut cases = Vec::new();
    for (chip, way) in WAYS.iter().flat_map(|way| choice.with(way)) {
        let windows = run.args.axis(&WINDOWS, &SHORT).iter();
        cases.extend(windows.map(|&kib| Case { chip, way, kib }));
    }
    let name = |w: &Case| format!("{} {}, {} KiB", w.chip.name, w.way.name, w.kib);
    let samples = run.rounds(
        &cases,
        name,
        |_, seen| show(TCP, seen),
        |cell| {
            let job = Job {
                setup: cell.setup,
                technique: cell.what.way,
                workload: TCP,
                threads: 1,
                window: cell.what.kib << 10,
                time: cell.time,
                news: cell.news,
            };
            job.guest_to_guest()
        },
    )?;
    let keys = |w: &Case| json!({ "nic": w.chip.name, "way": w.way.name, "window": w.kib << 10 });
    let all: Vec<_> = cases.iter().zip(samples).collect();
    let ways = || WAYS.iter().filter(|way| choice.with(way).next().is_some());
    Ok(Part {
        notes: NOTES.map(str::to_owned).to_vec(),
        tables: ways().map(|way| table(choice, &all, way)).collect(),
        panels: ways().map(|way| panel(choice, &all, way)).collect(),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

/// Window and Mbit/s of one line.
fn points(all: &Results<'_>, chip: &str, way: &str) -> Vec<(u32, f64)> {
    let mine = all.iter().filter(|(w, _)| w.chip.name == chip && w.way.name == way);
    mine.filter_map(|(w, samples)| Some((w.kib, samples.median(|s| s.value)?))).collect()
}

/// Were frames dropped in any round?
fn drops(all: &Results<'_>, chip: &str, way: &str, kib: u32) -> bool {
    let is = |w: &Case| w.chip.name == chip && w.way.name == way && w.kib == kib;
    let mine =
        all.iter().filter(|(w, _)| is(w)).flat_map(|(_, samples)| samples.0.iter().flatten());
    mine.map(|seen| seen.window.drops).sum::<u64>() > 0
}

fn table(choice: &Choice, all: &Results<'_>, way: &str) -> Table {
    let measured = |kib: &u32| all.iter().any(|(w, _)| w.kib == *kib);
    let kibs: Vec<_> = WINDOWS.into_iter().filter(measured).collect();
    let windows: Vec<_> = kibs.iter().map(|kib| format!("{kib} KiB")).collect();
    let mut heads = vec!["NIC"];
    heads.extend(windows.iter().map(String::as_str));
    heads.push("enough");
    let mut table = Table::new(format!("TCP by window, {way}, Mbit/s"), &heads);
    for (nic, _) in choice.with(way) {
        let points = points(all, nic.name, way);
        let at = |kib| points.iter().find(|p| p.0 == kib).map(|p| p.1);
        let mut row = vec![nic.name.to_owned()];
        row.extend(kibs.iter().map(|&kib| {
            let star = if drops(all, nic.name, way, kib) { "*" } else { "" };
            number(at(kib)) + star
        }));
        row.push(enough(&points).map_or_else(|| "-".into(), |kib| format!("{kib} KiB")));
        table.rows.push(row);
    }
    table
}

/// The smallest window with nearly all there is to be had.
fn enough(points: &[(u32, f64)]) -> Option<u32> {
    let most = points.iter().map(|p| p.1).fold(0.0, f64::max);
    points.iter().find(|p| p.1 >= ENOUGH * most).map(|p| p.0)
}

fn panel(choice: &Choice, all: &Results<'_>, way: &str) -> Panel {
    let line = |nic: &'static Chip| {
        let points = points(all, nic.name, way).into_iter();
        points.map(|(kib, value)| (kib.into(), value)).collect()
    };
    let marks = WINDOWS.iter().map(|&kib| kib.into()).collect();
    Panel {
        title: format!("TCP by window, {way}"),
        x: X::Lines { label: "KiB of window".into(), marks, log: true },
        y: "Mbit/s".into(),
        log: true,
        series: series(choice, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::Window;

    #[test]
    fn bandwidth_stands_by_window() {
        let choice = Choice::of(&["e1000"]).unwrap();
        let nic = choice.chips[0];
        let what = |(way, kib)| Case { chip: nic, way: nic.way(way).unwrap(), kib };
        let cases = [("plain", 4), ("plain", 64), ("plain", 256), ("moderated", 4)].map(what);
        let seen = |value| {
            let drops = u64::from(value > 1050.0);
            Measured { value, sent: value, window: Window { drops, ..Window::default() } }
        };
        let values = [Some(50.0), Some(1000.0), Some(1100.0), None];
        let all: Vec<_> =
            cases.iter().zip(values.map(|v| Samples::near(vec![v.map(seen)]))).collect();
        let row = |way| table(&choice, &all, way).rows[0].join(" ");
        assert_eq!(row("plain"), "e1000 50.0 1000 1100* 64 KiB");
        assert_eq!(row("moderated"), "e1000 - - - -");
        assert_eq!(panel(&choice, &all, "plain").series[0].1.len(), 3);
        assert!(panel(&choice, &all, "moderated").series.is_empty());
    }
}
