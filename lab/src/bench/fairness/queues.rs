//! The paper's figures 6 to 10: one, two and four flooded receivers, by frame size, with and
//! without a limit.

use serde::Serialize;
use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::rounds::{Cell, Samples, middle};
use super::{Part, Run, scene};
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::span::{dropped, interrupts};
use crate::native::{Flood, Idle, Lab, Plug, Process, Technique, technique};
use vmlan_config::human_text::{si, to_f64};
use vmlan_engine::stats::PortStats;

/// 64 to 1518 with FCS...
const SIZES: [u32; 6] = [60, 128, 256, 512, 1024, 1514];
/// ...and in a short run.
const SHORT_SIZES: [u32; 2] = [60, 1514];
const QUEUES: [usize; 3] = [1, 2, 4];
/// The paper: about 24,000 frames a second, for each receiver.
const LIMIT: &str = "24k";
/// The paper's sources: a link of 1 Gbit/s for each receiver.
const LINK: u32 = 1_000_000_000;
/// Bytes of a link's time that a frame takes beside its own: FCS, preamble, gap.
const AROUND: u32 = 24;

const PAPER: [&str; 2] = [
    "Figures 6 to 10 are flooded receivers (\"queues\"): as many virtio-net ports flood one \
     receiver each (`pkt-gen -f rx`), and a full receiver loses frames at once (`--full-wait 0`). \
     Sizes are without FCS: 60 stands for the paper's 64, 1514 for 1518. Figures 6 and 7: sources \
     send all there is; least to most: of the receivers, in the last round. Figures 8 to 10: each \
     source sends what a link of 1 Gbit/s carries, as the paper's did (1,488,095 frames/s of 60 \
     bytes), for a receiver that is given far more than it can take polls, and hears of few \
     interrupts. `24k`: each receiver's port has to_frames=24k. CPU in cores: also for taking what \
     the sources send, which was the NetFPGA's work in the paper; what the receiver alone costs is \
     in the table of the flooded neighbour. An interrupt ends a wait, so figure 8 has beside it \
     how often the receivers waited (went to sleep; virtio-net alone, as with registers the wait \
     for an answer is a sleep too), and how many frames a second found a receiver full. \
     Where the receivers together get more than their core can take (plain, 4 queues), none ever \
     finds its ring empty: they poll, lose frames, do not sleep, and are hardly interrupted at \
     all. A limit lets them keep up and sleep: there it raises the number of interrupts to that \
     of the waits. What it saves is in the table of CPU time, and in instructions under *Measured \
     apart*.",
    "The paper (NetFPGA on PCI, Xen): the total is the same for one, two and four queues, about \
     90,000 frames/s at 64 bytes, each of four having 23,500 (figures 6 and 7); without a limit \
     nearly one interrupt for each 64-byte frame, with one of 24,000 frames/s proportionally fewer \
     (figure 8); CPU cycles and instructions of one queue without limit are those of four, with \
     the limit more than 4 times fewer but for the smallest frames (figures 9 and 10).",
];

struct Case {
    technique: &'static Technique,
    queues: usize,
}

/// What the sources send, and what the receivers may get of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Load {
    /// All there is.
    All,
    /// A link's worth.
    Link,
    /// That, with the limit.
    Limited,
}

const LOADS: [Load; 3] = [Load::All, Load::Link, Load::Limited];

impl Load {
    fn rate(self, bytes: u32) -> u64 {
        if self == Self::All { ALL } else { (LINK / (8 * (bytes + AROUND))).into() }
    }

    fn limit(self) -> &'static str {
        if self == Self::Limited { LIMIT } else { "" }
    }
}

/// One window: a second's worth of each.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    bytes: u32,
    load: Load,
    /// Frames that the switch took from the flooding ports.
    offered: f64,
    /// Frames that each receiver's port got.
    each: Vec<f64>,
    interrupts: f64,
    /// Times that a receiver went to sleep, and frames that found a receiver full.
    waits: f64,
    lost: f64,
    cpu_switch: f64,
    cpu_guests: f64,
}

impl Measured {
    fn total(&self) -> f64 {
        self.each.iter().sum()
    }

    fn of_each(&self) -> f64 {
        self.total() / to_f64(self.each.len() as u64)
    }

    fn cpu(&self) -> f64 {
        self.cpu_switch + self.cpu_guests
    }
}

