//! Shares of the worker's time: equal ports, mixed frame sizes, weights.

use serde::Serialize;
use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells};
use super::super::rounds::{Cell, Samples};
use super::{Part, Run, scene};
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::{Idle, Lab, Span, Technique};
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
/// With less of the worker's time spent on frames, or a ring that it found empty more often, the
/// guests were too slow to be rivals.
const LEAST_WORK: f64 = 0.9;
const MOST_EMPTY: f64 = 0.01;

const NOTE: &str = "Shares: every port floods all there is to the next one, the last one to the \
    first; the same thread takes what arrives from the rings at once. So each frame is a whole \
    delivery and no receiver is ever full. The worker is the bottleneck: its CPU is given, and \
    \"work\" is how much of that was spent on frames, and \"found empty\" the share of the \
    worker's looks at a port that found no frame, with weights of each port: a port with nothing \
    to send forfeits its turns, so where either says that the guests' one thread was slower than \
    the worker, their supply was shared and not the worker, and nothing is judged. \
    In simulated time, where ports always have frames, weights hold to 2 %, and a port that is \
    empty for a tenth of the time is short of a tenth (`worker_time::tests`). \
    By frames accepted and by switch time (`work_ns`, delivery \
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
    /// Share of the worker's looks at each port that found no frame.
    empty: Vec<f64>,
    drops: u64,
}

impl Measured {
    /// Was the worker what they shared?
    fn is_contended(&self) -> bool {
        self.work() >= LEAST_WORK && self.most_empty() <= MOST_EMPTY
    }

    fn most_empty(&self) -> f64 {
        self.empty.iter().copied().fold(0.0, f64::max)
    }

    /// The worker's time that was spent on frames, in cores.
    fn work(&self) -> f64 {
        self.time.iter().sum()
    }
}

type Results = [(Case, Samples<Vec<Measured>>)];

