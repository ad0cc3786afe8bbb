//! Round trips guest to guest.

use serde::Serialize;
use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, number};
use super::rounds::middle;
use super::{Run, Samples, raw};
use crate::alike::Spreads;
use crate::failure::Failure;
use crate::native::pair::{Measured, Task};
use crate::native::{Lab, Technique};
use vmlan_config::human_text::to_f64;

const TECHNIQUES: [&str; 7] =
    ["plain", "moderated", "combined", "polling", "csb", "mapped", "virtio"];

/// Bounds of send combining that are tried, in microseconds; the first is the driver's default.
const BOUNDS: [(u32, &str, &str); 2] =
    [(200, "combined", ""), (50, "combined, 50 us", "combine_us=50")];

/// Requests a second for `-R`, 0 for back to back. The last is for [`BOUNDS`] alone: so many that
/// some are due while a write of TDT is under way.
const PACES: [(&str, &str); 3] =
    [("1000", "1,000 a second"), ("0", "back to back"), ("10000", "10,000 a second")];

/// With fewer trips the 99.9th percentile is about the longest of them.
const FOR_P99_9: u64 = 10_000;

struct Case {
    technique: &'static Technique,
    /// The technique's, or that of a variant.
    name: &'static str,
    /// The variant's.
    keys: &'static str,
    pace: &'static (&'static str, &'static str),
}

/// Microseconds.
#[derive(Clone, Debug, Serialize)]
struct Trip {
    p50: f64,
    p99: f64,
    /// Of [`FOR_P99_9`] trips and more.
    p99_9: Option<f64>,
    max: f64,
    trips_per_s: f64,
    lost: f64,
}

impl Trip {
    /// From the summary that `pkt-gen -f ping --json` prints.
    fn of(seen: &Measured) -> Option<Self> {
        let latency = seen.said.first()?.get("latency")?;
        let samples = latency.get("samples")?.as_u64()?;
        let us = |field| Some(latency.get(field)?.as_f64()? / 1000.0);
        Some(Self {
            p50: us("p50_ns")?,
            p99: us("p99_ns")?,
            p99_9: us("p999_ns").filter(|_| samples >= FOR_P99_9),
            max: us("max_ns")?,
            // There and back are two deliveries.
            trips_per_s: seen.window.frames_per_s / 2.0,
            lost: seen.said.first()?.get("lost")?.as_f64()?,
        })
    }
}

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let cases = cases(&run.args.techniques(&TECHNIQUES)?);
    let name = |w: &Case| format!("{}, {}", w.name, w.pace.1);
    let show = |_: &Case, t: &Trip| {
        format!("{:.0}/s, p50 {:.1} us, p99 {:.1}", t.trips_per_s, t.p50, t.p99)
    };
    let samples = run.rounds(&cases, name, show, |cell| {
        let mut lab = Lab::pair(cell.setup, cell.what.technique, cell.what.keys)?;
        let task = Task { bytes: 60, ping: true, sender: &["-R", cell.what.pace.0] };
        let seen = lab.pkt_gen(task, cell.time, cell.news)?;
        Trip::of(&seen).ok_or_else(|| Failure::Failed("the sender measured no round trip".into()))
    })?;
    let all: Vec<_> = cases.iter().zip(samples).collect();
    report(&all)
}

/// Each technique at each pace; send combining with each bound.
fn cases(techniques: &[&'static Technique]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, pace) in PACES.iter().enumerate() {
        let wanted = |t: &Technique| n < 2 || ["moderated", "combined"].contains(&t.name);
        for &technique in techniques.iter().filter(|t| wanted(t)) {
            cases.push(Case { technique, name: technique.name, keys: "", pace });
            let others = BOUNDS.iter().skip(1).filter(|_| technique.name == "combined");
            cases.extend(others.map(|(_, name, keys)| Case { technique, name, keys, pace }));
        }
    }
    cases
}

type Results<'a> = [(&'a Case, Samples<Trip>)];

