//! What ports counted, for people.

use std::time::Duration;

use super::{limits, nics};
use vmlan_config::human_text::{columns_and, count, si, to_f64};
use vmlan_engine::stats::{PortStats, Stats, grown};

/// Reasons of drops that are named for each port: those that count most. All of them are in the
/// JSON.
const REASONS: usize = 3;

/// Totals since each port was added, in lines of at most `width`.
pub fn table(stats: &Stats, width: usize) -> String {
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
    let ports = columns_and(&rows, 3, &behind, width);
    let all = below(
        below(ports, &limits::totals(stats, width)) + &unlearned(stats),
        &nics::totals(stats, width),
    );
    all + &sandbox(stats)
}

/// An older switch does not say.
fn sandbox(stats: &Stats) -> String {
    match stats.sandbox.as_str() {
        "" => String::new(),
        state => format!("sandbox {state}\n"),
    }
}

/// A further table under those that are there.
fn below(tables: String, more: &str) -> String {
    if more.is_empty() { tables } else { tables + "\n" + more }
}

fn unlearned(stats: &Stats) -> String {
    match stats.fdb.unlearned {
        0 => String::new(),
        n => format!(
            "{} times an address was not learned, for want of room in the table or its port's \
                share of it\n",
            count(n)
        ),
    }
}

/// Rates between two readings `apart`. A port that was added in between (or again) starts at 0.
pub fn rates(before: &Stats, after: &Stats, apart: Duration, width: usize) -> String {
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
    let ports = columns_and(&rows, 2, &behind, width);
    let tables = below(ports, &limits::rates(before, after, seconds, width));
    below(tables, &nics::rates(before, after, seconds, width))
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
