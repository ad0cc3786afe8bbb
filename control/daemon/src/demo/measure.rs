//! One row of the demo.

use std::time::{Duration, Instant};

use super::lab::{Lab, Process};
use super::{Plan, RoundTrip, Row, progress};
use crate::exit::Failure;
use crate::process::cpu_time;
use crate::stats::{PortStats, si, to_f64};

const MAC_A: &str = "52:54:00:00:00:0a";
const MAC_B: &str = "52:54:00:00:00:0b";

/// Time for caches, clocks and the forwarding table to settle.
const WARM_UP: Duration = Duration::from_millis(500);

/// All counters at one moment.
struct Reading {
    at: Instant,
    ports: [PortStats; 2],
    switch: Duration,
    guests: Duration,
}

/// Runs two guests as `plan` says, and measures for `time`.
pub(super) fn row(lab: &mut Lab, plan: Plan, time: Duration) -> Result<Row, Failure> {
    let bytes = plan.bytes.to_string();
    let (sends, answers) = if plan.ping { ("ping", "pong") } else { ("tx", "rx") };
    progress(&format!("{}: starting the guests", plan.name));
    let mut b = lab.guest("b", &["-f", answers, "-s", MAC_B])?;
    until_up(lab, &mut b, 1)?;
    let mut a = lab.guest("a", &["-f", sends, "-s", MAC_A, "-d", MAC_B, "-l", &bytes])?;
    until_up(lab, &mut a, 0)?;
    watch(lab, plan, WARM_UP, [&mut a, &mut b])?;
    let before = read(lab, [&a, &b])?;
    watch(lab, plan, time, [&mut a, &mut b])?;
    let after = read(lab, [&a, &b])?;
    let summary = a.finish()?;
    b.finish()?;
    progress("");
    let mut row = figures(plan, &before, &after);
    if row.frames_per_s == 0.0 {
        return Err(Failure::Failed(format!("{}: no frame passed", plan.name)));
    }
    row.round_trip_us = plan.ping.then(|| round_trip(&summary)).flatten();
    Ok(row)
}

fn until_up(lab: &mut Lab, guest: &mut Process, port: usize) -> Result<(), Failure> {
    let mut dead = None;
    let mut ready = |lab: &Lab| {
        dead = guest.alive().err();
        dead.is_some() || lab.stats().is_ok_and(|ports| ports[port].up)
    };
    lab.wait(&mut ready, "a guest to connect")?;
    dead.map_or(Ok(()), Err)
}

/// Lets `time` pass, and shows what happens meanwhile.
fn watch(
    lab: &mut Lab,
    plan: Plan,
    time: Duration,
    guests: [&mut Process; 2],
) -> Result<(), Failure> {
    const STEP: Duration = Duration::from_millis(250);
    let end = Instant::now() + time;
    let [a, b] = guests;
    let mut frames = lab.stats()?[1].out.frames;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
        let began = Instant::now();
        lab.pause(left.min(STEP))?;
        a.alive()?;
        b.alive()?;
        let now = lab.stats()?[1].out.frames;
        let rate = to_f64(now - frames) / began.elapsed().as_secs_f64();
        frames = now;
        progress(&format!(
            "{}: {} frames/s, {:.0} s to go",
            plan.name,
            si(rate),
            left.as_secs_f64()
        ));
    }
    Ok(())
}

fn read(lab: &Lab, guests: [&Process; 2]) -> Result<Reading, Failure> {
    let gone = || Failure::Failed("a process of the demo is gone".into());
    let cpu = |pid| cpu_time(pid).ok_or_else(gone);
    let guests = cpu(guests[0].pid())? + cpu(guests[1].pid())?;
    Ok(Reading { at: Instant::now(), ports: lab.stats()?, switch: cpu(lab.switch())?, guests })
}

fn figures(plan: Plan, before: &Reading, after: &Reading) -> Row {
    let seconds = (after.at - before.at).as_secs_f64();
    let grown = |value: fn(&PortStats) -> u64| {
        let sum = |r: &Reading| r.ports.iter().map(value).sum::<u64>();
        sum(after).saturating_sub(sum(before))
    };
    let per = |part: u64, whole: f64| if whole > 0.0 { to_f64(part) / whole } else { 0.0 };
    let frames = grown(|p| p.out.frames);
    let thousands = to_f64(frames) / 1000.0;
    Row {
        name: plan.name.into(),
        guest: "native",
        frame_bytes: plan.bytes,
        frames_per_s: per(frames, seconds),
        gbit_per_s: per(grown(|p| p.out.bytes), seconds) * 8e-9,
        cpu_switch: after.switch.saturating_sub(before.switch).as_secs_f64() / seconds,
        cpu_guests: after.guests.saturating_sub(before.guests).as_secs_f64() / seconds,
        doorbells_per_kframe: per(grown(|p| p.doorbells), thousands),
        interrupts_per_kframe: per(grown(|p| p.interrupts), thousands),
        mean_batch: per(frames, to_f64(grown(|p| p.out.batches))),
        drops: grown(PortStats::dropped),
        seconds,
        round_trip_us: None,
    }
}

/// From the summary that `pkt-gen -f ping --json` prints.
fn round_trip(summary: &str) -> Option<RoundTrip> {
    let summary: serde_json::Value = serde_json::from_str(summary).ok()?;
    let us = |field| Some(summary.get("latency")?.get(field)?.as_f64()? / 1000.0);
    Some(RoundTrip { p50: us("p50_ns")?, p99: us("p99_ns")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_differences_over_time() {
        let plan = Plan { name: "x", bytes: 60, ping: false };
        let port = |frames: u64| {
            let mut p = PortStats::default();
            p.out.frames = frames;
            p.out.bytes = frames * 60;
            p.out.batches = frames / 100;
            p.doorbells = frames / 500;
            p.drops.insert("receiver-full".into(), frames / 1000);
            p
        };
        let at = Instant::now();
        let reading = |s: u64, frames| Reading {
            at: at + Duration::from_secs(s),
            ports: [PortStats::default(), port(frames)],
            switch: Duration::from_millis(500 * s),
            guests: Duration::from_secs(s),
        };
        let row = figures(plan, &reading(1, 1_000_000), &reading(3, 5_000_000));
        assert!((row.frames_per_s - 2e6).abs() < 1.0, "{row:?}");
        assert!((row.gbit_per_s - 0.96).abs() < 1e-6);
        assert!((row.cpu_switch - 0.5).abs() < 1e-6 && (row.cpu_guests - 1.0).abs() < 1e-6);
        assert!((row.doorbells_per_kframe - 2.0).abs() < 1e-6);
        assert!((row.mean_batch - 100.0).abs() < 1e-6);
        assert_eq!(row.drops, 4000);
    }

    #[test]
    fn round_trips_come_from_the_summary() {
        let trip = round_trip(r#"{"latency":{"p50_ns":12500,"p99_ns":90000}}"#).unwrap();
        assert_eq!(trip, RoundTrip { p50: 12.5, p99: 90.0 });
        assert!(round_trip("{}").is_none());
    }
}
