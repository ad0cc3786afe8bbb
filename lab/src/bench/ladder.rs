//! One factor a step: an e1000 from one trip for each access to a block of shared memory, and
//! virtio-net. Each row adds one thing to the row it names.

use serde_json::json;

use super::plot::{Figure, Panel, X};
use super::report::{Report, Table, cells, goal_rows, number};
use super::{Run, Samples, raw};
use crate::alike::{self, Class, Spreads};
use crate::failure::Failure;
use crate::native::pair::Task;
use crate::native::{Lab, Technique, Window};
use vmlan_config::human_text::{si, to_f64};

/// Each adds to the one before it...
pub(crate) const TRUNK: [&str; 8] =
    ["plain", "posted", "burst", "ring-1024", "msi", "msi-unread", "csb", "virtio"];
/// ...and these branch off.
pub(crate) const BRANCHES: [&str; 9] = [
    "mapped",
    "msi-mapped",
    "moderated",
    "combined",
    "combined-0",
    "polling",
    "msi-moderated",
    "lazy",
    "lazy-polling",
];
/// What a stock driver can reach without a block; `doorbell=mapped` asks nothing of it.
const STOCK: [&str; 9] = [
    "posted",
    "burst",
    "ring-1024",
    "msi",
    "msi-unread",
    "mapped",
    "msi-mapped",
    "lazy",
    "lazy-polling",
];

const BYTES: u32 = 60;

const NOTE: &str = "Frames of 60 bytes, `vmlan pkt-gen` tx to rx (raw: no stack, no sockets). Each \
    row adds one thing to the row named under \"adds to\"; the ratio is of frames/s. plain is the \
    paper's setting: every access is a trip that is waited for, one write and one interrupt a \
    frame. posted is the slowest that today's QEMU (11) shows.";

type Results<'a> = [(&'a &'static Technique, Samples<Window>)];

/// Measures and reports.
pub(super) fn run(run: &mut Run<'_>) -> Result<Report, Failure> {
    let usual: Vec<_> = TRUNK.iter().chain(&BRANCHES).copied().collect();
    let techniques = run.args.techniques(&usual)?;
    let samples = run.rounds(
        &techniques,
        |t| t.name.to_owned(),
        |_, window| raw::show(window),
        |cell| {
            let mut lab = Lab::pair(cell.setup, cell.what, "")?;
            let task = Task { bytes: BYTES, ping: false, sender: &[] };
            Ok(lab.pkt_gen(task, cell.time, cell.news)?.window)
        },
    )?;
    report(&techniques.iter().zip(samples).collect::<Vec<_>>())
}

fn report(all: &Results<'_>) -> Result<Report, Failure> {
    let keys = |t: &Technique| json!({ "technique": t.name, "adds_to": t.from });
    let mut notes = vec![NOTE.to_owned(), alike::NOTE.to_owned()];
    notes.extend(raw::techniques(all.iter().map(|c| *c.0)));
    Ok(Report {
        title: "The ladder: one factor a step".into(),
        notes,
        tables: vec![totals(all), steps(all), products(all)],
        figure: figure(all),
        cells: cells(all.iter().map(|(t, s)| (keys(t), s.clone())))?,
        ratios: ratios(all),
    })
}

/// Each step, and the totals that are none.
fn ratios(all: &Results<'_>) -> Vec<(String, Spreads)> {
    let steps = all.iter().filter_map(|(t, _)| Some((t.name, t.from?)));
    let mut pairs: Vec<_> = steps.collect();
    let totals = wanted(all).into_iter().map(|(name, base, _)| (name, base));
    pairs.extend(totals.filter(|total| !pairs.contains(total)).collect::<Vec<_>>());
    let one = |(name, base)| (format!("{name} / {base}"), ratio(all, name, base));
    pairs.into_iter().map(one).collect()
}

fn find<'a>(all: &'a Results<'_>, name: &str) -> Option<&'a Samples<Window>> {
    all.iter().find(|(t, _)| t.name == name).map(|(_, samples)| samples)
}

fn ratio(all: &Results<'_>, name: &str, base: &str) -> Spreads {
    let both = find(all, name).zip(find(all, base));
    both.map(|(one, base)| one.ratios(base, |w| w.frames_per_s)).unwrap_or_default()
}

