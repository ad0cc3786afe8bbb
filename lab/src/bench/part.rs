//! Benches in parts, that can be asked for one by one.

use serde_json::Value;

use super::plot::Panel;
use super::report::{Report, Table};
use crate::failure::Failure;

/// What a part has found.
#[derive(Default)]
pub(super) struct Part {
    pub(super) notes: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) panels: Vec<Panel>,
    /// An array.
    pub(super) cells: Value,
}

impl Part {
    /// Adds it to the report of the whole; its cells say where they are from.
    pub(super) fn join(self, report: &mut Report, name: &str) {
        report.notes.extend(self.notes);
        report.tables.extend(self.tables);
        report.figure.panels.extend(self.panels);
        let found = self.cells.as_array().cloned().unwrap_or_default();
        if let Value::Array(cells) = &mut report.cells {
            cells.extend(found.into_iter().map(|cell| named(cell, name)));
        }
    }
}

fn named(mut cell: Value, part: &str) -> Value {
    cell["part"] = part.into();
    cell
}

/// All parts, or those that were asked for.
pub(super) fn wanted<M: Copy>(
    parts: &[(&'static str, M)],
    asked: &[String],
) -> Result<Vec<(&'static str, M)>, Failure> {
    if let Some(odd) = asked.iter().find(|a| !parts.iter().any(|(name, _)| name == a)) {
        let all: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
        let text = format!("--part {odd}: there are {}", all.join(", "));
        return Err(Failure::Usage(text));
    }
    let is_wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    Ok(parts.iter().filter(|(name, _)| is_wanted(name)).copied().collect())
}