type Results<'a> = [(&'a Case, Samples<Vec<Measured>>)];

pub(super) fn run(run: &mut Run<'_>, techniques: &[&'static Technique]) -> Result<Part, Failure> {
    let cases: Vec<_> = techniques
        .iter()
        .flat_map(|&technique| QUEUES.map(|queues| Case { technique, queues }))
        .collect();
    let name = |w: &Case| format!("{}, {} flooded", w.technique.name, w.queues);
    let show = |_: &Case, seen: &Vec<Measured>| {
        let words = |s: &Measured| {
            format!("{:?} {} frames/s, {} interrupts/s", s.load, si(s.total()), si(s.interrupts))
        };
        seen.iter().take(LOADS.len()).map(words).collect::<Vec<_>>().join("; ")
    };
    let samples = run.rounds(&cases, name, show, measure)?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    let keys = |w: &Case| json!({ "technique": w.technique.name, "queues": w.queues });
    Ok(Part {
        notes: PAPER.map(str::to_owned).to_vec(),
        tables: techniques.iter().flat_map(|t| tables(&all, t)).collect(),
        panels: panels(&all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

/// The switch, the flood, and the receivers.
struct Scene {
    lab: Lab,
    flood: Flood,
    guests: Vec<Process>,
    receivers: Vec<String>,
}

fn measure(cell: Cell<'_, Case>) -> Result<Vec<Measured>, Failure> {
    let mut scene = Scene::set(&cell)?;
    let mut all = Vec::new();
    for &bytes in if cell.short { &SHORT_SIZES[..] } else { &SIZES } {
        for load in LOADS {
            for port in &scene.receivers {
                scene.lab.set(port, &[("to_frames", load.limit())])?;
            }
            let seen = scene.window(cell.time / 2, bytes, load)?;
            (cell.news)(seen.total(), cell.time);
            all.push(seen);
        }
    }
    Ok(all)
}

impl Scene {
    fn set(cell: &Cell<'_, Case>) -> Result<Self, Failure> {
        let count = cell.what.queues;
        let (sources, receivers) = (scene::names("s", count), scene::names("r", count));
        let virtio = technique::one("virtio")?;
        let source = sources.iter().map(|name| Plug { name, technique: virtio, keys: "" });
        let receiver = |name| Plug { name, technique: cell.what.technique, keys: "" };
        let plugs: Vec<_> = source.chain(receivers.iter().map(|n| receiver(n.as_str()))).collect();
        let mut lab = Lab::start(cell.setup, &plugs, &["--full-wait", "0"])?;
        let mut guests = Vec::new();
        for (n, port) in receivers.iter().enumerate() {
            let mac = scene::mac(count + n).to_string();
            let words = ["pkt-gen", "--json", "--spin", "0", "-f", "rx", "-S", &mac];
            guests.push(lab.ready_guest(port, &words)?);
        }
        let flood = lab.flood(&scene::guests(&sources, |n| count + n), Idle::Nap)?;
        Ok(Self { lab, flood, guests, receivers })
    }

    fn window(
        &mut self,
        time: std::time::Duration,
        bytes: u32,
        load: Load,
    ) -> Result<Measured, Failure> {
        self.flood.order_all(bytes, load.rate(bytes));
        self.guests.iter_mut().try_for_each(Process::alive)?;
        let pids: Vec<_> = self.guests.iter().map(Process::pid).collect();
        let span = scene::window(&mut self.lab, &pids, time)?;
        let received = |port: &String| span.rate(port, |p| p.out.frames);
        // What the receivers themselves send is nothing after their announcement.
        Ok(Measured {
            bytes,
            load,
            offered: to_f64(span.all(|p: &PortStats| p.r#in.frames)) / span.seconds(),
            each: self.receivers.iter().map(received).collect(),
            interrupts: self.receivers.iter().map(|r| span.rate(r, interrupts)).sum(),
            waits: span.sleeps(),
            lost: to_f64(span.all(dropped("receiver-full"))) / span.seconds(),
            cpu_switch: span.switch(),
            cpu_guests: (0..pids.len()).map(|n| span.guest(n)).sum(),
        })
    }
}

/// The median of a figure.
fn at(
    all: &Results<'_>,
    technique: &str,
    (queues, bytes, load): (usize, u32, Load),
    value: impl Fn(&Measured) -> f64,
) -> Option<f64> {
    let is = |w: &Case| w.technique.name == technique && w.queues == queues;
    let (_, samples) = all.iter().find(|(w, _)| is(w))?;
    let find = |seen: &Vec<Measured>| {
        let mut found = seen.iter();
        found.find(|s| s.bytes == bytes && s.load == load).map(&value)
    };
    middle(samples.0.iter().flatten().filter_map(find).collect())
}

fn was_measured(all: &Results<'_>, bytes: u32) -> bool {
    all.iter().flat_map(|(_, s)| s.0.iter().flatten()).flatten().any(|s| s.bytes == bytes)
}

fn short(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), si)
}

fn tables(all: &Results<'_>, technique: &Technique) -> Vec<Table> {
    [rates, interrupts_of, cpu].map(|table| table(all, technique.name)).into()
}

fn sizes(all: &Results<'_>) -> impl Iterator<Item = u32> {
    SIZES.into_iter().filter(|&bytes| was_measured(all, bytes))
}

fn rates(all: &Results<'_>, name: &str) -> Table {
    let heads = [
        "bytes",
        "1 queue",
        "2 queues",
        "4 queues",
        "4: each, least to most",
        "24k, 1 queue",
        "24k, 4: each",
    ];
    let mut table =
        Table::new(format!("Figures 6 and 7, {name}: frames/s received, in all"), &heads);
    for bytes in sizes(all) {
        let total = |queues, load| short(at(all, name, (queues, bytes, load), Measured::total));
        table.rows.push(vec![
            bytes.to_string(),
            total(1, Load::All),
            total(2, Load::All),
            total(4, Load::All),
            spread(all, name, bytes),
            total(1, Load::Limited),
            short(at(all, name, (4, bytes, Load::Limited), Measured::of_each)),
        ]);
    }
    table
}

/// How many times less of it one queue has with the limit.
fn times(all: &Results<'_>, name: &str, bytes: u32, value: Value) -> String {
    let get = |load| at(all, name, (1, bytes, load), value);
    let both = get(Load::Link).zip(get(Load::Limited));
    number(both.map(|(open, limited)| open / limited.max(1e-9)))
}

fn interrupts_of(all: &Results<'_>, name: &str) -> Table {
    let heads = [
        "bytes",
        "1 queue",
        "4 queues",
        "24k, 1 queue",
        "times fewer",
        "24k, 4 queues",
        "waits/s, 4: none, 24k",
        "receivers full, 4: none, 24k",
    ];
    let mut table = Table::new(format!("Figure 8, {name}: interrupts/s to the guests"), &heads);
    for bytes in sizes(all) {
        let get = |queues, load, value: Value| short(at(all, name, (queues, bytes, load), value));
        let both = |value| [Load::Link, Load::Limited].map(|load| get(4, load, value)).join(", ");
        let interrupts: Value = |s| s.interrupts;
        table.rows.push(vec![
            bytes.to_string(),
            get(1, Load::Link, interrupts),
            get(4, Load::Link, interrupts),
            get(1, Load::Limited, interrupts),
            times(all, name, bytes, interrupts),
            get(4, Load::Limited, interrupts),
            // With registers, the wait for an answer is a sleep as well.
            if name == "virtio" { both(|s| s.waits) } else { "-".into() },
            both(|s| s.lost),
        ]);
    }
    table
}

fn cpu(all: &Results<'_>, name: &str) -> Table {
    let heads = [
        "bytes",
        "1 queue",
        "4 queues",
        "24k, 1 queue",
        "switch, guest",
        "times less",
        "24k, 4 queues",
    ];
    let mut table =
        Table::new(format!("Figures 9 and 10, {name}: CPU of switch and guests, in cores"), &heads);
    for bytes in sizes(all) {
        let get = |queues, load, value: Value| number(at(all, name, (queues, bytes, load), value));
        let parts: [Value; 2] = [|s| s.cpu_switch, |s| s.cpu_guests];
        table.rows.push(vec![
            bytes.to_string(),
            get(1, Load::Link, Measured::cpu),
            get(4, Load::Link, Measured::cpu),
            get(1, Load::Limited, Measured::cpu),
            parts.map(|part| get(1, Load::Limited, part)).join(", "),
            times(all, name, bytes, Measured::cpu),
            get(4, Load::Limited, Measured::cpu),
        ]);
    }
    table
}

/// What the four receivers had, in the last round.
fn spread(all: &Results<'_>, technique: &str, bytes: u32) -> String {
    let is = |w: &Case| w.technique.name == technique && w.queues == 4;
    let last = all.iter().find(|(w, _)| is(w)).and_then(|(_, s)| s.0.iter().flatten().last());
    let seen = last.and_then(|seen| seen.iter().find(|s| s.bytes == bytes && s.load == Load::All));
    seen.map_or_else(
        || "-".into(),
        |seen| {
            let each = || seen.each.iter().copied();
            let (least, most) = (each().fold(f64::INFINITY, f64::min), each().fold(0.0, f64::max));
            format!("{} to {}", si(least), si(most))
        },
    )
}

type Value = fn(&Measured) -> f64;

fn panels(all: &Results<'_>) -> Vec<Panel> {
    const LINKS: [Load; 2] = [Load::Link, Load::Limited];
    let kinds: [(&str, &str, Value, &[Load]); 4] = [
        ("figure 6: received in all", "frames/s", Measured::total, &[Load::All]),
        ("figure 7: received by each", "frames/s", Measured::of_each, &[Load::All]),
        ("figure 8: interrupts", "interrupts/s", |s| s.interrupts, &LINKS),
        ("figures 9, 10: CPU of switch and guests", "cores", Measured::cpu, &LINKS),
    ];
    kinds
        .map(|(title, y, value, loads)| Panel {
            title: title.into(),
            x: X::Lines {
                label: "bytes of a frame".into(),
                marks: SIZES.iter().map(|&s| s.into()).collect(),
                log: true,
            },
            y: y.into(),
            log: true,
            series: all
                .iter()
                .flat_map(|(w, _)| loads.iter().map(move |&l| (*w, l)))
                .filter(|(w, _)| w.queues != 2 || loads.len() == 1)
                .map(|(w, load)| line(all, w, load, value))
                .collect(),
        })
        .into()
}

fn line(all: &Results<'_>, what: &Case, load: Load, value: Value) -> (String, Vec<(f64, f64)>) {
    let (name, queues) = (what.technique.name, what.queues);
    let point = |bytes: u32| Some((bytes.into(), at(all, name, (queues, bytes, load), value)?));
    let limit = if load == Load::Limited { ", 24k" } else { "" };
    (format!("{name}, {queues}{limit}"), SIZES.iter().filter_map(|&b| point(b)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_tell_how_much_a_limit_saves() {
        let seen = |what: &Case, bytes, load: Load| {
            let limited = load == Load::Limited;
            let rate = if limited { 24_000.0 } else { 1e6 / to_f64(what.queues as u64) };
            Measured {
                bytes,
                load,
                offered: 1e7,
                each: vec![rate; what.queues],
                interrupts: rate / 10.0,
                waits: rate / 20.0,
                lost: 0.0,
                cpu_switch: if limited { 0.5 } else { 1.0 },
                cpu_guests: if limited { 0.1 } else { 0.8 },
            }
        };
        let technique = technique::one("virtio").unwrap();
        let cases = QUEUES.map(|queues| Case { technique, queues });
        let of = |w: &Case| {
            let both = |bytes| LOADS.map(|load| seen(w, bytes, load));
            Samples::near(vec![Some(SIZES.into_iter().flat_map(both).collect::<Vec<_>>())])
        };
        let all: Vec<_> = cases.iter().map(|w| (w, of(w))).collect();
        let tables = tables(&all, technique);
        let row = |n: usize| tables[n].rows[0].join(" | ");
        assert_eq!(
            row(0),
            "60 | 1.00 M | 1.00 M | 1.00 M | 250.00 k to 250.00 k | 24.00 k | 24.00 k"
        );
        assert_eq!(row(1), "60 | 100.00 k | 25.00 k | 2400 | 41.7 | 2400 | 12.50 k, 1200 | 0, 0");
        assert_eq!(row(2), "60 | 1.80 | 1.80 | 0.60 | 0.50, 0.10 | 3.00 | 0.60");
        assert_eq!(Load::Link.rate(60), 1_488_095);
        let panels = panels(&all);
        let names = |n: usize| panels[n].series.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(0), ["virtio, 1", "virtio, 2", "virtio, 4"]);
        assert_eq!(names(2), ["virtio, 1", "virtio, 1, 24k", "virtio, 4", "virtio, 4, 24k"]);
    }
}