fn steps(all: &Results<'_>) -> Table {
    let heads = [
        "row",
        "adds to",
        "frames/s",
        "accesses",
        "interrupts",
        "CPU switch, guests",
        "ratio to it",
    ];
    let mut table = Table::new("Steps", &heads);
    for (t, samples) in all {
        let m = |value: fn(&Window) -> f64| number(samples.median(value));
        table.rows.push(vec![
            t.name.into(),
            t.from.unwrap_or("-").into(),
            samples.median(|w| w.frames_per_s).map_or_else(|| "-".into(), si),
            m(|w| w.accesses_per_kframe),
            m(|w| w.interrupts_per_kframe),
            format!("{}, {}", m(|w| w.cpu_switch), m(Window::cpu_of_guests)),
            t.from.map_or_else(|| "-".into(), |from| ratio(all, t.name, from).words()),
        ]);
    }
    table
}

/// The totals and the goals: what over what. The reference for the block is the row that is best
/// without one.
fn wanted(all: &Results<'_>) -> Vec<(&'static str, &'static str, Option<f64>)> {
    let rate = |name: &str| find(all, name).and_then(|s| s.median(|w| w.frames_per_s));
    let stock = STOCK.into_iter().filter(|name| rate(name).is_some());
    let best = stock.max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)));
    let mut wanted = vec![
        ("csb", "posted", None),
        ("csb", "plain", None),
        ("mapped", "posted", Some(4.0)),
        ("combined", "moderated", Some(3.0)),
    ];
    wanted.extend(best.map(|best| ("csb", best, Some(3.0))));
    wanted
}

fn totals(all: &Results<'_>) -> Table {
    let mut table = Table::new(
        "Totals: against today's QEMU (posted), against the paper's setting (plain), and the goals",
        &["rows, class", "ratio", "pairs", "goal"],
    );
    for (name, base, goal) in wanted(all) {
        let (what, ratios) = (format!("{name} / {base}"), ratio(all, name, base));
        table.rows.extend(goal_rows(&ratios, &what, |_| goal));
    }
    table
}

/// Steps multiplied, beside the total.
fn products(all: &Results<'_>) -> Table {
    let heads = ["class", "product of the steps' medians", "csb / plain", "within its quartiles"];
    let mut table = Table::new("Do the steps make the total? plain to csb", &heads);
    for class in Class::ALL {
        let Some((product, total)) = product(all, class) else { continue };
        let [_, lower, _, upper, _] = total.ranks;
        let within = if (lower..=upper).contains(&product) { "yes" } else { "no" };
        table.rows.push(vec![
            class.name().into(),
            number(Some(product)),
            total.words(),
            within.into(),
        ]);
    }
    table
}

/// From plain to CSB.
fn product(all: &Results<'_>, class: Class) -> Option<(f64, alike::Spread)> {
    let steps = TRUNK[..7].windows(2).map(|pair| {
        let [base, name] = pair else { return None };
        ratio(all, name, base).get(class)?.median()
    });
    let product = steps.collect::<Option<Vec<_>>>()?.into_iter().product();
    Some((product, ratio(all, TRUNK[6], TRUNK[0]).get(class)?.clone()))
}

