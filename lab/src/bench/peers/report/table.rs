//! The table on standard output.

use std::fmt::{Result, Write as _};

use super::super::Peer;
use super::super::measure::Figures;
use super::{Ratio, Report, RoundRatio};

/// Goals for vmlan / OVS-DPDK, frames per CPU second; never below 1 at other sizes.
const GOALS: [(u32, f64); 2] = [(60, 2.0), (1514, 1.5)];

/// Goal for frames with policies / without, at any size.
const POLICIES: f64 = 0.85;

/// Medians over the rounds, then the ratio round by round.
pub fn table(report: &Report<'_>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = head(&mut text, report)
        .and_then(|()| rows(&mut text, report))
        .and_then(|()| ratios(&mut text, report))
        .and_then(|()| notes(&mut text, report));
    text
}

fn head(out: &mut String, report: &Report<'_>) -> Result {
    let (args, machine) = (report.args, &report.machine.host);
    let traffic = if args.one_way { "one way" } else { "both ways" };
    writeln!(out, "\nmachine  {}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel)?;
    writeln!(out, "with     {}", report.machine.versions.join("; "))?;
    writeln!(out, "commit   {}", machine.commit)?;
    writeln!(out, "guest    native (DPDK virtio-user) on core 0, switch on core 1, {traffic}")?;
    writeln!(
        out,
        "figures  medians of {} rounds of {} s, nice {}\n",
        args.rounds, args.seconds, args.nice
    )
}

fn rows(out: &mut String, report: &Report<'_>) -> Result {
    writeln!(
        out,
        "{:<9} {:>5} {:>10} {:>8} {:>10} {:>11} {:>8} {:>7} {:>10}",
        "switch",
        "bytes",
        "Mframes/s",
        "Gbit/s",
        "switch CPU",
        "Mframes per",
        "/ ovs-",
        "lost",
        "others' CPU"
    )?;
    writeln!(
        out,
        "{:<9} {:>5} {:>10} {:>8} {:>10} {:>11} {:>8} {:>7} {:>10}",
        "", "", "", "", "s/s", "CPU second", "dpdk", "%", "s/s"
    )?;
    for &bytes in &report.args.sizes {
        for peer in Peer::ALL.into_iter().filter(|peer| report.args.only.contains(peer)) {
            row(out, report, peer, bytes)?;
        }
    }
    Ok(())
}

fn row(out: &mut String, report: &Report<'_>, peer: Peer, bytes: u32) -> Result {
    write!(out, "{peer:<9} {bytes:>5} ")?;
    if let Some((_, why)) = report.skipped.iter().find(|(skipped, _)| *skipped == peer) {
        return writeln!(out, "not driven: {why}");
    }
    let failures: Vec<_> =
        report.row(peer, bytes).filter_map(|cell| cell.figures.as_ref().err()).collect();
    let Some(frames) = report.median(peer, bytes, |f| f.frames_per_s / 1e6) else {
        return writeln!(out, "{}", failures.first().map_or("not measured", |why| why.as_str()));
    };
    let median = |of| report.median(peer, bytes, of).unwrap_or(f64::NAN);
    let ratio =
        report.ratio(peer, bytes).map_or("-".into(), |ratio| format!("{:.2}", ratio.median));
    let (gbit, cpu) = (median(|f| f.gbit_per_s), median(|f| f.cpu_switch));
    let per_cpu = median(|f| f.frames_per_cpu_s / 1e6);
    let (lost, others) = (median(|f| f.lost * 100.0), median(|f| f.cpu_others));
    write!(out, "{frames:>10.3} {gbit:>8.2} {cpu:>10.2} {per_cpu:>11.3} {ratio:>8} ")?;
    write!(out, "{lost:>7.2} {others:>10.2}")?;
    if let Some(why) = failures.first() {
        write!(out, "  ({} of {} rounds {why})", failures.len(), report.args.rounds)?;
    }
    writeln!(out)
}

fn ratios(out: &mut String, report: &Report<'_>) -> Result {
    let goal = |bytes| GOALS.iter().find(|goal| goal.0 == bytes).map_or(1.0, |goal| goal.1);
    let title = "vmlan / ovs-dpdk, frames per CPU second, round by round";
    compared(out, title, &report.ratios(), goal)?;
    let title = "vmlan with policies / without, frames, round by round";
    compared(out, title, &report.policies(), |_| POLICIES)
}

fn compared(out: &mut String, title: &str, ratios: &[Ratio], goal: impl Fn(u32) -> f64) -> Result {
    if ratios.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    ratios.iter().try_for_each(|ratio| {
        let (bytes, median) = (ratio.bytes, ratio.median);
        let rounds: Vec<_> = ratio.rounds.iter().map(round).collect();
        let verdict = verdict(median, goal(bytes));
        writeln!(out, "{bytes:>6} B  {}  median {median:.2}  {verdict}", rounds.join("  "))
    })
}

fn round(round: &RoundRatio) -> String {
    format!("{:.2}{}", round.ratio, if round.noisy { "*" } else { "" })
}

fn verdict(median: f64, goal: f64) -> String {
    let met = if median >= goal { "met" } else { "missed" };
    format!("(goal {goal}: {met})")
}

fn notes(out: &mut String, report: &Report<'_>) -> Result {
    writeln!(out)?;
    for peer in Peer::ALL.into_iter().filter(|peer| report.args.only.contains(peer)) {
        writeln!(out, "{peer:<9} {}", peer.note())?;
    }
    let mut measured = report.cells.iter().filter_map(|cell| cell.figures.as_ref().ok());
    if measured.any(Figures::noisy) {
        writeln!(
            out,
            "\n* noisy: others used more than 0.1 CPU meanwhile. A switch that polls burns CPU \
             while its guest\n  waits for a core, so such ratios flatter a switch that sleeps. \
             Repeat on a quiet machine."
        )?;
    }
    Ok(())
}
