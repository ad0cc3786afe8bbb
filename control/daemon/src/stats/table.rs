//! Statistics for people.

use std::time::Duration;

use super::device::{self, grown};
use super::{PortStats, Stats};

/// Totals since each port was added.
#[must_use]
pub fn table(stats: &Stats) -> String {
    let mut rows = vec![
        ["PORT", "KIND", "LINK", "IN FRAMES", "IN BYTES", "OUT FRAMES", "OUT BYTES", "DOORBELLS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0].extend(["INTERRUPTS", "DROPS"].map(str::to_owned));
    rows.extend(stats.ports.iter().map(|p| {
        vec![
            p.name.clone(),
            p.kind.clone(),
            if p.up { "up" } else { "down" }.into(),
            count(p.r#in.frames),
            count(p.r#in.bytes),
            count(p.out.frames),
            count(p.out.bytes),
            count(p.doorbells),
            count(p.interrupts),
            drops(p),
        ]
    }));
    below(columns(&rows, 3), &device::totals(stats))
}

/// The table of emulated NICs under that of all ports.
fn below(ports: String, nics: &str) -> String {
    if nics.is_empty() { ports } else { ports + "\n" + nics }
}

/// Rates between two readings `apart`. A port that was added in between (or anew) starts at 0.
#[must_use]
pub fn rates(before: &Stats, after: &Stats, apart: Duration) -> String {
    let heads = [
        "PORT",
        "LINK",
        "IN f/s",
        "IN bit/s",
        "OUT f/s",
        "OUT bit/s",
        "DOORBELLS/s",
        "INTERRUPTS/s",
        "DROPS/s",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let none = PortStats::default();
    let seconds = apart.as_secs_f64().max(1e-6);
    for p in &after.ports {
        let old = before.ports.iter().find(|o| o.name == p.name).unwrap_or(&none);
        let rate = |value: fn(&PortStats) -> u64, unit: f64| {
            si(to_f64(grown(value(p), value(old))) * unit / seconds)
        };
        rows.push(vec![
            p.name.clone(),
            if p.up { "up" } else { "down" }.into(),
            rate(|p| p.r#in.frames, 1.0),
            rate(|p| p.r#in.bytes, 8.0),
            rate(|p| p.out.frames, 1.0),
            rate(|p| p.out.bytes, 8.0),
            rate(|p| p.doorbells, 1.0),
            rate(|p| p.interrupts, 1.0),
            rate(PortStats::dropped, 1.0),
        ]);
    }
    below(columns(&rows, 2), &device::rates(before, after, seconds))
}

fn drops(p: &PortStats) -> String {
    if p.drops.is_empty() {
        return "0".into();
    }
    let words: Vec<_> =
        p.drops.iter().map(|(reason, n)| format!("{reason} {}", count(*n))).collect();
    words.join(", ")
}

/// A count as floating point: exact up to 2^53, which is enough for people.
#[must_use]
pub(crate) fn to_f64(n: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    {
        n as f64
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// `1234567.0` as `1.23 M`.
#[must_use]
pub(crate) fn si(x: f64) -> String {
    let (scaled, unit) = match x {
        x if x >= 1e9 => (x / 1e9, " G"),
        x if x >= 1e6 => (x / 1e6, " M"),
        x if x >= 1e4 => (x / 1e3, " k"),
        x => return format!("{x:.0}"),
    };
    format!("{scaled:.2}{unit}")
}

/// Lines up `rows`; the first `left` columns to the left, the others to the right.
#[must_use]
pub(crate) fn columns(rows: &[Vec<String>], left: usize) -> String {
    let wide = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width: Vec<usize> = (0..wide)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&width)
            .enumerate()
            .map(
                |(c, (cell, w))| {
                    if c < left { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
                },
            )
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
