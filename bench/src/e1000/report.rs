//! The table, the JSON file, the picture.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::peers::machine::Machine;
use super::super::peers::measure::median;
use super::Args;
use super::native::Figures;
use super::way::{ALL, Way};

/// One way at one size in one round.
#[derive(Debug, Clone)]
pub struct Cell {
    /// The way.
    pub way: Way,
    /// From 1.
    pub round: u32,
    /// Bytes of a frame.
    pub bytes: u32,
    /// What was seen, or why nothing was.
    pub figures: Result<Figures, String>,
}

/// All that was measured.
pub struct Report<'a> {
    /// The command line.
    pub args: &'a Args,
    /// Where.
    pub machine: Machine,
    /// In the order of the table.
    pub ways: Vec<Way>,
    /// In the order of measuring.
    pub cells: Vec<Cell>,
}

impl Report<'_> {
    fn values(&self, way: Way, bytes: u32, value: impl Fn(&Figures) -> f64) -> Vec<f64> {
        let cells = self.cells.iter().filter(|c| c.way == way && c.bytes == bytes);
        cells.filter_map(|c| c.figures.as_ref().ok().map(&value)).collect()
    }

    fn median(&self, way: Way, bytes: u32, value: impl Fn(&Figures) -> f64) -> Option<f64> {
        median(&mut self.values(way, bytes, value))
    }

    /// Frames per second over those of the first way, round by round.
    fn ratios(&self, way: Way, bytes: u32) -> Vec<f64> {
        let rate = |way, round| {
            let found = |c: &&Cell| c.way == way && c.bytes == bytes && c.round == round;
            let cell = self.cells.iter().find(found)?;
            cell.figures.as_ref().ok().map(|f| f.frames_per_s)
        };
        (1..=self.args.rounds)
            .filter_map(|round| Some(rate(way, round)? / rate(ALL[0], round)?))
            .collect()
    }
}

/// For people: medians, and the ratio to plain in each round.
pub fn table(report: &Report<'_>) -> String {
    let mut out = String::new();
    let m = &report.machine;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "e1000 guest to e1000 guest, native guests; medians of {} rounds of {} s\n{}, {} cores, Linux {}, vmlan {}\n",
        report.args.rounds, report.args.seconds, m.cpu, m.cores, m.kernel, m.commit
    );
    let _ = writeln!(
        out,
        "{:>5} {:13} {:>10} {:>7} {:>10} {:>10} {:>7} {:>5} {:>5} {:>5}  times plain, by round",
        "bytes", "way", "frames/s", "Gbit/s", "acc/1k", "irq/1k", "held/1k", "sw", "tx", "rx"
    );
    for &bytes in &report.args.sizes {
        for &way in &report.ways {
            row(&mut out, report, way, bytes);
        }
    }
    let _ = writeln!(
        out,
        "\nacc/1k: register accesses that are messages (virtio: doorbells) for each 1,000 frames, both guests; irq/1k: interrupts;\n\
         held/1k: interrupts held back; sw, tx, rx: CPU seconds per second of switch, sender, receiver."
    );
    for way in &report.ways {
        let _ = writeln!(out, "  {:13} {}", way.name, way.note);
    }
    out
}

fn row(out: &mut String, report: &Report<'_>, way: Way, bytes: u32) {
    let get = |value: fn(&Figures) -> f64| report.median(way, bytes, value);
    let Some(rate) = get(|f| f.frames_per_s) else {
        let _ = writeln!(out, "{bytes:>5} {:13} no figure", way.name);
        return;
    };
    let f = |value: fn(&Figures) -> f64| get(value).unwrap_or_default();
    let ratios: Vec<_> = report.ratios(way, bytes).iter().map(|r| format!("{r:.1}")).collect();
    let _ = writeln!(
        out,
        "{bytes:>5} {:13} {rate:>10.0} {:>7.2} {:>10.1} {:>10.2} {:>7.2} {:>5.2} {:>5.2} {:>5.2}  {}",
        way.name,
        f(|f| f.gbit_per_s),
        f(|f| f.accesses_per_k),
        f(|f| f.interrupts_per_k),
        f(|f| f.held_per_k),
        f(|f| f.cpu_switch),
        f(|f| f.cpu_sender),
        f(|f| f.cpu_receiver),
        ratios.join(" ")
    );
}

#[derive(Serialize)]
struct JsonCell<'a> {
    way: &'a str,
    round: u32,
    bytes: u32,
    #[serde(flatten)]
    figures: Option<Figures>,
    error: Option<&'a str>,
}

impl<'a> From<&'a Cell> for JsonCell<'a> {
    fn from(cell: &'a Cell) -> Self {
        let figures = cell.figures.as_ref();
        Self {
            way: cell.way.name,
            round: cell.round,
            bytes: cell.bytes,
            figures: figures.ok().copied(),
            error: figures.err().map(String::as_str),
        }
    }
}

/// Every cell of every round.
pub fn json(report: &Report<'_>) -> String {
    let cells: Vec<_> = report.cells.iter().map(JsonCell::from).collect();
    let all = serde_json::json!({ "guest": "native", "machine": report.machine, "cells": cells });
    format!("{all:#}\n")
}

/// Bars: frames per second, one panel for each size, on a logarithmic scale (the ways are a factor of 100 apart).
pub fn svg(report: &Report<'_>) -> String {
    const BAR: usize = 22;
    let panel = 34 + BAR * report.ways.len();
    let height = 70 + panel * report.args.sizes.len();
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="13">
<rect width="760" height="{height}" fill="#ffffff"/>
<text x="12" y="24">e1000 guest to guest: frames per second, logarithmic</text>
<text x="12" y="44" fill="#666666">native guests; {}, Linux {}, {}</text>
"##,
        report.machine.cpu, report.machine.kernel, report.machine.commit
    );
    for (i, &bytes) in report.args.sizes.iter().enumerate() {
        let top = 56 + i * panel;
        let _ = writeln!(out, r#"<text x="12" y="{}">{bytes} bytes</text>"#, top + 22);
        for (k, &way) in report.ways.iter().enumerate() {
            let y = top + 34 + k * BAR;
            let _ = writeln!(out, r#"<text x="24" y="{}">{}</text>"#, y + 13, way.name);
            let rate = report.median(way, bytes, |f| f.frames_per_s).unwrap_or(1.0).max(1.0);
            let length = (rate.log10() - 3.0).max(0.02) / 5.0 * 480.0;
            let _ = writeln!(
                out,
                r##"<rect x="130" y="{y}" width="{length:.1}" height="16" fill="#1f6fb2"/><text x="{:.1}" y="{}">{}</text>"##,
                136.0 + length,
                y + 13,
                human(rate)
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

fn human(rate: f64) -> String {
    if rate >= 1e6 { format!("{:.2} M", rate / 1e6) } else { format!("{:.0} k", rate / 1e3) }
}
