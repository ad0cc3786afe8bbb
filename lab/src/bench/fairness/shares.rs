//! Shares of the worker's time: equal ports, mixed frame sizes, weights.

use serde::Serialize;
use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells};
use super::super::rounds::{Cell, Samples};
use super::{Part, Run, scene};
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::{Flood, Idle, Lab, Span, Technique};
use vmlan_config::human_text::{si, to_f64};
use vmlan_engine::stats::PortStats;

/// Numbers of equal ports.
const PORTS: [usize; 4] = [2, 4, 16, 64];
const WEIGHTS: [u16; 3] = [1, 2, 4];
const SMALL: u32 = 60;
const LARGE: u32 = 1514;

const GOAL_FRAMES: f64 = 0.999;
const GOAL_TIME: f64 = 0.99;
const GOAL_WEIGHTS: f64 = 0.02;

const NOTE: &str = "Shares: every port floods all there is to the next one, the last one to the \
    first; the same thread takes what arrives from the rings at once. So each frame is a whole \
    delivery and no receiver is ever full. The worker is the bottleneck: its CPU is given, and \
    \"dry\" is how often a port's ring was looked at by its guest and found empty, in which \
    moments the port was no rival. By frames accepted and by switch time (`work_ns`, delivery \
    included): Jain's index; with weights, how far the port furthest from its part is off. Time is \
    what is shared: equal ports have the same number of frames as far as their frames cost the \
    same. Mixed: every other port has frames of 1514 bytes, the others of 60.";

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// So many equal ports: of one frame size, then of two.
    Equal(usize),
    /// Three ports with [`WEIGHTS`].
    Weighted,
}

impl Case {
    fn ports(self) -> usize {
        match self {
            Self::Equal(ports) => ports,
            Self::Weighted => WEIGHTS.len(),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Equal(ports) => format!("{ports} equal"),
            Self::Weighted => "weights 1:2:4".into(),
        }
    }

    /// Descriptors of each ring: such that all ports' frames fit into the worker's cache, or far
    /// from it, so that no port is lucky. Without mergeable buffers nobody reads the headers of
    /// what arrives, and the guests' thread costs less.
    fn ring(self) -> &'static str {
        match self.ports() {
            0..=4 => "size=1024,mrg=off",
            5..=16 => "size=256,mrg=off",
            _ => "size=512,mrg=off",
        }
    }
}

/// One window.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    mixed: bool,
    /// Frames accepted of each port, a second.
    frames: Vec<f64>,
    /// Switch time for each port, in cores.
    time: Vec<f64>,
    cpu_switch: f64,
    dry: f64,
    drops: u64,
}

type Results = [(Case, Samples<Vec<Measured>>)];

pub(super) fn run(run: &mut Run<'_>, _: &[&'static Technique]) -> Result<Part, Failure> {
    let cases: Vec<_> = PORTS.map(Case::Equal).into_iter().chain([Case::Weighted]).collect();
    let show = |what: &Case, seen: &Vec<Measured>| {
        let words = |s: &Measured| {
            let rate = si(s.frames.iter().sum());
            format!("{rate} frames/s, {}", Judged::of(*what, s).words(*what).join(", "))
        };
        seen.iter().map(words).collect::<Vec<_>>().join("; mixed: ")
    };
    let samples = run.rounds(&cases, |w| w.words(), show, measure)?;
    let all: Vec<_> = cases.into_iter().zip(samples).collect();
    let keys = |w: Case| json!({ "ports": w.ports(), "weighted": w == Case::Weighted });
    Ok(Part {
        notes: vec![NOTE.into()],
        tables: vec![table(&all)],
        panels: vec![panel(&all)],
        cells: cells(all.iter().map(|(w, s)| (keys(*w), s.clone())))?,
    })
}

fn measure(cell: Cell<'_, Case>) -> Result<Vec<Measured>, Failure> {
    let what = *cell.what;
    let names = scene::names("p", what.ports());
    let mut lab = scene::lab(cell.setup, &names, what.ring(), &[])?;
    if what == Case::Weighted {
        for (port, weight) in names.iter().zip(WEIGHTS) {
            lab.set(port, &[("weight", &weight.to_string())])?;
        }
    }
    let flood = lab.flood(&scene::stations(&names, |n| (n + 1) % names.len()), Idle::Spin)?;
    let mut all = Vec::new();
    for mixed in [false, true] {
        for at in 0..names.len() {
            flood.order(at, if mixed && at % 2 == 1 { LARGE } else { SMALL }, ALL);
        }
        // Twice as long as other windows: what else the machine does evens out.
        all.push(window(&mut lab, &flood, &names, (mixed, cell.time * 2))?);
        (cell.news)(all.iter().flat_map(|s| &s.frames).sum(), cell.time);
    }
    Ok(all)
}

