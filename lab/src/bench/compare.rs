//! Two runs' ratios side by side: do they say the same?

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use super::ratios::{Line, Origin, Ratio, read};
use crate::alike::ENOUGH;
use crate::failure::Failure;
use crate::output::print;
use vmlan_config::human_text::columns;

const EXAMPLES: &str = "\
Examples:
  git show HEAD~9:docs/results.json > /tmp/old.json
  make bench-compare OLD=/tmp/old.json
  compare-results /tmp/old.json docs/results.json --bench ladder,peers";

/// Says for each ratio of two runs whether their quartile ranges overlap.
///
/// Ratios are compared within their class of core distance, and only where both runs have a median
/// (5 pairs). Exits 1 if ranges lie apart.
#[derive(Debug, Parser)]
#[command(name = "compare-results", version, after_help = EXAMPLES)]
pub struct Args {
    /// Ratios of one run (`vmlan bench NAME --ratios FILE`)
    old: PathBuf,
    /// Ratios of another one
    new: PathBuf,
    /// Only these benches
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    bench: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What two runs say of one ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Agree,
    Apart,
    TooFewPairs,
    OnlyOld,
    OnlyNew,
}

impl Verdict {
    const ALL: [(Self, &str); 5] = [
        (Self::Agree, "agree"),
        (Self::Apart, "APART"),
        (Self::TooFewPairs, "too few pairs"),
        (Self::OnlyOld, "only in the old run"),
        (Self::OnlyNew, "only in the new run"),
    ];

    fn of(old: Option<&Ratio>, new: Option<&Ratio>) -> Self {
        match (old, new) {
            (_, None) => Self::OnlyOld,
            (None, _) => Self::OnlyNew,
            (Some(a), Some(b)) if a.pairs < ENOUGH || b.pairs < ENOUGH => Self::TooFewPairs,
            (Some(a), Some(b)) => {
                let ([_, a1, _, a3, _], [_, b1, _, b3, _]) = (a.ranks, b.ranks);
                if a1 <= b3 && b1 <= a3 { Self::Agree } else { Self::Apart }
            }
        }
    }

    fn words(self) -> &'static str {
        Self::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, words)| words)
    }
}

#[derive(Debug, Serialize)]
struct Row {
    old: Option<Ratio>,
    new: Option<Ratio>,
    verdict: Verdict,
}

/// Prints the comparison; false if ranges lie apart.
///
/// # Errors
/// If a file cannot be read, or has no ratio of the other's.
pub fn run(args: &Args) -> Result<bool, Failure> {
    let mut both = [read(&args.old)?, read(&args.new)?];
    for lines in &mut both {
        lines.retain(|l| args.bench.is_empty() || args.bench.iter().any(|b| b == l.bench()));
    }
    let rows = rows(&both);
    if !rows.iter().any(|row| row.old.is_some() && row.new.is_some()) {
        return Err(Failure::Failed("the two files have no ratio in common".into()));
    }
    print(&if args.json { json(&rows)? } else { text(&both, &rows) })?;
    Ok(rows.iter().all(|row| row.verdict != Verdict::Apart))
}

fn ratios(lines: &[Line]) -> impl Iterator<Item = &Ratio> {
    lines.iter().filter_map(|line| match line {
        Line::Ratio(ratio) => Some(ratio),
        Line::Origin(_) => None,
    })
}

fn rows([old, new]: &[Vec<Line>; 2]) -> Vec<Row> {
    let is = |a: &Ratio, b: &Ratio| (&a.bench, &a.what, &a.class) == (&b.bench, &b.what, &b.class);
    let row = |old: Option<&Ratio>, new: Option<&Ratio>| Row {
        verdict: Verdict::of(old, new),
        old: old.cloned(),
        new: new.cloned(),
    };
    let first = ratios(old).map(|a| row(Some(a), ratios(new).find(|b| is(a, b))));
    let rest = ratios(new).filter(|b| !ratios(old).any(|a| is(a, b)));
    first.chain(rest.map(|b| row(None, Some(b)))).collect()
}

fn json(rows: &[Row]) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(rows).map_err(|e| Failure::Failed(e.to_string()))?;
    Ok(text + "\n")
}

fn text(both: &[Vec<Line>; 2], rows: &[Row]) -> String {
    let heads = ["bench", "ratio", "class", "old", "pairs", "new", "pairs", ""];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for row in rows {
        let Some(either) = row.old.as_ref().or(row.new.as_ref()) else { continue };
        let [old, new] = [&row.old, &row.new].map(|found| {
            let spread = |r: &Ratio| format!("{} [{}, {}]", r.ranks[2], r.ranks[1], r.ranks[3]);
            let pairs = found.as_ref().map_or_else(String::new, |r| r.pairs.to_string());
            [found.as_ref().map_or_else(|| "-".into(), spread), pairs]
        });
        let names = [&either.bench, &either.what, &either.class].map(String::clone);
        lines.push([&names[..], &old, &new, &[row.verdict.words().to_owned()]].concat());
    }
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let counts = Verdict::ALL.map(|(verdict, words)| format!("{words}: {}", count(verdict)));
    format!("{}{}\n{}\n", origins(both), columns(&lines, 3), counts.join(", "))
}

/// When and where each run was, as its first bench has it.
fn origins(both: &[Vec<Line>; 2]) -> String {
    let words = |o: &Origin| format!("{}, {}", o.date, o.machine);
    let one = |(name, lines): (&str, &Vec<Line>)| {
        let mut all = lines.iter().filter_map(|line| match line {
            Line::Origin(origin) => Some(words(origin)),
            Line::Ratio(_) => None,
        });
        format!("{name}: {}\n", all.next().unwrap_or_default())
    };
    ["old", "new"].into_iter().zip(both).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(what: &str, pairs: usize, [low, middle, high]: [f64; 3]) -> Line {
        Line::Ratio(Ratio {
            bench: "ladder".into(),
            what: what.into(),
            class: "near".into(),
            pairs,
            ranks: [low - 1.0, low, middle, high, high + 1.0],
        })
    }

    #[test]
    fn ranges_overlap_or_lie_apart() {
        let old = vec![
            ratio("csb / msi", 9, [2.0, 3.0, 4.0]),
            ratio("mapped / posted", 5, [5.0, 6.0, 7.0]),
            ratio("lazy / msi", 4, [5.0, 6.0, 7.0]),
            ratio("burst / posted", 5, [5.0, 6.0, 7.0]),
        ];
        let new = vec![
            ratio("csb / msi", 9, [4.0, 4.5, 5.0]),
            ratio("mapped / posted", 5, [7.1, 8.0, 9.0]),
            ratio("lazy / msi", 9, [5.0, 6.0, 7.0]),
            ratio("virtio / csb", 9, [0.9, 1.0, 1.1]),
        ];
        let both = [old, new];
        let rows = rows(&both);
        let verdicts: Vec<_> = rows.iter().map(|row| row.verdict.words()).collect();
        let [agree, apart, few, old, new] = Verdict::ALL.map(|(_, words)| words);
        assert_eq!(verdicts, [agree, apart, few, old, new]);
        let text = text(&both, &rows);
        assert!(text.contains("3 [2, 4]") && text.contains("APART: 1, too few pairs: 1"), "{text}");
    }
}
