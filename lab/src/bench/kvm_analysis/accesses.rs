//! Figures 10 and 11: register accesses for a frame, transmitted and received, sparse and in
//! bursts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::rounds::Cell;
use super::{Part, Run, Samples, series, steps};
use crate::failure::Failure;
use crate::native::chip::Choice;
use crate::native::span::interrupts;
use crate::native::{Chip, Lab, MAC_A, MAC_B, Plug, Span, Technique, technique};
use vmlan_config::human_text::to_f64;

/// Moderation changes nothing for a frame that comes alone, and is not the analysis' subject.
pub(super) const WAYS: [&str; 3] = ["plain", "mapped", "csb"];
/// Time for rings to fill and interrupts to settle.
const SETTLE: Duration = Duration::from_millis(300);
/// Less than this of a register for a frame is the driver's start, or its watchdog.
const SELDOM: f64 = 0.005;

const NOTES: [&str; 3] = [
    "accesses: register accesses that left the guest, by the switch's count, over the frames that \
     the guest sent or received in the window (r: reads, w: writes). `vmlan pkt-gen` on the NIC at \
     one end, on virtio-net at the other, 60 bytes. sparse: 250 frames/s, each sent, interrupted \
     for and acknowledged before the next one; in bursts: 16 frames each millisecond. Other \
     registers: fewer than 5 accesses for 1,000 frames each.",
    "The analysis (2007, kvm-51, QEMU's rtl8139, Linux' 8139too with NAPI): three accesses for a \
     transmitted frame; up to seven for a received one that comes alone, close to three in bursts. \
     Its figure 10 counts them, figure 11 lists them as steps. The native driver here goes the \
     same steps, and some that the list leaves out: it reads what became of a sent frame (TSD), \
     looks once more whether there is another one (the CR that ends each poll), and gives the \
     receive buffer back (CAPR). Linux' own driver is counted by `make bench-kvm`.",
    "mapped: stores and loads in shared pages, which cost no trip, by the driver's own count (its \
        start included).",
];

/// How frames come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Sparse,
    Bursts,
}

impl Load {
    fn name(self) -> &'static str {
        if self == Self::Sparse { "sparse" } else { "in bursts" }
    }

    /// Frames a second, and of a burst.
    fn words(self) -> [&'static str; 4] {
        match self {
            Self::Sparse => ["-R", "250", "-b", "1"],
            Self::Bursts => ["-R", "16000", "-b", "16"],
        }
    }
}

struct Case {
    chip: &'static Chip,
    way: &'static Technique,
    /// The NIC transmits; otherwise it receives.
    sends: bool,
    load: Load,
}

/// For each frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct PerFrame {
    pub(super) reads: f64,
    pub(super) writes: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measured {
    pub(super) frames: u64,
    /// By register.
    pub(super) registers: BTreeMap<String, PerFrame>,
    /// Interrupts delivered, for each frame.
    pub(super) interrupts: f64,
    /// Accesses in shared pages, for each frame of the guest's whole run.
    pub(super) mapped: f64,
}

impl Measured {
    /// Of these registers together.
    pub(super) fn of(&self, is: impl Fn(&str) -> bool) -> PerFrame {
        let mine = self.registers.iter().filter(|(name, _)| is(name));
        mine.fold(PerFrame::default(), |sum, (_, n)| PerFrame {
            reads: sum.reads + n.reads,
            writes: sum.writes + n.writes,
        })
    }

    fn all(&self) -> f64 {
        let PerFrame { reads, writes } = self.of(|_| true);
        reads + writes
    }
}

/// What has been seen, and a way to find it.
pub(super) struct Results<'a>(Vec<(&'a Case, Samples<Measured>)>);

impl Results<'_> {
    pub(super) fn find(
        &self,
        chip: &str,
        way: &str,
        case: (bool, Load),
    ) -> Option<&Samples<Measured>> {
        let is = |w: &Case| w.chip.name == chip && w.way.name == way && (w.sends, w.load) == case;
        self.0.iter().find(|(w, _)| is(w)).map(|(_, samples)| samples)
    }
}

/// The four columns of most tables.
pub(super) const CASES: [(bool, Load); 4] =
    [(true, Load::Sparse), (true, Load::Bursts), (false, Load::Sparse), (false, Load::Bursts)];
const HEADS: [&str; 4] =
    ["transmit, sparse", "transmit, in bursts", "receive, sparse", "receive, in bursts"];
