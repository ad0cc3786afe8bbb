//! A guest that is flooded, and a third pair beside it: what a limit saves the one, and spares the
//! others.

use serde::Serialize;
use serde_json::{Value, json};

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::rounds::{Cell, Samples, middle};
use super::{Part, Run, scene};
use crate::alike::Spread;
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::span::interrupts;
use crate::native::{Flood, Idle, Lab, MAC_A, MAC_B, Plug, Process, Span, Technique, technique};
use vmlan_config::human_text::{si, to_f64};

/// What the flooded guest may get.
const LIMIT: &str = "24k";
/// The paper's full rate: 1 Gbit/s of 64-byte frames.
const OFFERED: u64 = 1_488_095;
/// The third pair's stream.
const STREAM: (&str, f64) = ("200Mbit", 2e8);
const STREAM_BYTES: u32 = 512;

const GOAL_TIMES: f64 = 10.0;
const GOAL_LATENCY: f64 = 2.0;
const GOAL_RATE: f64 = 0.05;

const NOTES: [&str; 3] = [
    "Neighbour: one port floods the victim (`pkt-gen -f rx`, NIC as named) with 60-byte frames, a \
     full receiver loses frames at once (`--full-wait 0`). The third guests are a ping pair \
     (virtio-net, 1,000 requests a second, 60 bytes) and a stream that is held to \
     from_rate=200Mbit (512 bytes, flooding against it). All guests and the flood share the first \
     core, the switch has the last one.",
    "Interrupts and CPU for the victim, at the paper's full rate (1 Gbit/s of 64-byte frames: \
     1,488,095 a second) and nothing else going on. CPU for it: its process, and what the switch \
     uses more than when it refuses the same frames at their source (reach=none). Medians of three \
     windows in turn; where that difference is less than the switch's CPU is apart in the windows \
     of either (from quartile to quartile), what is for the victim is not known. Goals: at least \
     10 times less with to_frames=24k than without. With all there is (the second table) a victim \
     does not keep up: it polls, and hears of few interrupts.",
    "Third guests: quiet is the same scene without the flood. Goals: p99 at most 2 times, the \
        stream within 5 % of quiet, while the neighbour floods the limited victim.",
];

/// Who is flooded, how much passes, and whether the others are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Quiet,
    Open,
    Limited,
    OfferedOpen,
    OfferedLimited,
    OfferedRefused,
}

/// What is compared by small differences comes several times in turn: the machine's other work
/// evens out.
const PHASES: [Phase; 12] = [
    Phase::Quiet,
    Phase::Open,
    Phase::Limited,
    Phase::OfferedOpen,
    Phase::OfferedLimited,
    Phase::OfferedRefused,
    Phase::OfferedRefused,
    Phase::OfferedLimited,
    Phase::OfferedOpen,
    Phase::OfferedOpen,
    Phase::OfferedLimited,
    Phase::OfferedRefused,
];

impl Phase {
    /// Frames a second of the flood.
    fn rate(self) -> u64 {
        match self {
            Self::Quiet => 0,
            Self::Open | Self::Limited => ALL,
            _ => OFFERED,
        }
    }

    fn limit(self) -> &'static str {
        if matches!(self, Self::Limited | Self::OfferedLimited) { LIMIT } else { "" }
    }

    fn reach(self) -> &'static str {
        if self == Self::OfferedRefused { "none" } else { "all" }
    }

    fn has_others(self) -> bool {
        matches!(self, Self::Quiet | Self::Open | Self::Limited)
    }
}

/// Of the ping pair, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Trip {
    p50: f64,
    p99: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Measured {
    phase: Phase,
    /// Frames a second that the switch took from the flooding port.
    offered: f64,
    /// Frames a second that the victim got.
    received: f64,
    interrupts: f64,
    cpu_switch: f64,
    cpu_victim: f64,
    trip: Option<Trip>,
    /// Bits a second of the stream.
    stream: f64,
}

type Results = [(&'static Technique, Samples<Vec<Measured>>)];

pub(super) fn run(run: &mut Run<'_>, techniques: &[&'static Technique]) -> Result<Part, Failure> {
    let show = |_: &&'static Technique, seen: &Vec<Measured>| {
        let words = |s: &Measured| {
            let p99 = s.trip.map_or_else(String::new, |t| format!(" (p99 {:.0} us)", t.p99));
            format!("{:?} {} interrupts/s{p99}", s.phase, si(s.interrupts))
        };
        seen.iter().map(words).collect::<Vec<_>>().join(", ")
    };
    let samples = run.rounds(techniques, |t| format!("victim {}", t.name), show, measure)?;
    let all: Vec<_> = techniques.iter().copied().zip(samples).collect();
    let keys = |t: &Technique| json!({ "technique": t.name });
    Ok(Part {
        notes: NOTES.map(str::to_owned).to_vec(),
        tables: vec![work(&all), victims(&all), others(&all)],
        panels: vec![panel(&all)],
        cells: cells(all.iter().map(|(t, s)| (keys(t), s.clone())))?,
        ratios: Vec::new(),
    })
}

