//! Benches in parts, that can be asked for one by one.

use serde_json::Value;

use super::Run;
use super::plot::Panel;
use super::report::{Report, Table};
use crate::alike::Spreads;
use crate::failure::Failure;

/// What a part has found.
#[derive(Default)]
pub(super) struct Part {
    pub(super) notes: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) panels: Vec<Panel>,
    /// An array.
    pub(super) cells: Value,
    /// What over what.
    pub(super) ratios: Vec<(String, Spreads)>,
}

impl Part {
    /// Adds it to the report of the whole; its cells say where they are from.
    pub(super) fn join(self, report: &mut Report, name: &str) {
        report.notes.extend(self.notes);
        report.tables.extend(self.tables);
        report.figure.panels.extend(self.panels);
        report.ratios.extend(self.ratios);
        let found = self.cells.as_array().cloned().unwrap_or_default();
        if let Value::Array(cells) = &mut report.cells {
            cells.extend(found.into_iter().map(|cell| named(cell, name)));
        }
    }
}

/// Measures these and joins what they find; `(name, weight, how)`: each has a share of the time by
/// its weight. One that fails is noted, and the others go on.
pub(super) fn all<M: Copy>(
    run: &mut Run<'_>,
    parts: &[(&'static str, u32, M)],
    report: &mut Report,
    measure: impl Fn(&mut Run<'_>, M) -> Result<Part, Failure>,
) -> Result<(), Failure> {
    for (n, (name, weight, how)) in parts.iter().enumerate() {
        eprintln!("{name}:");
        let left: u32 = parts.iter().skip(n).map(|part| part.1).sum();
        let share = f64::from(*weight) / f64::from(left.max(1));
        match run.within(share, |run| measure(run, *how)) {
            Ok(part) => part.join(report, name),
            Err(Failure::Failed(why)) if run.setup.stop.check().is_ok() => {
                run.failures.push(format!("{name}: {why}"));
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn named(mut cell: Value, part: &str) -> Value {
    cell["part"] = part.into();
    cell
}

/// All parts, or those that were asked for.
pub(super) fn wanted<M: Copy>(
    parts: &[(&'static str, u32, M)],
    asked: &[String],
) -> Result<Vec<(&'static str, u32, M)>, Failure> {
    if let Some(odd) = asked.iter().find(|a| !parts.iter().any(|part| part.0 == *a)) {
        let all: Vec<_> = parts.iter().map(|part| part.0).collect();
        let text = format!("--part {odd}: there are {}", all.join(", "));
        return Err(Failure::Usage(text));
    }
    let is_wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    Ok(parts.iter().filter(|part| is_wanted(part.0)).copied().collect())
}