fn window(
    lab: &mut Lab,
    flood: &Flood,
    names: &[String],
    (mixed, time): (bool, std::time::Duration),
) -> Result<Measured, Failure> {
    // What was sent in other sizes leaves the rings first.
    lab.pause(time / 8)?;
    let done = || (0..names.len()).map(|at| flood.done(at)).collect::<Vec<_>>();
    let before = done();
    let span: Span = scene::window(lab, &[], time)?;
    let dry = done().into_iter().zip(before).map(|(after, before)| {
        to_f64(after.dry - before.dry) / to_f64((after.looks - before.looks).max(1))
    });
    let each = |value: fn(&PortStats) -> u64| names.iter().map(|n| span.rate(n, value)).collect();
    let frames: Vec<f64> = each(|p| p.r#in.frames);
    if frames.contains(&0.0) {
        return Err(Failure::Failed("a port got nothing through".into()));
    }
    Ok(Measured {
        mixed,
        frames,
        time: each(|p| p.work_ns).iter().map(|ns: &f64| ns * 1e-9).collect(),
        cpu_switch: span.switch(),
        dry: dry.fold(0.0, f64::max),
        drops: span.all(PortStats::dropped),
    })
}

/// A window and its goal.
struct Judged {
    /// Jain's index, or how far the furthest port is off: of frames, and of switch time.
    by: [f64; 2],
    goal: String,
    met: bool,
}

impl Judged {
    /// Time is what is shared. By frames of one size it is judged what a user sees of that.
    fn of(what: Case, seen: &Measured) -> Self {
        let both = [&seen.frames, &seen.time];
        if what == Case::Weighted {
            let by = both.map(|values| scene::furthest(values, &WEIGHTS));
            let (word, off) = if seen.mixed { ("time", by[1]) } else { ("frames", by[0]) };
            return Self { by, goal: format!("{word}: 2 %"), met: off <= GOAL_WEIGHTS };
        }
        let by = both.map(|values| scene::jain(values));
        if seen.mixed {
            return Self { by, goal: format!("time: {GOAL_TIME}"), met: by[1] >= GOAL_TIME };
        }
        Self { by, goal: format!("frames: {GOAL_FRAMES}"), met: by[0] >= GOAL_FRAMES }
    }

    /// Of frames, of switch time.
    fn words(&self, what: Case) -> [String; 2] {
        self.by.map(|value| match what {
            Case::Weighted => format!("{} off", scene::percent(Some(value))),
            Case::Equal(_) => format!("{value:.5}"),
        })
    }
}

/// A row for each window, the worst of all rounds.
fn table(all: &Results) -> Table {
    let heads = [
        "ports",
        "bytes",
        "frames/s",
        "by frames",
        "by switch time",
        "goal",
        "",
        "worker's CPU",
        "dry",
        "drops",
    ];
    let mut table = Table::new("Shares of the worker", &heads);
    for (what, samples) in all {
        for mixed in [false, true] {
            let windows = || samples.0.iter().flatten().flatten().filter(|s| s.mixed == mixed);
            let worst = windows().min_by_key(|s| Judged::of(*what, s).met);
            let Some(seen) = worst else { continue };
            let judged = Judged::of(*what, seen);
            let [frames, time] = judged.words(*what);
            let cpu: f64 = windows().map(|s| s.cpu_switch).fold(f64::INFINITY, f64::min);
            table.rows.push(vec![
                what.words(),
                if mixed { "60 and 1514" } else { "60" }.into(),
                si(seen.frames.iter().sum()),
                frames,
                time,
                judged.goal,
                scene::verdict(Some(judged.met)),
                format!("{cpu:.2}"),
                scene::percent(Some(windows().map(|s| s.dry).fold(0.0, f64::max))),
                windows().map(|s| s.drops).sum::<u64>().to_string(),
            ]);
        }
    }
    table
}

/// Each weighted port's part of the whole.
fn panel(all: &Results) -> Panel {
    let groups = WEIGHTS.map(|w| format!("weight {w}"));
    let of: f64 = WEIGHTS.iter().map(|w| f64::from(*w)).sum();
    let last = all.iter().find(|(w, _)| *w == Case::Weighted);
    let windows = last.and_then(|(_, s)| s.0.iter().flatten().last());
    let part = |values: &[f64]| {
        let sum: f64 = values.iter().sum();
        let parts = values.iter().enumerate();
        parts.map(|(n, v)| (to_f64(n as u64), v / sum)).collect::<Vec<_>>()
    };
    let goal: Vec<f64> = WEIGHTS.iter().map(|w| f64::from(*w) / of).collect();
    let mut series = vec![("its part".to_owned(), part(&goal))];
    for seen in windows.into_iter().flatten() {
        let name = if seen.mixed { "time, 60 and 1514 B" } else { "time, 60 B" };
        series.push((name.into(), part(&seen.time)));
    }
    Panel {
        title: "shares of the worker by weight".into(),
        x: X::Groups(groups.into()),
        y: "part of the whole".into(),
        log: false,
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_about_frames_of_one_size_and_time_of_two() {
        let seen = |mixed, frames: &[f64], time: &[f64]| Measured {
            mixed,
            frames: frames.to_vec(),
            time: time.to_vec(),
            cpu_switch: 0.98,
            dry: 0.001,
            drops: 1,
        };
        let equal =
            vec![seen(false, &[5e6, 5e6], &[0.1, 0.9]), seen(true, &[9e6, 1e6], &[0.5, 0.49])];
        let weighted = vec![
            seen(false, &[1e6, 2e6, 4e6], &[0.1, 0.2, 0.4]),
            seen(true, &[1e6, 2e6, 4e6], &[0.1, 0.2, 0.3]),
        ];
        let all = [(Case::Equal(2), equal), (Case::Weighted, weighted)];
        let all = all.map(|(w, s)| (w, Samples::near(vec![Some(s)])));
        let rows: Vec<_> = table(&all).rows.iter().map(|r| r[3..].join(" ")).collect();
        assert_eq!(rows[0], "1.00000 0.60976 frames: 0.999 met 0.98 0.10 % 1");
        assert_eq!(rows[1], "0.60976 0.99990 time: 0.99 met 0.98 0.10 % 1");
        assert_eq!(rows[2], "0.00 % off 0.00 % off frames: 2 % met 0.98 0.10 % 1");
        assert_eq!(rows[3], "0.00 % off 16.67 % off time: 2 % missed 0.98 0.10 % 1");
        assert_eq!(panel(&all).series.len(), 3);
    }
}
