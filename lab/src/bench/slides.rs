//! The slides' tables: datagrams of growing payload, transmitted and received by a guest, and
//! requests.

mod requests;

use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::sockets::{Job, Kind, Measured, Workload, show};
use super::{Run, Samples, raw};
use crate::failure::Failure;
use crate::native::{Technique, host};

const TECHNIQUES: [&str; 3] = ["plain", "csb", "virtio"];

/// Of a short run.
const SHORT_SIZES: [u32; 3] = [20, 1500, 65_507];

/// Payloads of the slides; the last is the most that a UDP datagram takes, where they write 64 KB.
pub(super) const SIZES: [u32; 5] = [20, 500, 1500, 15_000, 65_507];

/// Thousands of datagrams a second, by [`SIZES`]: e1000 and virtio under QEMU-KVM with Linux, guest
/// to host.
pub(super) const TRANSMIT: [(&str, [f64; 5]); 2] =
    [("plain", [32.0, 32.0, 17.0, 3.6, 0.91]), ("virtio", [270.0, 270.0, 240.0, 162.0, 70.0])];
/// The receiving application's.
pub(super) const RECEIVE: [(&str, [f64; 5]); 2] =
    [("plain", [600.0, 590.0, 136.0, 15.0, 17.0]), ("virtio", [560.0, 430.0, 382.0, 143.0, 38.3])];

struct Case {
    /// The guest sends; otherwise it receives.
    sends: bool,
    bytes: u32,
    technique: &'static Technique,
}

impl Case {
    fn direction(&self) -> &'static str {
        if self.sends { "transmit" } else { "receive" }
    }

    fn workload(&self) -> Workload {
        Workload { name: "UDP", kind: Kind::Datagrams, bytes: self.bytes }
    }
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let sizes = run.args.sizes(run.args.axis(&SIZES, &SHORT_SIZES), 8, 65_507)?;
    let skipped = host::enter().err();
    run.failures.extend(skipped.iter().map(|why| format!("what is beside the host: {why}")));
    let mut cases = Vec::new();
    for sends in [true, false] {
        for &bytes in &sizes {
            cases.extend(techniques.iter().map(|technique| Case { sends, bytes, technique }));
        }
    }
    // Between guests one run shows both.
    cases.retain(|w| w.sends || skipped.is_none());
    let name = |w: &Case| format!("{}, {} B, {}", w.direction(), w.bytes, w.technique.name);
    let shown = |w: &Case, seen: &Measured| show(w.workload(), seen);
    let samples = run.rounds(&cases, name, shown, |cell| {
        let Case { sends, technique, .. } = *cell.what;
        let (setup, workload) = (cell.setup, cell.what.workload());
        let job = Job {
            setup,
            technique,
            workload,
            threads: 1,
            window: 0,
            time: cell.time,
            news: cell.news,
        };
        match (skipped.is_none(), sends) {
            (false, _) => job.guest_to_guest(),
            (true, true) => job.guest_to_host(),
            (true, false) => job.host_to_guest(),
        }
    })?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    let beside_host = skipped.is_none();
    let mut report = report(&all, skipped)?;
    requests::run(run, beside_host)?.join(&mut report, "requests");
    Ok(report)
}

