//! For people.

use std::fmt::Write as _;

use super::segmentation::ratios;
use super::{Accesses, Bulk, Point, Row};
use crate::alike::Spread;

/// The paper's list: rtl8139, by the columns of the table of accesses.
const PAPER: &str = "3                   -                   7                   3";
/// A window is enough when it has so much of what the best one has.
const ENOUGH: f64 = 0.9;

/// One guest in a line.
pub(super) fn brief(row: &Row) -> String {
    let most = |sends| of(row, sends).map(|p| p.mbit_per_s).fold(0.0, f64::max);
    let accesses: Vec<_> =
        row.accesses.iter().map(|a| format!("{:.2}", a.reads + a.writes)).collect();
    let accesses = if accesses.is_empty() {
        String::new()
    } else {
        format!("; accesses {}", accesses.join(", "))
    };
    let (nic, round) = (row.nic, row.round);
    format!(
        "round {round}, {nic}: TCP up to {:.0} and {:.0} Mbit/s{accesses}",
        most(true),
        most(false)
    )
}

fn of(row: &Row, sends: bool) -> impl Iterator<Item = &Point> {
    row.windows.iter().filter(move |p| p.sends == sends)
}

/// All of it.
pub(super) fn table(windows: &[u32], rows: &[Row]) -> String {
    let mut out = String::from("Linux guests (TCG) and the host behind a TAP\n");
    // Writing to a String cannot fail.
    for (title, sends) in [("TX: guest to host", true), ("RX: host to guest", false)] {
        let heads: String =
            windows.iter().map(|kib| format!("{:>9}", format!("{kib} KiB"))).collect();
        let _ = writeln!(
            out,
            "\nTCP by window (iperf3 -w), {title}, Mbit/s\n{:22}{heads}   enough",
            "round, NIC"
        );
        for row in rows {
            let star = |p: &Point| if p.drops > 0 { "*" } else { "" };
            let value = |p: &Point| format!("{:>9}", format!("{:.1}{}", p.mbit_per_s, star(p)));
            let values: String = of(row, sends).map(value).collect();
            let enough = enough(row, sends).map_or_else(|| "-".into(), |kib| format!("{kib} KiB"));
            let _ = writeln!(out, "{:22}{values}   {enough}", name(row));
        }
    }
    out += &bulk(rows);
    let heads = ["TX, sparse", "TX, in bursts", "RX, sparse", "RX, in bursts"];
    let heads: String = heads.map(|h| format!("{h:20}")).concat();
    let heads = heads.trim_end();
    let _ = writeln!(out, "\nRegister accesses for a frame\n{:22}{heads}", "round, NIC");
    let _ = writeln!(out, "{:22}{PAPER}", "the analysis: rtl8139");
    for row in rows.iter().filter(|row| !row.accesses.is_empty()) {
        let cells: String = row.accesses.iter().map(|a| format!("{:20}", sum(a))).collect();
        let _ = writeln!(out, "{:22}{}", name(row), cells.trim_end());
    }
    out.push_str("\nBy register, for a frame\n");
    for row in rows {
        for a in &row.accesses {
            let way = if a.sends { "TX" } else { "RX" };
            let _ = writeln!(out, "{:22}{way}, {}: {}", name(row), a.load, by_register(a));
        }
    }
    out.push_str(WORDS);
    out
}

/// TCP with TSO over without.
fn bulk(rows: &[Row]) -> String {
    let mut out = format!(
        "\nTCP, guest to host, by who cuts segments: Mbit/s, bytes of a frame at the switch\n\
         {:22}{:28}{:28}NIC over kernel\n",
        "round, NIC", "the NIC (TSO)", "the kernel"
    );
    for row in rows.iter().filter(|row| !row.bulk.is_empty()) {
        let of = |tso: bool, value: fn(&Bulk) -> f64| {
            let mine = row.bulk.iter().filter(|b| b.tso == tso);
            Spread::of(mine.map(value).collect())
        };
        let cell = |tso| {
            let [rate, bytes] = [of(tso, |b| b.mbit_per_s), of(tso, |b| b.frame_bytes)];
            let rate = rate.map_or_else(|| "-".into(), |s| s.words());
            format!("{rate}, {:.0}", bytes.map_or(0.0, |s| s.ranks[2]))
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:22}{:28}{:28}{}",
            name(row),
            cell(true),
            cell(false),
            ratios(&row.bulk).words()
        );
    }
    out
}

const WORDS: &str = "\nenough: the smallest window with nine tenths of the most. *: the switch \
    dropped frames, for the guest had no room. sparse: a datagram each 10 ms; in bursts: 16 each \
    10 ms; the accesses\n\
    for what else passes meanwhile (iperf3's own connection) are among them. r, w: reads and \
    writes.\n";

fn name(row: &Row) -> String {
    format!("{}, {}", row.round, row.nic)
}

fn enough(row: &Row, sends: bool) -> Option<u32> {
    let most = of(row, sends).map(|p| p.mbit_per_s).fold(0.0, f64::max);
    of(row, sends).find(|p| p.mbit_per_s >= ENOUGH * most).map(|p| p.window_kib)
}

fn sum(a: &Accesses) -> String {
    format!("{:.2} = {:.2}r {:.2}w", a.reads + a.writes, a.reads, a.writes)
}

fn by_register(a: &Accesses) -> String {
    let ways = |(name, (reads, writes)): (&String, &(f64, f64))| {
        let part =
            |n: f64, letter| if n >= 0.01 { format!(" {n:.2}{letter}") } else { String::new() };
        format!("{name}{}{}", part(*reads, 'r'), part(*writes, 'w'))
    };
    let mut words: Vec<_> = a.registers.iter().map(ways).collect();
    words.push(format!("{:.2} interrupts", a.interrupts));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_accesses_have_a_row_for_each_guest() {
        let point = |(window_kib, mbit_per_s)| {
            let drops = u64::from(window_kib == 16);
            Point { sends: true, window_kib, mbit_per_s, drops }
        };
        let accesses = Accesses {
            sends: true,
            load: "sparse",
            frames: 100,
            reads: 1.0,
            writes: 2.0,
            registers: [("ISR".into(), (1.0, 1.0)), ("TSD0".into(), (0.0, 1.0))].into(),
            interrupts: 1.0,
        };
        let windows = [(4, 10.0), (8, 95.0), (16, 100.0)].map(point).to_vec();
        let row =
            Row { nic: "rtl8139", round: 1, windows, bulk: Vec::new(), accesses: vec![accesses] };
        assert_eq!(brief(&row), "round 1, rtl8139: TCP up to 100 and 0 Mbit/s; accesses 3.00");
        let text = table(&[4, 8, 16], &[row]);
        for line in [
            "1, rtl8139                 10.0     95.0   100.0*   8 KiB",
            "1, rtl8139            3.00 = 1.00r 2.00w",
            "1, rtl8139            TX, sparse: ISR 1.00r 1.00w, TSD0 1.00w, 1.00 interrupts",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
