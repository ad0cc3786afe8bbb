//! The file of ratios beside the results: a JSON array with an object a line, of all benches.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::report::Circumstances;
use crate::alike::Spreads;
use crate::failure::Failure;
use vmlan_harness::output_of;

/// An object of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Ratio(Ratio),
    Origin(Origin),
}

/// What over what, of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ratio {
    pub(super) bench: String,
    pub(super) what: String,
    pub(super) class: String,
    pub(super) pairs: usize,
    /// Least, lower quartile, median, upper quartile, most.
    pub(super) ranks: [f64; 5],
}

/// Where a bench's ratios are from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) bench: String,
    pub(super) date: String,
    pub(super) machine: String,
    pub(super) commit: String,
    pub(super) rounds: u16,
    pub(super) seconds: f64,
    pub(super) took_seconds: f64,
    pub(super) missing: Vec<String>,
}

impl Line {
    pub(super) fn bench(&self) -> &str {
        match self {
            Self::Ratio(ratio) => &ratio.bench,
            Self::Origin(origin) => &origin.bench,
        }
    }
}

/// All lines of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    parsed(path, &std::fs::read_to_string(path).map_err(|e| wrong(path, &e))?)
}

fn parsed(path: &Path, text: &str) -> Result<Vec<Line>, Failure> {
    serde_json::from_str(text).map_err(|e| wrong(path, &e))
}

fn wrong(path: &Path, e: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {e}: name a file that bench --ratios wrote", path.display()))
}

/// Replaces what the file has of this bench.
pub(super) fn put(
    path: &Path,
    about: &Circumstances,
    ratios: &[(String, Spreads)],
) -> Result<(), Failure> {
    super::change(path, |old| {
        let mut all = old.map_or(Ok(Vec::new()), |text| parsed(path, text))?;
        all.retain(|line| line.bench() != about.bench);
        all.push(Line::Origin(origin(about)));
        all.extend(lines(about.bench, ratios).map(Line::Ratio));
        text(&all)
    })
}

fn origin(about: &Circumstances) -> Origin {
    Origin {
        bench: about.bench.into(),
        date: output_of("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default().trim().into(),
        machine: about.machine.to_string(),
        commit: about.machine.commit.to_string(),
        rounds: about.rounds,
        seconds: about.seconds,
        took_seconds: about.took.as_secs_f64().round(),
        missing: about.missing.clone(),
    }
}

/// An object for each class.
fn lines<'a>(bench: &'a str, all: &'a [(String, Spreads)]) -> impl Iterator<Item = Ratio> + 'a {
    all.iter().flat_map(move |(what, spreads)| {
        spreads.iter().map(move |(class, spread)| Ratio {
            bench: bench.into(),
            what: what.clone(),
            class: class.name().into(),
            pairs: spread.pairs,
            ranks: spread.ranks.map(short),
        })
    })
}

/// With four digits that matter.
fn short(ratio: f64) -> f64 {
    format!("{ratio:.3e}").parse().unwrap_or(ratio)
}

fn text(all: &[Line]) -> Result<String, Failure> {
    let lines: Result<Vec<_>, _> = all.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(|e| Failure::Failed(e.to_string()))?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alike::Class;

    #[test]
    fn each_class_has_a_line_and_lines_are_read_back() {
        let pairs = [1.23456, 2.0, 3.0].map(|ratio| (Class::Near, ratio));
        let spreads = Spreads::of(&[&pairs[..], &[(Class::Far, 9.0)]].concat());
        let all: Vec<_> = lines("raw", &[("csb / msi".into(), spreads)]).map(Line::Ratio).collect();
        let text = text(&all).unwrap();
        assert!(text.contains(r#""class":"near","pairs":3,"ranks":[1.235,"#), "{text}");
        assert_eq!(serde_json::from_str::<Vec<Line>>(&text).unwrap(), all);
        assert_eq!((all.len(), all[1].bench()), (2, "raw"));
    }
}