fn report(all: &Results<'_>, skipped: Option<String>) -> Result<Report, Failure> {
    let keys = |w: &Case| {
        let technique = w.technique.name;
        json!({ "direction": w.direction(), "bytes": w.bytes, "technique": technique })
    };
    let mut notes = vec![
        "`vmlan stack` UDP, one thread; the peer is the host (kernel sockets behind a tap port). \
         Thousands of datagrams a second: sent by the sending application, received by the \
         receiving one; Gbit/s of payload received. More than 1,472 bytes go as fragments of IP, \
         without offload (the slides' virtio passes up to 64 KB in one piece). slides: the e1000 \
         and virtio of QEMU-KVM there, transmit as sent, receive as received."
            .to_owned(),
    ];
    notes.extend(skipped.map(|why| {
        format!(
            "The peer is another guest of the same kind instead, so that one run shows both \
            directions: {why}"
        )
    }));
    notes.extend(raw::techniques(all.iter().map(|c| c.0.technique)));
    let directions = [true, false].into_iter().filter(|s| all.iter().any(|(w, _)| w.sends == *s));
    Ok(Report {
        title: "The slides' tables: datagrams by payload".into(),
        notes,
        tables: directions.map(|sends| table(all, sends)).collect(),
        figure: figure(all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

fn table(all: &Results<'_>, sends: bool) -> Table {
    let title = if sends { "transmit" } else { "receive" };
    let heads = [
        "payload, NIC",
        "sent k/s",
        "received k/s",
        "Gbit/s",
        "accesses",
        "interrupts",
        "slides k/s",
    ];
    let mut table = Table::new(title, &heads);
    for (what, samples) in all.iter().filter(|(w, _)| w.sends == sends) {
        let m = |value: fn(&Measured) -> f64| number(samples.median(value));
        let bits = f64::from(what.bytes) * 8e-6;
        table.rows.push(vec![
            format!("{} B, {}", what.bytes, what.technique.name),
            m(|s| s.sent),
            m(|s| s.value),
            number(samples.median(|s| s.value * bits)),
            m(|s| s.window.accesses_per_kframe),
            m(|s| s.window.interrupts_per_kframe),
            number(theirs(sends, what.technique.name, what.bytes)),
        ]);
    }
    table
}

fn theirs(sends: bool, technique: &str, bytes: u32) -> Option<f64> {
    let table = if sends { TRANSMIT } else { RECEIVE };
    let (_, row) = table.into_iter().find(|(name, _)| *name == technique)?;
    row.get(SIZES.iter().position(|s| *s == bytes)?).copied()
}

fn figure(all: &Results<'_>) -> Figure {
    let panel = |sends: bool| {
        let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
        for (what, samples) in all.iter().filter(|(w, _)| w.sends == sends) {
            let value = samples.median(|s| if sends { s.sent } else { s.value });
            let slides = theirs(sends, what.technique.name, what.bytes);
            let name = what.technique.name;
            for (name, value) in [(name.to_owned(), value), (format!("{name} (slides)"), slides)] {
                let Some(value) = value else { continue };
                let at = series.iter().position(|s| s.0 == name).unwrap_or_else(|| {
                    series.push((name, Vec::new()));
                    series.len() - 1
                });
                series[at].1.push((what.bytes.into(), value * 1e3));
            }
        }
        let marks = SIZES.iter().map(|&s| s.into()).collect();
        Panel {
            title: if sends { "transmit" } else { "receive" }.into(),
            x: X::Lines { label: "bytes of payload".into(), marks, log: true },
            y: "datagrams/s".into(),
            log: true,
            series,
        }
    };
    Figure {
        title: "vmlan bench slides: datagrams by payload".into(),
        columns: 2,
        panels: vec![panel(true), panel(false)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Window, technique};

    #[test]
    fn ours_stand_beside_the_slides() {
        let technique = technique::one("virtio").unwrap();
        let cases = [true, false].map(|sends| Case { sends, bytes: 1500, technique });
        let seen = Measured { value: 100.0, sent: 125.0, window: Window::default() };
        let all: Vec<_> =
            cases.iter().map(|w| (w, Samples::near(vec![Some(seen.clone())]))).collect();
        let report = report(&all, None).unwrap();
        let rows: Vec<_> = report.tables.iter().map(|t| t.rows[0].join(" ")).collect();
        assert_eq!(
            rows,
            [
                "1500 B, virtio 125 100 1.20 0.00 0.00 240",
                "1500 B, virtio 125 100 1.20 0.00 0.00 382"
            ]
        );
        assert!(report.figure.svg("").unwrap().contains("virtio (slides)"));
        assert_eq!(theirs(true, "csb", 20), None);
    }
}