/// Accesses for a frame that the analysis counts of rtl8139. Of transmitting in bursts it says
/// nothing.
const PAPER: [Option<f64>; 4] = [Some(3.0), None, Some(7.0), Some(3.0)];

pub(super) fn run(run: &mut Run<'_>, choice: &Choice) -> Result<Part, Failure> {
    let cases = cases(choice);
    let direction = |w: &Case| if w.sends { "transmit" } else { "receive" };
    let name =
        |w: &Case| format!("{} {}, {}, {}", w.chip.name, w.way.name, direction(w), w.load.name());
    let show = |_: &Case, s: &Measured| {
        format!(
            "{:.2} accesses and {:.2} interrupts for each of {}",
            s.all(),
            s.interrupts,
            s.frames
        )
    };
    let samples = run.unpaired(|run| run.rounds(&cases, name, show, measure))?;
    let keys = |w: &Case| {
        let (nic, way) = (w.chip.name, w.way.name);
        json!({ "nic": nic, "way": way, "direction": direction(w), "load": w.load.name() })
    };
    let cells = cells(cases.iter().zip(&samples).map(|(w, s)| (keys(w), s.clone())))?;
    Ok(report(choice, &Results(cases.iter().zip(samples).collect()), cells))
}

fn cases(choice: &Choice) -> Vec<Case> {
    let all = WAYS.iter().flat_map(|way| choice.with(way));
    all.flat_map(|(chip, way)| CASES.map(|(sends, load)| Case { chip, way, sends, load })).collect()
}