fn figure(all: &Results<'_>) -> Figure {
    let names = all.iter().map(|(t, _)| t.name.to_owned()).collect();
    let panel = |class: Class| {
        let points = all.iter().enumerate().filter_map(|(n, (_, samples))| {
            let rate = samples.within(class, |w| w.frames_per_s)?;
            Some((to_f64(n as u64), rate.ranks[2]))
        });
        (class.name().to_owned(), points.collect::<Vec<_>>())
    };
    let series = Class::ALL.map(panel).into_iter().filter(|(_, points)| !points.is_empty());
    Figure {
        title: "vmlan bench ladder: 60-byte frames, one factor a step".into(),
        columns: 1,
        panels: vec![Panel {
            title: "frames a second by class of the two cores".into(),
            x: X::Groups(names),
            y: "frames/s".into(),
            log: true,
            series: series.collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::technique;

    /// Rows that are each twice as fast as the one they add to, on a machine whose speed drifts.
    fn simulated() -> Vec<(&'static Technique, Samples<Window>)> {
        let names: Vec<_> = TRUNK.iter().chain(&BRANCHES).copied().collect();
        let all = technique::named(&names).unwrap();
        let steps = |mut name: &'static str| {
            let mut steps = 0;
            while let Some(from) = technique::one(name).unwrap().from {
                (name, steps) = (from, steps + 1);
            }
            steps
        };
        let samples = |t: &Technique| {
            let rounds = [1.0, 1.5, 0.5, 1.2, 0.9].map(|drift| {
                let frames_per_s = 1e4 * drift * f64::from(1 << steps(t.name));
                Some(Window { frames_per_s, ..Window::default() })
            });
            Samples::near(rounds.into())
        };
        all.into_iter().map(|t| (t, samples(t))).collect()
    }

    #[test]
    fn the_product_of_the_steps_is_the_total() {
        let rows = simulated();
        let all: Vec<_> = rows.iter().map(|(t, s)| (t, s.clone())).collect();
        let (product, total) = product(&all, Class::Near).unwrap();
        assert!(
            (product - 64.0).abs() < 1e-9 && total.ranks.iter().all(|r| (r - 64.0).abs() < 1e-9)
        );
        assert_eq!(products(&all).rows, [["near", "64.0", "64.0 [64.0, 64.0]", "yes"]]);
        assert!(super::product(&all, Class::Far).is_none(), "nothing was measured there");
        let report = report(&all).unwrap();
        let rows: Vec<_> = report.tables[0].rows.iter().map(|r| r.join(" | ")).collect();
        assert_eq!(rows[0], "csb / posted, near | 32.0 [32.0, 32.0] | 5 | -");
        assert_eq!(rows[1], "csb / posted, same complex | not met on this machine | 0 | -");
        assert_eq!(rows[6], "mapped / posted, near | 2.00 [2.00, 2.00] | 5 | 4: missed");
        // The best without a block is the row with most steps; pairs with it, not medians.
        assert_eq!(rows[12], "csb / lazy-polling, near | 1.00 [1.00, 1.00] | 5 | 3: missed");
        assert!(report.ratios.iter().any(|(what, _)| what == "csb / lazy-polling"));
        assert_eq!(report.ratios.iter().filter(|(what, _)| what == "mapped / posted").count(), 1);
        assert!(report.figure.svg("").unwrap().contains("near"));
    }

    #[test]
    fn a_row_in_another_class_breaks_the_product_and_no_ratio_is_made() {
        let mut rows = simulated();
        for about in rows[3].1.1.iter_mut().flatten() {
            about.class = Class::Far;
        }
        let all: Vec<_> = rows.iter().map(|(t, s)| (t, s.clone())).collect();
        assert!(products(&all).rows.is_empty());
        assert_eq!(steps(&all).rows[3].last().unwrap(), "-");
    }

    #[test]
    fn a_product_among_the_extremes_alone_is_not_the_total() {
        let mut rows = simulated();
        // In each round but the last another step is twice what it mostly is.
        for (step, name) in TRUNK[1..7].iter().enumerate() {
            let (_, samples) = rows.iter_mut().find(|(t, _)| t.name == *name).unwrap();
            let twice = samples.0.iter_mut().enumerate().filter(|(round, _)| *round < step.min(4));
            twice.flat_map(|(_, window)| window).for_each(|w| w.frames_per_s *= 2.0);
        }
        let all: Vec<_> = rows.iter().map(|(t, s)| (t, s.clone())).collect();
        assert_eq!(products(&all).rows, [["near", "64.0", "128 [128, 128]", "no"]]);
        assert!(product(&all, Class::Near).unwrap().1.ranks[0] < 64.1);
    }

    #[test]
    fn the_best_without_a_block_may_have_all_else_that_the_block_has() {
        let [csb, mapped] = ["csb", "msi-mapped"].map(|name| technique::one(name).unwrap());
        for (with, without) in [(csb.switch, mapped.switch), (csb.guest, mapped.guest)] {
            assert_eq!(with.replace("csb=on", "doorbell=mapped"), without);
        }
        let mut rows = simulated();
        let (_, samples) = rows.iter_mut().find(|(t, _)| t.name == "msi-mapped").unwrap();
        samples.0.iter_mut().flatten().for_each(|w| w.frames_per_s *= 2.0);
        let all: Vec<_> = rows.iter().map(|(t, s)| (t, s.clone())).collect();
        let goal = totals(&all).rows[12].join(" | ");
        assert_eq!(goal, "csb / msi-mapped, near | 0.50 [0.50, 0.50] | 5 | 3: missed");
    }

    #[test]
    fn the_trunk_is_one() {
        for pair in TRUNK.windows(2) {
            assert_eq!(technique::one(pair[1]).unwrap().from, Some(pair[0]));
        }
    }
}
