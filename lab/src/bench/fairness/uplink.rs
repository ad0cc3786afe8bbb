//! Shares of an uplink that is the bottleneck: by weight, in bytes, whatever the frames' sizes.

use serde::Serialize;
use serde_json::json;

use super::super::plot::{Panel, X};
use super::super::report::{Table, cells};
use super::super::rounds::{Cell, Samples};
use super::{Part, Run, scene};
use crate::failure::Failure;
use crate::native::flood::ALL;
use crate::native::{Idle, Technique};
use vmlan_config::human_text::{si, to_f64};
use vmlan_engine::stats::PortStats;

const WEIGHTS: [u16; 3] = [1, 2, 4];
/// Of the frames of each sender.
const SIZES: [[u32; 3]; 2] = [[60, 512, 1514], [1514, 512, 60]];
const UPLINK: &str = "u";
const RATE: &str = "1Gbit";
const GOAL: f64 = 0.02;

const NOTE: &str = "Uplink: three virtio-net ports of weights 1, 2 and 4 flood one port that has \
    to_rate=1Gbit and is their uplink= (virtio-net as well, emptied at once). Bytes that arrived \
    of each; off: of the sender furthest from its part.";

#[derive(Clone, Debug, Serialize)]
struct Measured {
    /// Bits a second that the switch took from each sender.
    bits: Vec<f64>,
    /// Bits a second that the uplink took.
    uplink: f64,
    drops: u64,
    cpu_switch: f64,
}

pub(super) fn run(run: &mut Run<'_>, _: &[&'static Technique]) -> Result<Part, Failure> {
    let off = |seen: &Measured| scene::furthest(&seen.bits, &WEIGHTS);
    let show = |_: &[u32; 3], seen: &Measured| {
        let bits: Vec<_> = seen.bits.iter().map(|b| si(*b)).collect();
        format!("{} bit/s, {}", bits.join(", "), scene::percent(Some(off(seen))))
    };
    let samples = run.unpaired(|run| run.rounds(&SIZES, words, show, measure))?;
    let heads =
        ["bytes of weight 1, 2, 4", "Mbit/s of each", "off", "goal 2 %", "uplink Mbit/s", "drops"];
    let mut table = Table::new("Shares of an uplink of 1 Gbit/s", &heads);
    for (sizes, samples) in SIZES.iter().zip(&samples) {
        let rounds = samples.0.iter().flatten();
        let Some(seen) = rounds.max_by(|a, b| off(a).total_cmp(&off(b))) else { continue };
        let each: Vec<_> = seen.bits.iter().map(|b| format!("{:.1}", b / 1e6)).collect();
        table.rows.push(vec![
            words(sizes),
            each.join(", "),
            scene::percent(Some(off(seen))),
            scene::verdict(Some(off(seen) <= GOAL)),
            format!("{:.1}", seen.uplink / 1e6),
            seen.drops.to_string(),
        ]);
    }
    let keys = |sizes: &[u32; 3]| json!({ "bytes": sizes });
    Ok(Part {
        notes: vec![NOTE.into()],
        tables: vec![table],
        panels: vec![panel(&samples)],
        cells: cells(SIZES.iter().zip(&samples).map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

fn words(sizes: &[u32; 3]) -> String {
    sizes.map(|s| s.to_string()).join(", ")
}

fn panel(samples: &[Samples<Measured>]) -> Panel {
    let of = |(sizes, samples): (&[u32; 3], &Samples<Measured>)| {
        let point = |n: usize| Some((to_f64(n as u64), samples.median(|s| s.bits[n])? / 1e6));
        (format!("{} B", words(sizes)), (0..WEIGHTS.len()).filter_map(point).collect())
    };
    Panel {
        title: "shares of an uplink of 1 Gbit/s".into(),
        x: X::Groups(WEIGHTS.map(|w| format!("weight {w}")).into()),
        y: "Mbit/s".into(),
        log: false,
        series: SIZES.iter().zip(samples).map(of).collect(),
    }
}

fn measure(cell: Cell<'_, [u32; 3]>) -> Result<Measured, Failure> {
    let senders = scene::names("p", WEIGHTS.len());
    let names = [&senders[..], &[UPLINK.to_owned()]].concat();
    let mut lab = scene::lab(cell.setup, &names, "", &[])?;
    lab.set(UPLINK, &[("to_rate", RATE)])?;
    for (port, weight) in senders.iter().zip(WEIGHTS) {
        lab.set(port, &[("uplink", UPLINK), ("weight", &weight.to_string())])?;
    }
    let flood = lab.flood(&scene::guests(&names, |_| WEIGHTS.len()), Idle::Spin)?;
    (0..senders.len()).for_each(|n| flood.order(n, cell.what[n], ALL));
    let span = scene::window(&mut lab, &[], cell.time)?;
    let bits = |p: &PortStats| p.r#in.bytes * 8;
    (cell.news)(0.0, cell.time);
    Ok(Measured {
        bits: senders.iter().map(|s| span.rate(s, bits)).collect(),
        uplink: span.rate(UPLINK, |p| p.out.bytes * 8),
        drops: span.all(PortStats::dropped),
        cpu_switch: span.switch(),
    })
}
