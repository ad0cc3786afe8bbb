//! What a bench has found, for people, for programs and for docs/results.md.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::plot::Figure;
use super::rounds::{Samples, missing};
use crate::alike::{Class, ENOUGH, Spread, Spreads};
use crate::failure::Failure;
use crate::native::{Cores, Machine};
use vmlan_config::human_text::columns;

/// What has been found.
pub(super) struct Report {
    /// In a line.
    pub(super) title: String,
    /// How it was measured, and what the words mean: a paragraph each.
    pub(super) notes: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) figure: Figure,
    /// Every cell of every round.
    pub(super) cells: serde_json::Value,
    /// What over what, for [`super::compare`].
    pub(super) ratios: Vec<(String, Spreads)>,
}

/// Rows of words; the first column names them.
#[derive(Default)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// For whoever looks closer: it stands apart from those that say what matters.
    pub(super) is_long: bool,
}

/// Where, when and how.
pub(super) struct Circumstances {
    pub(super) bench: &'static str,
    /// Native, or Linux and how it ran.
    pub(super) guests: String,
    pub(super) machine: Machine,
    pub(super) cores: Cores,
    pub(super) seconds: f64,
    pub(super) rounds: u16,
    pub(super) took: Duration,
    /// Seconds that it might have taken.
    pub(super) budget: u16,
    /// What could not be measured.
    pub(super) missing: Vec<String>,
}

impl Circumstances {
    fn sentence(&self) -> String {
        let figures = if usize::from(self.rounds) < ENOUGH {
            "too few for medians: the middle one of"
        } else {
            "medians of"
        };
        format!(
            "{}, {}; {figures} {} round(s) of {} s; took {:.0} of {} s",
            self.guests,
            self.cores,
            self.rounds,
            self.seconds,
            self.took.as_secs_f64(),
            self.budget
        )
    }

    /// A paragraph, or nothing.
    fn missing(&self) -> String {
        missing(&self.missing).map_or_else(String::new, |words| format!("\nMissing: {words}.\n"))
    }
}

impl Table {
    pub(super) fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        let heads = heads.iter().map(|&h| h.to_owned()).collect();
        Self { title: title.into(), heads, ..Self::default() }
    }

    pub(super) fn long(self) -> Self {
        Self { is_long: true, ..self }
    }

    fn text(&self) -> String {
        let lines: Vec<_> = [&self.heads].into_iter().chain(&self.rows).cloned().collect();
        format!("{}\n{}", self.title, columns(&lines, 1))
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = self.heads.iter().enumerate();
        let rule: Vec<_> = rule.map(|(n, _)| if n == 0 { "---" } else { "---:" }.into()).collect();
        let mut text = format!("{}\n\n{}{}", self.title, line(&self.heads), line(&rule));
        self.rows.iter().for_each(|row| text += &line(row));
        text
    }
}

impl Report {
    /// For a terminal.
    pub(super) fn text(&self, about: &Circumstances) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.title, about.machine, about.sentence());
        for table in &self.tables {
            text += &format!("\n{}", table.text());
        }
        text.push('\n');
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        text
    }

    /// A section of a Markdown file.
    pub(super) fn markdown(&self, about: &Circumstances, picture: Option<&str>) -> String {
        let mut text = format!(
            "## {}\n\n`vmlan bench {}`: {}. {}.\n",
            self.title,
            about.bench,
            about.sentence(),
            about.machine
        );
        text += &about.missing();
        for table in self.tables.iter().filter(|table| !table.is_long) {
            text += &format!("\n{}", table.markdown());
        }
        for (n, note) in self.notes.iter().enumerate() {
            // The items of a list stand together.
            let item = |n: usize| self.notes.get(n).is_some_and(|note| note.starts_with("- "));
            let gap = if n > 0 && item(n) && item(n - 1) { "" } else { "\n" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{gap}{note}");
        }
        if let Some(path) = picture {
            let _ = write!(text, "\n![{}]({path})\n", self.title);
        }
        text
    }

    /// The section with the other tables, if there are any.
    pub(super) fn long_tables(&self, about: &Circumstances) -> Option<String> {
        let mut long = self.tables.iter().filter(|table| table.is_long).peekable();
        long.peek()?;
        let head = format!("## {}: long tables\n\nCommit {}.\n", self.title, about.machine.commit);
        Some(long.fold(head, |text, table| format!("{text}\n{}", table.markdown())))
    }

    /// All of it.
    pub(super) fn json(&self, about: &Circumstances) -> Result<String, Failure> {
        let all = serde_json::json!({
            "bench": about.bench,
            "guest": about.guests,
            "machine": about.machine,
            "commit": about.machine.commit,
            "cores": about.cores.to_string(),
            "seconds": about.seconds,
            "rounds": about.rounds,
            "took_seconds": about.took.as_secs_f64(),
            "missing": about.missing,
            "cells": self.cells,
        });
        serde_json::to_string_pretty(&all)
            .map(|text| text + "\n")
            .map_err(|e| Failure::Failed(e.to_string()))
    }
}

/// `keys` and the figures of each round: one object for each measurement that there is.
pub(super) fn cells<F: Serialize>(
    named: impl IntoIterator<Item = (serde_json::Value, Samples<F>)>,
) -> Result<serde_json::Value, Failure> {
    let mut all = Vec::new();
    for (keys, samples) in named {
        for (round, figures) in samples.0.iter().enumerate() {
            let value = |v: serde_json::Result<serde_json::Value>| {
                v.map_err(|e| Failure::Failed(e.to_string()))
            };
            let mut cell = keys.clone();
            cell["round"] = (round + 1).into();
            cell["figures"] = value(serde_json::to_value(figures))?;
            cell["about"] = value(serde_json::to_value(samples.1.get(round)))?;
            all.push(cell);
        }
    }
    Ok(all.into())
}

/// A figure with three digits that matter; `-` where there is none.
pub(super) fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(x) if x >= 99.95 => format!("{x:.0}"),
        Some(x) if x >= 9.995 => format!("{x:.1}"),
        Some(x) if x >= 0.01 || x == 0.0 => format!("{x:.2}"),
        Some(x) => format!("{x:.4}"),
    }
}

/// A row for each class: what, ratio, pairs, and whether the median meets the goal if there is one.
pub(super) fn goal_rows<'a>(
    ratios: &'a Spreads,
    what: &'a str,
    goal: impl Fn(Class) -> Option<f64> + 'a,
) -> impl Iterator<Item = Vec<String>> + 'a {
    ratios.rows().zip(Class::ALL).map(move |([class, words, pairs], of)| {
        let verdict = |goal| match ratios.get(of).map(Spread::median) {
            None => "-",
            Some(None) => "too few pairs",
            Some(Some(median)) if median >= goal => "met",
            Some(Some(_)) => "missed",
        };
        let goal = goal(of).map_or_else(|| "-".into(), |goal| format!("{goal}: {}", verdict(goal)));
        vec![format!("{what}, {class}"), words, pairs, goal]
    })
}