fn report(all: &Results<'_>) -> Result<Report, Failure> {
    let keys = |w: &Case| json!({ "technique": w.name, "pace": w.pace.1 });
    let mut notes = vec![
        "`vmlan pkt-gen` ping to pong, 60 bytes; microseconds from giving a request to the driver \
         to the answer, percentiles of a round, medians of the rounds; worst: of all rounds. Back \
         to back: one request under way; otherwise each is sent when it is due."
            .to_owned(),
        "The bound: a frame waits for `combine_us` at most, once on each way; a percentile may be \
         so much above that of moderation alone, with which combining shares everything else. \
         more: the median of the differences between two cells of one round and one class, the \
         class with most pairs; p99.9: where a round has 10,000 trips."
            .to_owned(),
        crate::alike::NOTE.to_owned(),
    ];
    notes.extend(raw::techniques(all.iter().map(|c| c.0.technique)));
    Ok(Report {
        title: "Round trips, guest to guest".into(),
        notes,
        tables: PACES[..2].iter().map(|pace| table(all, pace.1)).chain([bounds(all)]).collect(),
        figure: figure(all),
        cells: cells(all.iter().map(|(w, s)| (keys(w), s.clone())))?,
        ratios: Vec::new(),
    })
}

fn table(all: &Results<'_>, pace: &str) -> Table {
    let mut table = Table::new(
        pace,
        &["NIC", "p50 us", "p99 us", "p99.9 us", "worst us", "round trips/s", "lost"],
    );
    for (what, samples) in all.iter().filter(|(w, _)| w.pace.1 == pace) {
        let m = |value: fn(&Trip) -> f64| number(samples.median(value));
        let worst = samples.0.iter().flatten().map(|t| t.max).reduce(f64::max);
        let lost: f64 = samples.0.iter().flatten().map(|t| t.lost).sum();
        table.rows.push(vec![
            what.name.into(),
            m(|t| t.p50),
            m(|t| t.p99),
            number(QUANTILES[2].median(samples)),
            number(worst),
            m(|t| t.trips_per_s),
            format!("{lost:.0}"),
        ]);
    }
    table
}

/// Does send combining keep its bound?
fn bounds(all: &Results<'_>) -> Table {
    let find =
        |name: &str, pace: &str| all.iter().find(|(w, _)| w.name == name && w.pace.1 == pace);
    let heads = ["combine_us, pace", "p50: more", "p99: more", "p99.9: more", "at most", "bound"];
    let mut table = Table::new("Send combining's bound, beside moderation alone", &heads);
    for (bound, name, _) in BOUNDS {
        let most = 2.0 * f64::from(bound);
        for (_, pace) in PACES {
            let both = find("moderated", pace).zip(find(name, pace));
            let Some(((_, base), (_, combined))) = both else { continue };
            let mut row = vec![format!("{bound} us, {pace}")];
            let more = QUANTILES.map(|q| combined.pairs(base, |t| q.of(t), |one, two| one - two));
            let median = |spreads: &Spreads| spreads.most()?.1.median();
            row.extend(more.iter().map(|spreads| signed(median(spreads))));
            let known: Vec<_> = more.iter().filter_map(median).collect();
            let verdict = match (median(&more[0]), known.iter().all(|more| *more <= most)) {
                (None, _) => "too few pairs",
                (_, true) => "holds",
                (_, false) => "missed",
            };
            row.extend([number(Some(most)), verdict.into()]);
            table.rows.push(row);
        }
    }
    table
}

/// A difference: it may be below zero.
fn signed(more: Option<f64>) -> String {
    more.map_or_else(|| "-".into(), |more| format!("{more:+.0}"))
}