/// The switch and whoever is there all the time.
struct Scene {
    lab: Lab,
    flood: Flood,
    victim: Process,
    _pong: Process,
}

/// Guests of the flood thread.
const GUESTS: [&str; 3] = ["f", "s", "t"];

fn measure(cell: Cell<'_, &'static Technique>) -> Result<Vec<Measured>, Failure> {
    let mut scene = Scene::set(&cell)?;
    let mut all = Vec::new();
    for phase in PHASES {
        scene.lab.set("v", &[("to_frames", phase.limit())])?;
        scene.lab.set("f", &[("reach", phase.reach())])?;
        scene.flood.order(0, 60, phase.rate());
        scene.flood.order(1, STREAM_BYTES, if phase.has_others() { ALL } else { 0 });
        let seen = scene.phase(phase, cell.time)?;
        (cell.news)(seen.received, cell.time);
        all.push(seen);
    }
    Ok(all)
}

impl Scene {
    fn set(cell: &Cell<'_, &'static Technique>) -> Result<Self, Failure> {
        let virtio = technique::one("virtio")?;
        let mut plugs = ["f", "s", "t", "a", "b"]
            .map(|name| Plug { name, technique: virtio, keys: "" })
            .to_vec();
        plugs.push(Plug { name: "v", technique: cell.what, keys: "" });
        let mut lab = Lab::start(cell.setup, &plugs, &["--full-wait", "0"])?;
        let (guests, victim) = (GUESTS.map(str::to_owned), GUESTS.len());
        let common = ["pkt-gen", "--json", "--spin", "0", "-f"];
        let mac = scene::mac(victim).to_string();
        let victim_process = lab.ready_guest("v", &[&common[..], &["rx", "-S", &mac]].concat())?;
        let pong = lab.ready_guest("b", &[&common[..], &["pong", "-S", MAC_B]].concat())?;
        // `f` to the victim, `s` to `t`.
        let to = |n: usize| [victim, 2, 1][n];
        let flood = lab.flood(&scene::guests(&guests, to), Idle::Nap)?;
        lab.set("s", &[("from_rate", STREAM.0)])?;
        Ok(Self { lab, flood, victim: victim_process, _pong: pong })
    }

    fn phase(&mut self, phase: Phase, time: std::time::Duration) -> Result<Measured, Failure> {
        let pids = [self.victim.pid()];
        self.victim.alive()?;
        if !phase.has_others() {
            let span = scene::window(&mut self.lab, &pids, time)?;
            return Ok(Self::seen(phase, &span, None));
        }
        self.lab.pause(std::time::Duration::from_millis(200))?;
        let words = "pkt-gen --json --spin 0 -f ping -l 60 -R 1000";
        let words: Vec<_> = words.split(' ').chain(["-s", MAC_A, "-d", MAC_B]).collect();
        let ping = self.lab.ready_guest("a", &words)?;
        // Twice the time: a percentile needs samples.
        let span = Span::of(&mut self.lab, &pids, time * 2)?;
        let said: Value = serde_json::from_str(&ping.finish()?)
            .map_err(|e| Failure::Failed(format!("a guest's summary cannot be read: {e}")))?;
        let us = |field: &str| Some(said.get("latency")?.get(field)?.as_f64()? / 1000.0);
        let trip = us("p50_ns").zip(us("p99_ns")).map(|(p50, p99)| Trip { p50, p99 });
        if trip.is_none() {
            return Err(Failure::Failed("no round trip was measured".into()));
        }
        Ok(Self::seen(phase, &span, trip))
    }

