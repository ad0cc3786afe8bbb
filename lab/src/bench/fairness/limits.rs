//! Limits: how exact, how soon, and what is lost.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::rounds::{Cell, Samples, middle};
use super::{Part, Run, scene};
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::span::dropped;
use crate::native::{Flood, Idle, Lab, Look, Technique};
use vmlan_config::human_text::{count, si, to_f64};
use vmlan_engine::stats::PortStats;

const GOAL: f64 = 0.01;
const GOAL_MS: f64 = 10.0;

const NOTE: &str = "Limits: one port floods another with all there is. from: frames from the port \
    into the switch; to: towards it. Bits are those of the frames, without FCS and preamble. off: \
    of what passed in the window. lost: frames that left the sender, and neither arrived nor were \
    dropped as over-limit (counted at both guests, once all rings are empty; with from, none may \
    be dropped either). A change: the rate is set by the API while the counters are read about \
    once a millisecond; the moment of the change is where the lines of the two rates meet, and is \
    counted from sending the request.";

/// What is limited, and how.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// In tables.
    words: &'static str,
    /// The key without its direction.
    key: &'static str,
    value: &'static str,
    /// Bits or frames a second.
    rate: f64,
    bytes: u32,
}

const fn limit(
    words: &'static str,
    (key, value): (&'static str, &'static str),
    rate: f64,
    bytes: u32,
) -> Limit {
    Limit { words, key, value, rate, bytes }
}

const LIMITS: [Limit; 4] = [
    limit("1 Mbit/s", ("rate", "1Mbit"), 1e6, 60),
    limit("100 Mbit/s", ("rate", "100Mbit"), 1e8, 512),
    limit("10 Gbit/s", ("rate", "10Gbit"), 1e10, 1514),
    limit("10,000 frames/s", ("frames", "10k"), 1e4, 60),
];

/// Rates that a limit is changed between, again and again.
const CHANGES: [(&str, f64); 2] = [("1Gbit", 1e9), ("100Mbit", 1e8)];
const TIMES: usize = 6;
const CHANGE_BYTES: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    From,
    To,
}

