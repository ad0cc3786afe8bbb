//! Figure 11: the analysis' list of steps, and what is counted of each.

use super::super::report::{Table, number};
use super::accesses::{Load, Measured, Results};

/// The NIC that the list is about.
pub(super) const NIC: &str = "rtl8139";

/// Steps that are accesses of one kind to one register; counting cannot tell them apart.
struct Step {
    /// The analysis' numbers and words.
    words: &'static str,
    register: &'static str,
    is_write: bool,
    /// How often for a frame that comes alone, and in a burst: by the list. Of transmitting in
    /// bursts it says nothing.
    listed: (f64, Option<f64>),
}

const fn step(
    words: &'static str,
    (register, is_write): (&'static str, bool),
    listed: (f64, Option<f64>),
) -> Step {
    Step { words, register, is_write, listed }
}

const READ: bool = false;
const WRITE: bool = true;

const TRANSMIT: [Step; 3] = [
    step("(2) W: fire DMA", ("TSD", WRITE), (1.0, None)),
    step("(4) R: interrupt status", ("ISR", READ), (1.0, None)),
    step("(5) W: ACK (to all tx completions)", ("ISR", WRITE), (1.0, None)),
];

const RECEIVE: [Step; 4] = [
    step("(2) R: interrupt status, (5) and (6b) R: rx interrupt?", ("ISR", READ), (3.0, Some(1.0))),
    step("(3) W: disable, (7) W: enable interrupts", ("IMR", WRITE), (2.0, Some(0.0))),
    step("(6) while (R: not empty?)", ("CR", READ), (1.0, Some(1.0))),
    step("(6b) W: ACK", ("ISR", WRITE), (1.0, Some(1.0))),
];

/// A table for each direction, if there is anything to compare.
pub(super) fn tables(all: &Results<'_>) -> Vec<Table> {
    let both = [("transmit", true, &TRANSMIT[..]), ("receive", false, &RECEIVE[..])];
    both.into_iter().filter_map(|(name, sends, steps)| table(all, name, sends, steps)).collect()
}

fn table(all: &Results<'_>, name: &str, sends: bool, steps: &[Step]) -> Option<Table> {
    let columns = [Load::Sparse, Load::Bursts].map(|load| all.find(NIC, "plain", (sends, load)));
    columns.iter().flatten().next()?;
    let heads = [
        "the analysis' step",
        "access",
        "listed, sparse",
        "counted",
        "listed, in bursts",
        "counted",
    ];
    let mut table = Table::new(format!("The step list, {NIC}, {name}"), &heads).long();
    let row = |words: &str,
               access: String,
               listed: (Option<f64>, Option<f64>),
               value: &dyn Fn(&Measured) -> f64| {
        let counted = columns.map(|samples| number(samples.and_then(|s| s.median(value))));
        let listed = [listed.0, listed.1].map(|n| n.map_or_else(|| "-".into(), |n| n.to_string()));
        let [sparse, bursts] = counted;
        let [few, many] = listed;
        vec![words.to_owned(), access, few, sparse, many, bursts]
    };
    for step in steps {
        let letter = if step.is_write { "w" } else { "r" };
        let access = format!("{} {letter}", step.register);
        let (few, many) = step.listed;
        table.rows.push(row(step.words, access, (Some(few), many), &|s| count(s, step)));
    }
    let few = steps.iter().map(|s| s.listed.0).sum();
    let many = steps.iter().map(|s| s.listed.1).sum();
    let listed = |s: &Measured| steps.iter().map(|step| count(s, step)).sum::<f64>();
    table.rows.push(row("of the list", String::new(), (Some(few), many), &listed));
    let rest = |s: &Measured| total(s) - listed(s);
    table.rows.push(row("not in the list", others(steps, &columns), (None, None), &rest));
    table.rows.push(row("all", String::new(), (None, None), &total));
    Some(table)
}

fn count(seen: &Measured, step: &Step) -> f64 {
    let found = seen.of(|name| name == step.register);
    if step.is_write { found.writes } else { found.reads }
}

fn total(seen: &Measured) -> f64 {
    let all = seen.of(|_| true);
    all.reads + all.writes
}

/// Registers that no step is about, the busiest first.
fn others(steps: &[Step], columns: &[Option<&super::Samples<Measured>>]) -> String {
    let seen = columns.iter().flatten().flat_map(|samples| samples.0.iter().flatten());
    let mut sums: Vec<(String, f64)> = Vec::new();
    for (name, n) in seen.flat_map(|s| &s.registers) {
        let listed = |is_write| steps.iter().any(|s| s.register == name && s.is_write == is_write);
        for (letter, n, is_write) in [("r", n.reads, READ), ("w", n.writes, WRITE)] {
            // What happens once in a while is not a step.
            if n < 0.02 || listed(is_write) {
                continue;
            }
            let name = format!("{name} {letter}");
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += n,
                None => sums.push((name, n)),
            }
        }
    }
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}