/// Of a round trip.
#[derive(Clone, Copy)]
struct Quantile(&'static str, fn(&Trip) -> Option<f64>);

const QUANTILES: [Quantile; 3] = [
    Quantile("p50", |t| Some(t.p50)),
    Quantile("p99", |t| Some(t.p99)),
    Quantile("p99.9", |t| t.p99_9),
];

impl Quantile {
    /// Not a number where it is not known.
    fn of(self, trip: &Trip) -> f64 {
        (self.1)(trip).unwrap_or(f64::NAN)
    }

    fn median(self, samples: &Samples<Trip>) -> Option<f64> {
        middle(samples.0.iter().flatten().filter_map(self.1).collect())
    }
}

fn figure(all: &Results<'_>) -> Figure {
    let panel = |pace: &str| {
        let series = all.iter().filter(|(w, _)| w.pace.1 == pace).map(|(what, samples)| {
            let points = QUANTILES
                .iter()
                .enumerate()
                .filter_map(|(at, q)| Some((to_f64(at as u64), q.median(samples)?)));
            (what.name.to_owned(), points.collect())
        });
        Panel {
            title: pace.into(),
            x: X::Groups(QUANTILES.iter().map(|q| q.0.to_owned()).collect()),
            y: "microseconds".into(),
            log: true,
            series: series.collect(),
        }
    };
    Figure {
        title: "vmlan bench latency: round trips of 60 bytes, guest to guest".into(),
        columns: 2,
        panels: PACES[..2].iter().map(|p| panel(p.1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::technique;

    #[test]
    fn the_bound_of_send_combining_is_checked_against_moderation() {
        let cases = cases(&technique::named(&["moderated", "combined"]).unwrap());
        assert_eq!(cases.len(), 9);
        // What all cells of a round have is not combining's.
        let trip = |w: &Case, round: f64| {
            let own = match w.name {
                "moderated" => 100.0,
                "combined" => 450.0,
                _ => 250.0,
            };
            let p99_9 = (w.pace.0 == "0").then_some(2.0 * own);
            let p50 = own + round;
            Trip { p50, p99: p50, p99_9, max: 999.0, trips_per_s: 1000.0, lost: 1.0 }
        };
        let drift = [0.0, 900.0, 400.0, 100.0, 700.0];
        let samples = |w: &Case, rounds: &[f64]| {
            Samples::near(rounds.iter().map(|round| Some(trip(w, *round))).collect())
        };
        let mut all: Vec<_> = cases.iter().map(|w| (w, samples(w, &drift))).collect();
        let report = report(&all).unwrap();
        let rows: Vec<_> = report.tables[2].rows.iter().map(|row| row.join(" | ")).collect();
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[0], "200 us, 1,000 a second | +350 | +350 | - | 400 | holds");
        assert_eq!(rows[1], "200 us, back to back | +350 | +350 | +700 | 400 | missed");
        assert_eq!(rows[5], "50 us, 10,000 a second | +150 | +150 | - | 100 | missed");
        for (what, samples_of) in &mut all {
            *samples_of = samples(what, &drift[..4]);
        }
        assert_eq!(bounds(&all).rows[0].last().unwrap(), "too few pairs");
        assert_eq!(report.tables[1].rows[1].join(" "), "combined 850 850 900 999 1000 5");
        assert!(report.figure.svg("").unwrap().contains("p99.9"));
    }

    #[test]
    fn a_trip_comes_from_the_summary() {
        let trip = |samples: u64| {
            let latency = json!({
                "samples": samples, "p50_ns": 12_500, "p99_ns": 20_000, "p999_ns": 90_000,
                "max_ns": 100_000,
            });
            let window = crate::native::Window { frames_per_s: 2000.0, ..Default::default() };
            let said = vec![json!({ "latency": latency, "lost": 0 })];
            Trip::of(&Measured { window, said }).unwrap()
        };
        let (many, few) = (trip(10_000), trip(450));
        assert_eq!((many.p99_9, few.p99_9), (Some(90.0), None));
        assert!((many.p50 - 12.5).abs() < 1e-9 && (many.trips_per_s - 1000.0).abs() < 1e-9);
    }
}