impl Way {
    fn word(self) -> &'static str {
        if self == Self::From { "from" } else { "to" }
    }

    /// The port that is limited: `p0` sends, `p1` receives.
    fn port(self) -> &'static str {
        if self == Self::From { "p0" } else { "p1" }
    }

    /// Frames or bits that have passed the limit.
    fn passed(self, look: &Look, frames: bool) -> u64 {
        look.of(self.port(), |p| {
            let flow = if self == Self::From { p.r#in } else { p.out };
            if frames { flow.frames } else { flow.bytes * 8 }
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Exact(Limit),
    Changes,
}

struct Case {
    way: Way,
    task: Task,
}

impl Case {
    fn words(&self) -> String {
        match self.task {
            Task::Exact(limit) => format!("{} {}", self.way.word(), limit.words),
            Task::Changes => format!("{}, changes", self.way.word()),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Measured {
    /// Bits or frames a second that passed.
    passed: f64,
    /// Milliseconds until each change was in force.
    changes_ms: Vec<f64>,
    sent: u64,
    received: u64,
    over_limit: u64,
    other_drops: u64,
    /// Negative: more has arrived than was sent.
    lost: i64,
}

type Results = [(Case, Samples<Measured>)];

pub(super) fn run(run: &mut Run<'_>, _: &[&'static Technique]) -> Result<Part, Failure> {
    let ways = [Way::From, Way::To];
    let tasks = || LIMITS.into_iter().map(Task::Exact).chain([Task::Changes]);
    let cases: Vec<_> =
        ways.into_iter().flat_map(|way| tasks().map(move |task| Case { way, task })).collect();
    let show = |what: &Case, seen: &Measured| match what.task {
        Task::Exact(limit) => {
            format!("{} passed, {}", si(seen.passed), scene::percent(Some(off(limit, seen))))
        }
        Task::Changes => format!("in force after {} ms at the latest", number(Some(slowest(seen)))),
    };
    let samples = run.unpaired(|run| run.rounds(&cases, Case::words, show, measure))?;
    let all: Vec<_> = cases.into_iter().zip(samples).collect();
    let keys = |w: &Case| json!({ "way": w.way.word(), "task": w.words() });
    Ok(Part {
        notes: vec![NOTE.into()],
        tables: vec![exact(&all), changes(&all)],
        panels: vec![panel(&all)],
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

fn off(limit: Limit, seen: &Measured) -> f64 {
    (seen.passed / limit.rate - 1.0).abs()
}

fn slowest(seen: &Measured) -> f64 {
    seen.changes_ms.iter().copied().fold(0.0, f64::max)
}

fn measure(cell: Cell<'_, Case>) -> Result<Measured, Failure> {
    let Case { way, task } = *cell.what;
    let names = scene::names("p", 2);
    let mut lab = scene::lab(cell.setup, &names, "", &[])?;
    let flood = lab.flood(&scene::guests(&names, |n| 1 - n), Idle::Spin)?;
    lab.pause(Duration::from_millis(50))?;
    let ledger = Ledger::open(&lab, &flood)?;
    let (mut passed, mut changes_ms) = (0.0, Vec::new());
    let key = match task {
        Task::Exact(limit) => {
            let key = format!("{}_{}", way.word(), limit.key);
            lab.set(way.port(), &[(&key, limit.value)])?;
            flood.order(0, limit.bytes, ALL);
            let frames = limit.key == "frames";
            passed = exact_rate(&mut lab, way, frames, cell.time)?;
            key
        }
        Task::Changes => {
            let key = format!("{}_rate", way.word());
            changes_ms = change_often(&mut lab, &flood, way, &key)?;
            key
        }
    };
    flood.order(0, 60, 0);
    lab.set(way.port(), &[(&key, "")])?;
    let seen = Measured { passed, changes_ms, ..ledger.close(&mut lab, &flood)? };
    Ok(seen)
}

fn exact_rate(lab: &mut Lab, way: Way, frames: bool, time: Duration) -> Result<f64, Failure> {
    lab.pause(Duration::from_millis(300))?;
    let before = Look::take(lab, &[])?;
    lab.pause(time)?;
    let after = Look::take(lab, &[])?;
    let grown = way.passed(&after, frames).saturating_sub(way.passed(&before, frames));
    Ok(to_f64(grown) / (after.at - before.at).as_secs_f64())
}

/// How many frames there were before, at both ends and at the switch.
struct Ledger {
    sent: u64,
    received: u64,
    over_limit: u64,
    dropped: u64,
}

impl Ledger {
    fn open(lab: &Lab, flood: &Flood) -> Result<Self, Failure> {
        let ports = lab.stats()?;
        let sum = |counter: &dyn Fn(&PortStats) -> u64| ports.iter().map(counter).sum();
        Ok(Self {
            sent: flood.done(0).sent,
            received: flood.done(1).received,
            over_limit: sum(&dropped("over-limit")),
            dropped: sum(&PortStats::dropped),
        })
    }

    /// Once everything has arrived that will.
    fn close(self, lab: &mut Lab, flood: &Flood) -> Result<Measured, Failure> {
        let mut still = 0;
        let mut last = (u64::MAX, u64::MAX);
        lab.wait(
            |_| {
                let now = (flood.done(0).sent, flood.done(1).received);
                still = if now == last { still + 1 } else { 0 };
                last = now;
                Ok(still > 5)
            },
            "the last frames to arrive",
        )?;
        let now = Self::open(lab, flood)?;
        let [sent, received] = [now.sent - self.sent, now.received - self.received];
        let over_limit = now.over_limit - self.over_limit;
        Ok(Measured {
            passed: 0.0,
            changes_ms: Vec::new(),
            sent,
            received,
            over_limit,
            other_drops: now.dropped - self.dropped - over_limit,
            lost: sent.cast_signed().wrapping_sub((received + over_limit).cast_signed()),
        })
    }
}

/// Milliseconds that each of several changes took.
fn change_often(lab: &mut Lab, flood: &Flood, way: Way, key: &str) -> Result<Vec<f64>, Failure> {
    lab.set(way.port(), &[(key, CHANGES[0].0)])?;
    flood.order(0, CHANGE_BYTES, ALL);
    lab.pause(Duration::from_millis(300))?;
    (0..TIMES).map(|n| change(lab, way, key, [CHANGES[n % 2].1, CHANGES[(n + 1) % 2].1])).collect()
}

fn change(lab: &mut Lab, way: Way, key: &str, rates: [f64; 2]) -> Result<f64, Failure> {
    const BEFORE: Duration = Duration::from_millis(30);
    const AFTER: Duration = Duration::from_millis(70);
    /// By then it must be over, or the lines do not fit.
    const OVER: f64 = 0.03;
    let new = CHANGES.iter().find(|c| (c.1 - rates[1]).abs() < 1.0).map_or("", |c| c.0);
    let old = points(lab, way, BEFORE)?;
    let asked = Instant::now();
    lab.set(way.port(), &[(key, new)])?;
    let points = points(lab, way, AFTER)?;
    let seconds = |at: Instant| match at.checked_duration_since(asked) {
        Some(after) => after.as_secs_f64(),
        None => -(asked - at).as_secs_f64(),
    };
    // Where a line of this slope through these points stands when the change is asked for.
    let height = |points: &[(Instant, f64)], rate: f64, from: f64| {
        let heights: Vec<_> = points
            .iter()
            .filter(|(at, _)| seconds(*at) >= from)
            .map(|(at, bits)| bits - rate * seconds(*at))
            .collect();
        heights.iter().sum::<f64>() / to_f64(heights.len().max(1) as u64)
    };
    let apart = height(&points, rates[1], OVER) - height(&old, rates[0], -1.0);
    Ok(apart / (rates[0] - rates[1]) * 1000.0)
}

/// Bits that have passed, about once a millisecond.
fn points(lab: &mut Lab, way: Way, time: Duration) -> Result<Vec<(Instant, f64)>, Failure> {
    let end = Instant::now() + time;
    let mut points = Vec::new();
    while Instant::now() < end {
        let look = Look::take(lab, &[])?;
        points.push((look.at, to_f64(way.passed(&look, false))));
        lab.pause(Duration::from_micros(500))?;
    }
    Ok(points)
}

/// A row for each limit: the round furthest off.
fn exact(all: &Results) -> Table {
    let heads =
        ["limit", "bytes", "passed/s", "off", "goal 1 %", "sent", "received", "over-limit", "lost"];
    let mut table = Table::new("Limits: exact?", &heads);
    for (what, samples) in all {
        let Task::Exact(limit) = what.task else { continue };
        let rounds = samples.0.iter().flatten();
        let worst = rounds.max_by(|a, b| off(limit, a).total_cmp(&off(limit, b)));
        let Some(seen) = worst else { continue };
        let off = off(limit, seen);
        table.rows.push(
            [
                vec![what.words(), limit.bytes.to_string(), si(seen.passed)],
                vec![scene::percent(Some(off)), scene::verdict(Some(off <= GOAL))],
                books(samples),
            ]
            .concat(),
        );
    }
    table
}

/// Sent, received, dropped and lost, in all rounds.
fn books(samples: &Samples<Measured>) -> Vec<String> {
    let sum = |value: fn(&Measured) -> u64| samples.0.iter().flatten().map(value).sum::<u64>();
    let lost: i64 = samples.0.iter().flatten().map(|s| s.lost).sum();
    let others = sum(|s| s.other_drops);
    let lost =
        if others > 0 { format!("{lost}, dropped otherwise {others}") } else { lost.to_string() };
    vec![count(sum(|s| s.sent)), count(sum(|s| s.received)), count(sum(|s| s.over_limit)), lost]
}

fn changes(all: &Results) -> Table {
    let heads = [
        "1 Gbit/s to 100 Mbit/s and back",
        "changes",
        "in force after ms, median",
        "at the latest",
        "goal 10 ms",
        "sent",
        "received",
        "over-limit",
        "lost",
    ];
    let mut table = Table::new("Limits: how soon is a change in force?", &heads);
    for (what, samples) in all.iter().filter(|(w, _)| matches!(w.task, Task::Changes)) {
        let each = samples.0.iter().flatten().flat_map(|s| &s.changes_ms);
        let times: Vec<f64> = each.copied().collect();
        let Some(median) = middle(times.clone()) else { continue };
        let most = times.iter().copied().fold(0.0, f64::max);
        table.rows.push(
            [
                vec![what.way.word().into(), times.len().to_string(), format!("{median:.1}")],
                vec![format!("{most:.1}"), scene::verdict(Some(most <= GOAL_MS))],
                books(samples),
            ]
            .concat(),
        );
    }
    table
}

fn panel(all: &Results) -> Panel {
    let line = |way: Way| {
        let points = LIMITS.iter().enumerate().filter_map(|(n, limit)| {
            let is = |w: &Case| {
                w.way == way && matches!(w.task, Task::Exact(l) if l.words == limit.words)
            };
            let (_, samples) = all.iter().find(|(w, _)| is(w))?;
            Some((to_f64(n as u64), samples.median(|s| s.passed)? / limit.rate))
        });
        (way.word().to_owned(), points.collect())
    };
    Panel {
        title: "what passed a limit".into(),
        x: X::Groups(LIMITS.iter().map(|l| l.words.to_owned()).collect()),
        y: "of the limit".into(),
        log: false,
        series: [Way::From, Way::To].map(line).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_furthest_round_counts_and_books_are_balanced() {
        let seen = |passed, lost| Measured {
            passed,
            changes_ms: vec![0.5, 12.0],
            sent: 100,
            received: 90,
            over_limit: 10,
            other_drops: 0,
            lost,
        };
        let what = |task| Case { way: Way::To, task };
        let rounds =
            |lost| Samples::near(vec![Some(seen(1.005e6, lost)), None, Some(seen(0.98e6, 0))]);
        let all = [(what(Task::Exact(LIMITS[0])), rounds(0)), (what(Task::Changes), rounds(3))];
        let row = |t: Table| t.rows[0].join(" | ");
        assert_eq!(
            row(exact(&all)),
            "to 1 Mbit/s | 60 | 980.00 k | 2.00 % | missed | 200 | 180 | 20 | 0"
        );
        assert_eq!(row(changes(&all)), "to | 4 | 6.2 | 12.0 | missed | 200 | 180 | 20 | 3");
        assert_eq!(panel(&all).series[1].1.len(), 1);
    }
}