    fn seen(phase: Phase, span: &Span, trip: Option<Trip>) -> Measured {
        Measured {
            phase,
            offered: span.rate("f", |p| p.r#in.frames + p.drops.values().sum::<u64>()),
            received: span.rate("v", |p| p.out.frames),
            interrupts: span.rate("v", interrupts),
            cpu_switch: span.switch(),
            cpu_victim: span.guest(0),
            trip,
            stream: span.rate("t", |p| p.out.bytes * 8),
        }
    }
}

/// The median of a figure of one phase.
fn at(
    samples: &Samples<Vec<Measured>>,
    phase: Phase,
    value: impl Fn(&Measured) -> f64,
) -> Option<f64> {
    let windows = samples.0.iter().flatten().flatten().filter(|s| s.phase == phase);
    middle(windows.map(&value).collect())
}

/// How far the switch's CPU is apart, from quartile to quartile, in windows of this phase, or of
/// the one that it is compared with.
fn noise(samples: &Samples<Vec<Measured>>, phase: Phase) -> Option<f64> {
    let apart = |phase| {
        let windows = samples.0.iter().flatten().flatten().filter(|s| s.phase == phase);
        let [_, lower, _, upper, _] = Spread::of(windows.map(|s| s.cpu_switch).collect())?.ranks;
        Some(upper - lower)
    };
    Some(f64::max(apart(phase)?, apart(Phase::OfferedRefused)?))
}

fn times(open: Option<f64>, limited: Option<f64>, least: f64) -> (String, String) {
    let times = open.zip(limited).map(|(open, limited)| open / limited.max(least));
    (number(times), scene::verdict(times.map(|t| t >= GOAL_TIMES)))
}

/// At full rate.
fn victims(all: &Results) -> Table {
    let heads =
        ["victim", "to it", "offered/s", "received/s", "interrupts/s", "CPU victim", "switch"];
    let mut table = Table::new("The same with all there is", &heads).long();
    for (technique, samples) in all {
        let get = |phase, value: fn(&Measured) -> f64| at(samples, phase, value);
        for (phase, limit) in [(Phase::Open, "no limit"), (Phase::Limited, LIMIT)] {
            let short = |value| get(phase, value).map_or_else(|| "-".into(), si);
            table.rows.push(vec![
                technique.name.into(),
                limit.into(),
                short(|s| s.offered),
                short(|s| s.received),
                short(|s| s.interrupts),
                number(get(phase, |s| s.cpu_victim)),
                number(get(phase, |s| s.cpu_switch)),
            ]);
        }
    }
    table
}

/// At a fixed rate.
fn work(all: &Results) -> Table {
    let heads = [
        "victim",
        "to it",
        "received/s",
        "interrupts/s",
        "times fewer",
        "goal 10",
        "CPU victim",
        "switch",
        "switch, more than refusing",
        "for the victim",
        "times less",
        "goal 10",
    ];
    let mut table =
        Table::new("A flooded neighbour: 1,488,095 frames/s of 60 bytes; CPU in cores", &heads);
    let phases = [
        (Phase::OfferedOpen, "no limit"),
        (Phase::OfferedLimited, LIMIT),
        (Phase::OfferedRefused, "refused at the source"),
    ];
    for (technique, samples) in all {
        let get = |phase, value: fn(&Measured) -> f64| at(samples, phase, value);
        let more = |phase| {
            Some(get(phase, |s| s.cpu_switch)? - get(Phase::OfferedRefused, |s| s.cpu_switch)?)
        };
        // Less than the noise is chance.
        let whole = |phase| {
            let more =
                more(phase).filter(|more| noise(samples, phase).is_some_and(|n| *more >= n))?;
            Some(get(phase, |s| s.cpu_victim)? + more)
        };
        for (phase, limit) in phases {
            let none = || ("-".to_owned(), "-".to_owned());
            let ((fewer, first), (less, second)) = match phase {
                Phase::OfferedLimited => {
                    let interrupts = |phase| get(phase, |s| s.interrupts);
                    let fewer = times(interrupts(Phase::OfferedOpen), interrupts(phase), 1.0);
                    (fewer, times(whole(Phase::OfferedOpen), whole(phase), 1e-4))
                }
                _ => (none(), none()),
            };
            let signed =
                |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.4}"));
            table.rows.push(vec![
                technique.name.into(),
                limit.into(),
                get(phase, |s| s.received).map_or_else(|| "-".into(), si),
                get(phase, |s| s.interrupts).map_or_else(|| "-".into(), si),
                fewer,
                first,
                signed(get(phase, |s| s.cpu_victim)),
                signed(get(phase, |s| s.cpu_switch)),
                signed(more(phase)),
                signed(whole(phase)),
                less,
                second,
            ]);
        }
    }
    table
}

