//! Statistics for people.

use std::time::Duration;

use super::device::{self, grown};
use super::{PortStats, Stats, limit};

/// Reasons of drops that are named for each port: those that count most. All of them are in the JSON.
const REASONS: usize = 3;

/// Totals since each port was added.
#[must_use]
pub fn table(stats: &Stats) -> String {
    let mut rows = vec![
        ["PORT", "KIND", "LINK", "IN FRAMES", "IN BYTES", "OUT FRAMES", "OUT BYTES", "DOORBELLS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0].extend(["INTERRUPTS", "WORK", "DROPS"].map(str::to_owned));
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
            format!("{:.1} s", to_f64(p.work_ns) / 1e9),
            count(p.dropped()),
        ]
    }));
    let mut behind = vec!["MOSTLY".to_owned()];
    behind.extend(stats.ports.iter().map(|p| mostly(p, &PortStats::default(), &count)));
    let ports = columns_and(&rows, 3, &behind);
    below(below(ports, &limit::totals(stats)) + &unlearned(stats), &device::totals(stats))
}

/// A further table under those that are there.
fn below(tables: String, more: &str) -> String {
    if more.is_empty() { tables } else { tables + "\n" + more }
}

fn unlearned(stats: &Stats) -> String {
    match stats.fdb.unlearned {
        0 => String::new(),
        n => format!(
            "{} times an address was not learned, for want of room in the table or its port's share of it\n",
            count(n)
        ),
    }
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
        "WORK",
        "DROPS/s",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut behind = vec!["MOSTLY".to_owned()];
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
            // Of a core's time.
            format!("{:.1} %", to_f64(grown(p.work_ns, old.work_ns)) / seconds / 1e7),
            rate(PortStats::dropped, 1.0),
        ]);
        behind.push(mostly(p, old, &|n| si(to_f64(n) / seconds)));
    }
    let ports = columns_and(&rows, 2, &behind);
    let tables = below(ports, &limit::rates(before, after, seconds));
    below(tables, &device::rates(before, after, seconds))
}

/// `receiver-full 1,000, storm 20`: why most of the frames since `old` were dropped.
fn mostly(p: &PortStats, old: &PortStats, show: &dyn Fn(u64) -> String) -> String {
    let since = |(reason, n): (&String, &u64)| {
        let n = grown(*n, old.drops.get(reason).copied().unwrap_or(0));
        (n > 0).then(|| (reason.clone(), n))
    };
    let mut reasons: Vec<_> = p.drops.iter().filter_map(since).collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let others = reasons.split_off(reasons.len().min(REASONS));
    if !others.is_empty() {
        reasons.push(("others".into(), others.iter().map(|(_, n)| n).sum()));
    }
    let words: Vec<_> =
        reasons.iter().map(|(reason, n)| format!("{reason} {}", show(*n))).collect();
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

/// As [`columns`], with a text of any length behind each row.
pub(super) fn columns_and(rows: &[Vec<String>], left: usize, behind: &[String]) -> String {
    let lines = columns(rows, left);
    if behind.iter().skip(1).all(String::is_empty) {
        return lines;
    }
    // The last column is to the right: every line is as long as the longest.
    let line =
        |(line, more): (&str, &String)| format!("{}\n", format!("{line}  {more}").trim_end());
    lines.lines().zip(behind).map(line).collect()
}
