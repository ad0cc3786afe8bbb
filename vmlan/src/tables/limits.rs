//! What limits counted, for people.

use vmlan_config::human_text::{columns_and, count, folded, si, to_f64};
use vmlan_engine::stats::{LimitStats, PortLimits, PortStats, Stats};

/// A line of the table: what it is called, what it counted, the ports that share it.
type Line<'a> = (String, LimitStats, &'a [String]);

fn lines(stats: &Stats) -> impl Iterator<Item = Line<'_>> {
    let own = |p: &PortStats| {
        let name = p.name.clone();
        let directions = p.limits.into_iter().flat_map(PortLimits::directions);
        directions.map(move |(direction, counts)| (format!("{direction} {name}"), counts, &[][..]))
    };
    let shared = stats.limits.iter().map(|l| (l.name.clone(), l.counts, &l.ports[..]));
    stats.ports.iter().flat_map(own).chain(shared)
}

/// Totals of all limits; empty if there are none.
pub(super) fn totals(stats: &Stats, width: usize) -> String {
    let table = lined_up("", lines(stats), &count, width);
    if table.is_empty() { table } else { table + &folded(WORDS, 0) + "\n" }
}

/// Rates between two readings, `seconds` apart.
pub(super) fn rates(before: &Stats, after: &Stats, seconds: f64, width: usize) -> String {
    let since = |(name, counts, ports)| {
        let old = lines(before).find(|(n, _, _)| *n == name).map(|(_, counts, _)| counts);
        (name, LimitStats::since(counts, old.unwrap_or_default()), ports)
    };
    lined_up("/s", lines(after).map(since), &|n| si(to_f64(n) / seconds), width)
}

/// What the words of the table mean.
const WORDS: &str = "OFFERED: frames that passed or were dropped. HELD: times that a frame was \
    left in its sender's ring until there were tokens for it; nothing is lost by that.";

fn lined_up<'a>(
    unit: &str,
    lines: impl Iterator<Item = Line<'a>>,
    show: &dyn Fn(u64) -> String,
    width: usize,
) -> String {
    let heads = ["OFFERED", "PASSED", "HELD", "DROPPED"].map(|head| format!("{head}{unit}"));
    let mut cells = vec![[vec!["LIMITS".to_owned()], heads.to_vec()].concat()];
    let mut behind = vec!["PORTS".to_owned()];
    for (name, counts, ports) in lines {
        let numbers = counts.outcomes().map(|(_, n)| show(n));
        cells.push([vec![name], numbers.to_vec()].concat());
        behind.push(ports.join(", "));
    }
    if cells.len() == 1 { String::new() } else { columns_and(&cells, 1, &behind, width) }
}