/// The third guests.
fn others(all: &Results) -> Table {
    let heads = [
        "victim",
        "the neighbour",
        "p50 us",
        "p99 us",
        "times quiet",
        "goal 2",
        "stream Mbit/s",
        "of quiet",
        "goal 5 %",
    ];
    let mut table = Table::new("Third guests beside a flooded neighbour", &heads);
    let phases = [
        (Phase::Quiet, "quiet"),
        (Phase::Open, "floods, no limit"),
        (Phase::Limited, "floods, 24k"),
    ];
    let trip = |value: fn(Trip) -> f64| move |s: &Measured| s.trip.map_or(0.0, value);
    for (technique, samples) in all {
        for (phase, words) in phases {
            let p99 = |phase| at(samples, phase, trip(|t| t.p99));
            let stream = |phase| at(samples, phase, |s| s.stream);
            let slower = p99(phase).zip(p99(Phase::Quiet)).map(|(now, quiet)| now / quiet);
            let rate = stream(phase).zip(stream(Phase::Quiet)).map(|(now, quiet)| now / quiet);
            let is_goal = |met: bool| (phase == Phase::Limited).then_some(met);
            table.rows.push(vec![
                technique.name.into(),
                words.into(),
                number(at(samples, phase, trip(|t| t.p50))),
                number(p99(phase)),
                number(slower),
                scene::verdict(slower.and_then(|t| is_goal(t <= GOAL_LATENCY))),
                number(stream(phase).map(|bits| bits / 1e6)),
                scene::percent(rate),
                scene::verdict(rate.and_then(|r| is_goal((r - 1.0).abs() <= GOAL_RATE))),
            ]);
        }
    }
    table
}

fn panel(all: &Results) -> Panel {
    let series = all.iter().map(|(technique, samples)| {
        let phases = [Phase::Quiet, Phase::Open, Phase::Limited].into_iter().enumerate();
        let p99 = |s: &Measured| s.trip.map_or(0.0, |t| t.p99);
        let points =
            phases.filter_map(|(n, phase)| Some((to_f64(n as u64), at(samples, phase, p99)?)));
        (format!("victim {}", technique.name), points.collect())
    });
    Panel {
        title: "third guests' p99 while a neighbour is flooded".into(),
        x: X::Groups(["quiet", "no limit", "24k"].map(str::to_owned).into()),
        y: "microseconds".into(),
        log: false,
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_costs_is_its_own_time_and_what_the_switch_does_for_it() {
        let seen = |phase, interrupts, cpu_victim, cpu_switch, p99| Measured {
            phase,
            offered: 1e7,
            received: 24_000.0,
            interrupts,
            cpu_switch,
            cpu_victim,
            trip: Some(Trip { p50: p99 / 2.0, p99 }),
            stream: if phase == Phase::Open { 1e8 } else { 2e8 },
        };
        let all = vec![
            seen(Phase::Quiet, 0.0, 0.0, 0.1, 50.0),
            seen(Phase::Open, 5000.0, 0.5, 1.0, 500.0),
            seen(Phase::Limited, 400.0, 0.01, 0.9, 80.0),
            seen(Phase::OfferedOpen, 4000.0, 0.12, 0.20, 0.0),
            seen(Phase::OfferedLimited, 400.0, 0.01, 0.11, 0.0),
            seen(Phase::OfferedRefused, 0.0, 0.0, 0.10, 0.0),
        ];
        let all = [(technique::one("virtio").unwrap(), Samples::near(vec![Some(all)]))];
        let row = |table: &Table, n: usize| table.rows[n].join(" ");
        assert_eq!(row(&victims(&all), 1), "virtio 24k 10.00 M 24.00 k 400 0.01 0.90");
        let work = work(&all);
        assert!(row(&work, 0).ends_with("0.1200 0.2000 0.1000 0.2200 - -"), "{}", row(&work, 0));
        assert!(row(&work, 1).ends_with("400 10.0 met 0.0100 0.1100 0.0100 0.0200 11.0 met"));
        let others = others(&all);
        assert_eq!(row(&others, 1), "virtio floods, no limit 250 500 10.0 - 100 50.00 % -");
        assert_eq!(row(&others, 2), "virtio floods, 24k 40.0 80.0 1.60 met 200 100.00 % met");
    }

    #[test]
    fn what_is_less_than_the_windows_are_apart_is_not_known() {
        let seen = |phase, cpu_switch| Measured {
            phase,
            offered: 1.5e6,
            received: 24_000.0,
            interrupts: 200.0,
            cpu_switch,
            cpu_victim: 0.01,
            trip: None,
            stream: 0.0,
        };
        let row = |limited: [f64; 3]| {
            let mut all = vec![];
            all.extend([0.30, 0.31, 0.32].map(|cpu| seen(Phase::OfferedOpen, cpu)));
            all.extend(limited.map(|cpu| seen(Phase::OfferedLimited, cpu)));
            all.extend([0.10, 0.11, 0.14].map(|cpu| seen(Phase::OfferedRefused, cpu)));
            let all = [(technique::one("virtio").unwrap(), Samples::near(vec![Some(all)]))];
            work(&all).rows[1][6..].join(" ")
        };
        assert_eq!(row([0.13, 0.14, 0.15]), "0.0100 0.1400 0.0300 0.0400 5.25 missed");
        assert_eq!(row([0.11, 0.12, 0.13]), "0.0100 0.1200 0.0100 - - -");
        assert_eq!(row([0.09, 0.10, 0.11]), "0.0100 0.1000 -0.0100 - - -");
    }
}
