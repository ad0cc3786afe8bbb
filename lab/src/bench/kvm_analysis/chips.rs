//! Each NIC in each way, frames straight from the driver: what a chip's registers cost, and that
//! CSB is not one NIC's trick.

use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::raw::{self, HEADS};
use super::super::report::{Table, cells, goal_rows};
use super::{Part, Run, Samples, series};
use crate::alike::Spreads;
use crate::failure::Failure;
use crate::native::chip::{Choice, WAYS};
use crate::native::pair::Task;
use crate::native::{Chip, Lab, Technique, Window};
use vmlan_config::human_text::to_f64;

/// All there are.
pub(super) const NAMES: [&str; 4] = [WAYS[0].0, WAYS[1].0, WAYS[2].0, WAYS[3].0];
const SIZES: [u32; 2] = [60, 1514];
/// Two chips with the same block...
const SAME: [&str; 2] = ["r8169", "e1000"];
/// ...are to be this close.
const GOAL: f64 = 0.1;

struct Case {
    chip: &'static Chip,
    way: &'static Technique,
    bytes: u32,
}

type Results<'a> = [(&'a Case, Samples<Window>)];

pub(super) fn run(run: &mut Run<'_>, choice: &Choice) -> Result<Part, Failure> {
    let sizes = run.args.sizes(&SIZES, 60, 1514)?;
    let cases = cases(choice, &sizes);
    let name = |w: &Case| format!("{} {}, {} B", w.chip.name, w.way.name, w.bytes);
    let samples = run.rounds(
        &cases,
        name,
        |_, window| raw::show(window),
        |cell| {
            let mut lab = Lab::pair(cell.setup, cell.what.way, "")?;
            let task = Task { bytes: cell.what.bytes, ping: false, sender: &[] };
            Ok(lab.pkt_gen(task, cell.time, cell.news)?.window)
        },
    )?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    let keys = |w: &Case| json!({ "nic": w.chip.name, "way": w.way.name, "bytes": w.bytes });
    let mut tables: Vec<_> = sizes.iter().map(|&bytes| table(choice, &all, bytes)).collect();
    tables.extend(alike(&all, &sizes));
    Ok(Part {
        notes: vec![raw::words()],
        tables,
        panels: sizes.iter().map(|&bytes| panel(choice, &all, bytes)).collect(),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: all.iter().filter_map(|(w, s)| over_plain(&all, w, s)).collect(),
    })
}

fn over_plain(
    all: &Results<'_>,
    what: &Case,
    samples: &Samples<Window>,
) -> Option<(String, Spreads)> {
    let (nic, way, bytes) = (what.chip.name, what.way.name, what.bytes);
    let plain = find(all, (nic, "plain"), bytes).filter(|_| way != "plain")?;
    Some((format!("{nic}: {way} / plain, {bytes} B"), samples.ratios(plain, |w| w.frames_per_s)))
}

/// Way by way: who is compared with whom is measured one after the other.
fn cases(choice: &Choice, sizes: &[u32]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &bytes in sizes {
        for (way, _) in WAYS {
            cases.extend(choice.with(way).map(|(chip, way)| Case { chip, way, bytes }));
        }
    }
    cases
}

fn find<'a>(
    all: &'a Results<'_>,
    (chip, way): (&str, &str),
    bytes: u32,
) -> Option<&'a Samples<Window>> {
    let is = |w: &Case| w.chip.name == chip && w.way.name == way && w.bytes == bytes;
    all.iter().find(|(w, _)| is(w)).map(|(_, samples)| samples)
}

fn table(choice: &Choice, all: &Results<'_>, bytes: u32) -> Table {
    let mut table = Table::new(format!("Frames of {bytes} bytes"), &HEADS);
    for nic in &choice.chips {
        let plain = find(all, (nic.name, "plain"), bytes);
        for way in nic.ways {
            let Some(samples) = find(all, (nic.name, way.name), bytes) else { continue };
            let name = format!("{} {}", nic.name, way.name);
            table.rows.push(raw::row(&name, samples, plain));
        }
    }
    table
}

/// CSB on one chip beside CSB on the other.
fn alike(all: &Results<'_>, sizes: &[u32]) -> Option<Table> {
    let heads = ["bytes, class", "frames/s", "pairs", "goal"];
    let title = format!("{} with CSB over {} with CSB", SAME[0], SAME[1]);
    let mut table = Table::new(title, &heads);
    for &bytes in sizes {
        let [Some(one), Some(other)] = SAME.map(|chip| find(all, (chip, "csb"), bytes)) else {
            continue;
        };
        let times = one.ratios(other, |w| w.frames_per_s);
        table.rows.extend(goal_rows(&times, &format!("{bytes}"), |_| Some(1.0 - GOAL)));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn panel(choice: &Choice, all: &Results<'_>, bytes: u32) -> Panel {
    let points = |nic: &'static Chip| {
        let ways = WAYS.iter().enumerate();
        ways.filter_map(|(n, (way, _))| {
            let samples = find(all, (nic.name, way), bytes)?;
            Some((to_f64(n as u64), samples.median(|w| w.frames_per_s)?))
        })
        .collect()
    };
    Panel {
        title: format!("frames of {bytes} bytes"),
        x: X::Groups(WAYS.map(|(name, _)| name.to_owned()).into()),
        y: "frames/s".into(),
        log: true,
        series: series(choice, points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_stand_side_by_side_and_csb_is_compared() {
        let choice = Choice::of(&["e1000", "r8169"]).unwrap();
        let cases = cases(&choice, &[60]);
        let names: Vec<_> = cases.iter().map(|w| (w.chip.name, w.way.name)).collect();
        assert_eq!(names[0..2], [("r8169", "plain"), ("e1000", "plain")]);
        let window = |w: &Case| {
            let chip = if w.chip.name == "e1000" { 1.0 } else { 0.8 };
            let way = if w.way.name == "csb" { 10.0 } else { 1.0 };
            let cpu_switch = if w.chip.name == "e1000" { 0.5 } else { 1.0 };
            Window { frames_per_s: 1e5 * chip * way, cpu_switch, ..Window::default() }
        };
        let all: Vec<_> =
            cases.iter().map(|w| (w, Samples::near(vec![Some(window(w)), None]))).collect();
        let table = table(&choice, &all, 60);
        let row = table.rows.iter().find(|r| r[0] == "r8169 csb").unwrap();
        assert_eq!((row[1].as_str(), row[9].as_str()), ("800.00 k", "near: 10.0, 1 pairs"));
        let beside = alike(&all, &[60, 1514]).unwrap();
        assert_eq!(beside.rows[0], ["60, near", "0.80", "1", "0.9: too few pairs"]);
        let panel = panel(&choice, &all, 60);
        assert_eq!(panel.series[0].1.len(), 3);
        assert_eq!(panel.series[1].1.len(), 4);
        assert!(alike(&all[..1], &[60]).is_none());
    }
}