fn measure(cell: Cell<'_, Case>) -> Result<Measured, Failure> {
    let Case { way, sends, load, .. } = *cell.what;
    let virtio = technique::one("virtio")?;
    let plug = |name, mine| Plug { name, technique: if mine { way } else { virtio }, keys: "" };
    let plugs = [plug("a", sends), plug("b", !sends)];
    let mut lab = Lab::start(cell.setup, &plugs, &[])?;
    let words = ["pkt-gen", "--json", "--spin", "0", "-f"];
    let b = lab.ready_guest("b", &[&words[..], &["rx", "-S", MAC_B]].concat())?;
    let sender = ["tx", "-l", "60", "-S", MAC_A, "-D", MAC_B];
    let a = lab.ready_guest("a", &[&words[..], &sender, &load.words()].concat())?;
    lab.pause(SETTLE)?;
    let span = Span::of(&mut lab, &[], cell.time)?;
    (cell.news)(0.0, cell.time);
    let (port, guest) = if sends { ("a", a) } else { ("b", b) };
    let frames = span.grown(port, |p| if sends { p.r#in.frames } else { p.out.frames });
    if frames == 0 {
        // It may have something to say.
        guest.finish()?;
        return Err(Failure::Failed("no frame passed".into()));
    }
    let per_frame = |n: u64| to_f64(n) / to_f64(frames);
    let mut registers: BTreeMap<String, PerFrame> = BTreeMap::new();
    for (name, n) in span.registers(port) {
        let sum = registers.entry(family(&name)).or_default();
        sum.reads += per_frame(n.reads);
        sum.writes += per_frame(n.writes);
    }
    Ok(Measured {
        frames,
        registers,
        interrupts: per_frame(span.grown(port, interrupts)),
        mapped: mapped(&guest.finish()?),
    })
}

/// rtl8139 has four of each register about transmitted frames, and uses them in turn.
fn family(register: &str) -> String {
    let kin = ["TSD", "TSAD"].into_iter().find(|kin| {
        let rest = register.strip_prefix(kin);
        rest.is_some_and(|rest| rest.parse::<u8>().is_ok())
    });
    kin.unwrap_or(register).to_owned()
}

/// From a guest's summary.
fn mapped(said: &str) -> f64 {
    let said: Value = serde_json::from_str(said).unwrap_or_default();
    let field = |value: &Value| value.as_f64().unwrap_or(0.0);
    field(&said["registers"]["mapped"]) / field(&said["frames"]).max(1.0)
}

fn report(choice: &Choice, all: &Results<'_>, cells: Value) -> Part {
    let mut tables = vec![sums(choice, all)];
    tables.extend(steps::tables(all));
    for nic in &choice.chips {
        tables.extend(nic.ways.iter().filter_map(|way| by_register(all, nic, way)));
    }
    // Mapped is e1000 alone.
    let panels =
        WAYS.into_iter().filter(|way| choice.with(way).nth(1).is_some() || *way == "plain");
    let panels = panels.map(|way| panel(choice, all, way)).collect();
    Part { notes: NOTES.map(str::to_owned).to_vec(), tables, panels, cells, ratios: Vec::new() }
}

/// `1.00 r 2.00 w`
fn both(samples: Option<&Samples<Measured>>, value: impl Fn(&Measured) -> PerFrame) -> String {
    let Some(samples) = samples else { return "-".into() };
    let part = |part: fn(PerFrame) -> f64, letter| {
        let found = samples.median(|s| part(value(s)))?;
        (found >= SELDOM).then(|| format!("{} {letter}", number(Some(found))))
    };
    let words: Vec<_> =
        [part(|n| n.reads, "r"), part(|n| n.writes, "w")].into_iter().flatten().collect();
    if words.is_empty() { "0".into() } else { words.join(" ") }
}

/// All accesses, of every NIC.
fn sums(choice: &Choice, all: &Results<'_>) -> Table {
    let heads = [&["NIC"][..], &HEADS].concat();
    let mut table = Table::new("Register accesses for a frame", &heads);
    if choice.has(steps::NIC) {
        let theirs = PAPER.map(|n| n.map_or_else(|| "-".into(), |n| format!("{n}")));
        let name = "the analysis: rtl8139".to_owned();
        table.rows.push([vec![name], theirs.to_vec()].concat());
    }
    for nic in &choice.chips {
        let is_seen = |way: &&Technique| all.find(nic.name, way.name, CASES[0]).is_some();
        for way in nic.ways.iter().filter(is_seen) {
            let ours = CASES.map(|case| {
                let samples = all.find(nic.name, way.name, case);
                let total = number(samples.and_then(|s| s.median(Measured::all)));
                format!("{total} = {}", both(samples, |s| s.of(|_| true)))
            });
            let name = format!("{} {}", nic.name, way.name);
            table.rows.push([vec![name], ours.to_vec()].concat());
        }
    }
    table
}

/// Each register of one NIC; its interrupts.
fn by_register(all: &Results<'_>, nic: &Chip, way: &Technique) -> Option<Table> {
    let columns = CASES.map(|case| all.find(nic.name, way.name, case));
    let seen = || columns.iter().flatten().flat_map(|samples| samples.0.iter().flatten());
    seen().next()?;
    let heads = [&["register"][..], &HEADS].concat();
    let mut table = Table::new(format!("{} {}: by register", nic.name, way.name), &heads).long();
    let mut names: Vec<&String> = seen().flat_map(|s| s.registers.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let row = columns.map(|samples| both(samples, |s| s.of(|n| n == name)));
        if row.iter().any(|cell| !["0", "-"].contains(&cell.as_str())) {
            table.rows.push([vec![name.clone()], row.to_vec()].concat());
        }
    }
    let figures = |name: &str, value: fn(&Measured) -> f64| {
        let row = columns.map(|samples| number(samples.and_then(|s| s.median(value))));
        [vec![name.to_owned()], row.to_vec()].concat()
    };
    if seen().any(|s| s.mapped >= SELDOM) {
        table.rows.push(figures("(mapped)", |s| s.mapped));
    }
    table.rows.push(figures("(interrupts)", |s| s.interrupts));
    Some(table)
}

fn panel(choice: &Choice, all: &Results<'_>, way: &str) -> Panel {
    let points = |nic: &'static Chip| {
        let cases = CASES.iter().enumerate();
        cases
            .filter_map(|(n, &case)| {
                let samples = all.find(nic.name, way, case)?;
                Some((to_f64(n as u64), samples.median(Measured::all)?))
            })
            .collect()
    };
    let mut series = series(choice, points);
    if way == "plain" && choice.has(steps::NIC) {
        let theirs = PAPER.iter().enumerate().filter_map(|(n, p)| Some((to_f64(n as u64), (*p)?)));
        series.push(("the analysis".into(), theirs.collect()));
    }
    Panel {
        title: format!("register accesses, {way}"),
        x: X::Groups(
            ["sent, sparse", "bursts", "received, sparse", "bursts"].map(str::to_owned).into(),
        ),
        y: "for a frame".into(),
        log: false,
        series,
    }
}

#[cfg(test)]
mod tests;