pub(super) fn run(run: &mut Run<'_>, _: &[&'static Technique]) -> Result<Part, Failure> {
    let cases: Vec<_> = PORTS.map(Case::Equal).into_iter().chain([Case::Weighted]).collect();
    let show = |what: &Case, seen: &Vec<Measured>| {
        let words = |s: &Measured| {
            let rate = si(s.frames.iter().sum());
            let (shares, empty) = (Judged::of(*what, s).words(*what), found_empty(*what, s));
            format!("{rate} frames/s, {}, found empty {empty}", shares.join(", "))
        };
        seen.iter().map(words).collect::<Vec<_>>().join("; mixed: ")
    };
    let samples = run.unpaired(|run| run.rounds(&cases, |w| w.words(), show, measure))?;
    let all: Vec<_> = cases.into_iter().zip(samples).collect();
    let keys = |w: Case| json!({ "ports": w.ports(), "weighted": w == Case::Weighted });
    Ok(Part {
        notes: vec![NOTE.into()],
        tables: vec![table(&all)],
        panels: vec![panel(&all)],
        cells: cells(all.iter().map(|(w, s)| (keys(*w), s.clone())))?,
        ratios: Vec::new(),
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
    let flood = lab.flood(&scene::guests(&names, |n| (n + 1) % names.len()), Idle::Spin)?;
    let mut all = Vec::new();
    for mixed in [false, true] {
        for at in 0..names.len() {
            flood.order(at, if mixed && at % 2 == 1 { LARGE } else { SMALL }, ALL);
        }
        // Twice as long as other windows: what else the machine does evens out.
        all.push(window(&mut lab, &names, (mixed, cell.time * 2))?);
        (cell.news)(all.iter().flat_map(|s| &s.frames).sum(), cell.time);
    }
    Ok(all)
}

fn window(
    lab: &mut Lab,
    names: &[String],
    (mixed, time): (bool, std::time::Duration),
) -> Result<Measured, Failure> {
    // What was sent in other sizes leaves the rings first.
    lab.pause(time / 8)?;
    let span: Span = scene::window(lab, &[], time)?;
    let empty = |name: &String| {
        let [empty, full] = [|p: &PortStats| p.empty_looks, |p: &PortStats| p.r#in.batches]
            .map(|of| span.grown(name, of));
        to_f64(empty) / to_f64((empty + full).max(1))
    };
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
        empty: names.iter().map(empty).collect(),
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
        "work",
        "found empty",
        "drops",
    ];
    let mut table = Table::new("Shares of the worker", &heads);
    for (what, samples) in all {
        for mixed in [false, true] {
            let windows = || samples.0.iter().flatten().flatten().filter(|s| s.mixed == mixed);
            let judged = |s: &Measured| s.is_contended().then(|| Judged::of(*what, s).met);
            // One that is missed, one that is met, one that says nothing.
            let worst = windows().min_by_key(|s| judged(s).map_or(2, u8::from));
            let Some(seen) = worst else { continue };
            let counted = windows().filter_map(judged).collect::<Vec<_>>();
            let met = counted.iter().filter(|met| **met).count();
            let (verdict, judged) = (judged(seen), Judged::of(*what, seen));
            let verdict = verdict.map_or("the guests were too slow".into(), |_| {
                format!("met in {met} of {}", counted.len())
            });
            let [frames, time] = judged.words(*what);
            let cpu: f64 = windows().map(|s| s.cpu_switch).fold(f64::INFINITY, f64::min);
            table.rows.push(vec![
                what.words(),
                if mixed { "60 and 1514" } else { "60" }.into(),
                si(seen.frames.iter().sum()),
                frames,
                time,
                judged.goal,
                verdict,
                format!("{cpu:.2}"),
                format!("{:.2}", windows().map(Measured::work).fold(f64::INFINITY, f64::min)),
                found_empty(*what, seen),
                windows().map(|s| s.drops).sum::<u64>().to_string(),
            ]);
        }
    }
    table
}

/// The most of any port, and with weights each port's.
fn found_empty(what: Case, seen: &Measured) -> String {
    match what {
        Case::Equal(_) => scene::percent(Some(seen.most_empty())),
        Case::Weighted => {
            let each = seen.empty.iter().map(|empty| format!("{:.2}", empty * 100.0));
            format!("{} %", each.collect::<Vec<_>>().join(", "))
        }
    }
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
            empty: vec![0.0, 0.001],
            drops: 1,
        };
        let equal =
            vec![seen(false, &[5e6, 5e6], &[0.1, 0.9]), seen(true, &[9e6, 1e6], &[0.5, 0.49])];
        let weighted = vec![
            seen(false, &[1e6, 2e6, 4e6], &[0.14, 0.28, 0.56]),
            seen(true, &[1e6, 2e6, 4e6], &[0.16, 0.32, 0.48]),
        ];
        let all = [(Case::Equal(2), equal), (Case::Weighted, weighted)];
        let all = all.map(|(w, s)| (w, Samples::near(vec![Some(s)])));
        let rows: Vec<_> = table(&all).rows.iter().map(|r| r[3..].join(" ")).collect();
        assert_eq!(rows[0], "1.00000 0.60976 frames: 0.999 met in 1 of 1 0.98 1.00 0.10 % 1");
        assert_eq!(rows[1], "0.60976 0.99990 time: 0.99 met in 1 of 1 0.98 0.99 0.10 % 1");
        assert_eq!(
            rows[2],
            "0.00 % off 0.00 % off frames: 2 % met in 1 of 1 0.98 0.98 0.00, 0.10 % 1"
        );
        assert_eq!(
            rows[3],
            "0.00 % off 16.67 % off time: 2 % met in 0 of 1 0.98 0.96 0.00, 0.10 % 1"
        );
        assert_eq!(panel(&all).series.len(), 3);
    }

    #[test]
    fn guests_that_are_too_slow_say_nothing_about_shares() {
        let seen = |time: [f64; 3], empty| Measured {
            mixed: false,
            frames: vec![1e6, 1e6, 1e6],
            time: time.to_vec(),
            cpu_switch: 0.99,
            empty: vec![0.0, 0.0, empty],
            drops: 0,
        };
        for (time, empty) in [([0.3, 0.3, 0.2], 0.0), ([0.3, 0.3, 0.39], 0.02)] {
            let all = [(Case::Weighted, Samples::near(vec![Some(vec![seen(time, empty)])]))];
            assert_eq!(table(&all).rows[0][6], "the guests were too slow");
        }
    }
}
