//! Requests and answers a second, over UDP and TCP, with each technique.

use serde_json::json;

use super::super::part::Part;
use super::super::plot::{Panel, X};
use super::super::report::{Table, cells, number};
use super::super::sockets::{Job, Kind, Measured, Workload, show};
use super::super::{Run, Samples};
use crate::alike::Spreads;
use crate::failure::Failure;
use crate::native::Technique;
use vmlan_config::human_text::to_f64;

const TECHNIQUES: [&str; 7] =
    ["plain", "posted", "moderated", "combined", "csb", "mapped", "virtio"];
const WORKLOADS: [Workload; 2] = [
    Workload { name: "UDP-RR", kind: Kind::UdpRequests, bytes: 1 },
    Workload { name: "TCP-RR", kind: Kind::Requests, bytes: 1 },
];
/// Thousands a second over UDP, guest and host, as the slides have it.
const SLIDES: [(&str, f64); 2] = [("plain", 17.0), ("virtio", 29.0)];

struct Case {
    technique: &'static Technique,
    workload: Workload,
}

type Results<'a> = [(&'a Case, Samples<Measured>)];

pub(super) fn run(run: &mut Run<'_>, beside_host: bool) -> Result<Part, Failure> {
    let techniques = run.args.techniques(&TECHNIQUES)?;
    let cases: Vec<_> = WORKLOADS
        .into_iter()
        .flat_map(|w| techniques.iter().map(move |&technique| Case { technique, workload: w }))
        .collect();
    let name = |w: &Case| format!("{}, {}", w.workload.name, w.technique.name);
    let samples = run.rounds(
        &cases,
        name,
        |w, seen| show(w.workload, seen),
        |cell| {
            let job = Job {
                setup: cell.setup,
                technique: cell.what.technique,
                workload: cell.what.workload,
                threads: 1,
                window: 0,
                time: cell.time,
                news: cell.news,
            };
            if beside_host { job.guest_to_host() } else { job.guest_to_guest() }
        },
    )?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    let keys = |w: &Case| json!({ "workload": w.workload.name, "technique": w.technique.name });
    Ok(Part {
        notes: vec![
            "Requests: one byte there and one back, one request under way, smoltcp in the guest; \
             thousands a second. The slides measure netperf's UDP-RR between guest and host."
                .into(),
        ],
        tables: vec![table(&techniques, &all)],
        panels: vec![panel(&techniques, &all)],
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: all.iter().filter_map(|(w, s)| over_plain(&all, beside_host, w, s)).collect(),
    })
}

fn over_plain(
    all: &Results<'_>,
    beside_host: bool,
    what: &Case,
    samples: &Samples<Measured>,
) -> Option<(String, Spreads)> {
    let name = what.technique.name;
    let plain = find(all, "plain", what.workload).filter(|_| name != "plain")?;
    // Beside a guest it is another figure.
    let peer = if beside_host { "" } else { ", guest to guest" };
    let words = format!("{name} / plain, {}{peer}", what.workload.name);
    Some((words, samples.ratios(plain, |m| m.value)))
}

fn find<'a>(all: &'a Results<'_>, name: &str, workload: Workload) -> Option<&'a Samples<Measured>> {
    let is = |w: &Case| w.technique.name == name && w.workload == workload;
    all.iter().find(|(w, _)| is(w)).map(|(_, samples)| samples)
}

fn table(techniques: &[&'static Technique], all: &Results<'_>) -> Table {
    let heads = ["NIC", "UDP-RR k/s", "over plain", "slides", "TCP-RR k/s", "over plain"];
    let mut table = Table::new("Requests", &heads);
    for t in techniques {
        let mut row = vec![t.name.to_owned()];
        for workload in WORKLOADS {
            let (mine, plain) = (find(all, t.name, workload), find(all, "plain", workload));
            row.push(number(mine.and_then(|s| s.median(|m| m.value))));
            let times = mine.zip(plain).map(|(s, plain)| s.ratios(plain, |m| m.value));
            row.push(times.unwrap_or_default().words());
            if workload.kind == Kind::UdpRequests {
                row.push(number(SLIDES.iter().find(|s| s.0 == t.name).map(|s| s.1)));
            }
        }
        table.rows.push(row);
    }
    table
}

fn panel(techniques: &[&'static Technique], all: &Results<'_>) -> Panel {
    let series = WORKLOADS.map(|workload| {
        let points = techniques.iter().enumerate().filter_map(|(n, t)| {
            let value = find(all, t.name, workload)?.median(|m| m.value)?;
            Some((to_f64(n as u64), value))
        });
        (workload.name.to_owned(), points.collect())
    });
    Panel {
        title: "requests".into(),
        x: X::Groups(techniques.iter().map(|t| t.name.to_owned()).collect()),
        y: "thousands a second".into(),
        log: false,
        series: series.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Window, technique};

    #[test]
    fn each_technique_stands_beside_plain_and_the_slides() {
        let techniques = technique::named(&["plain", "virtio"]).unwrap();
        let cases: Vec<_> = WORKLOADS
            .into_iter()
            .flat_map(|w| techniques.iter().map(move |&t| Case { technique: t, workload: w }))
            .collect();
        let seen = |w: &Case| {
            let value = if w.technique.name == "plain" { 5.0 } else { 20.0 };
            Measured { value, sent: value, window: Window::default() }
        };
        let all: Vec<_> = cases.iter().map(|w| (w, Samples::near(vec![Some(seen(w))]))).collect();
        let rows: Vec<_> = table(&techniques, &all).rows.iter().map(|r| r.join(" | ")).collect();
        let over = |times: &str| format!("near: {times}, 1 pairs");
        assert_eq!(
            rows[1],
            format!("virtio | 20.0 | {} | 29.0 | 20.0 | {}", over("4.00"), over("4.00"))
        );
        assert_eq!(panel(&techniques, &all).series[0].1.len(), 2);
        let name = |beside_host| {
            let (what, samples) = &all[1];
            over_plain(&all, beside_host, what, samples).unwrap().0
        };
        assert_eq!(name(true), "virtio / plain, UDP-RR");
        assert_eq!(name(false), "virtio / plain, UDP-RR, guest to guest");
    }
}
