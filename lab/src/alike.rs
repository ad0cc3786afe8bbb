//! Pairs that can be compared.
//!
//! The cores of a virtual machine wander: now they share a core's caches, now a complex of cores,
//! now nothing, and a frame's cost changes with that by more than with anything that is compared.
//! So each short cell stands between two readings of how long a cache line takes from one core to
//! the other. A cell whose readings are not of one [`Class`] is thrown away and measured again, and
//! ratios are of cells of one class only.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use vmlan_harness::usage::{family_time, machine_busy, machine_stolen};

use crate::failure::Failure;

/// How near two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    /// Two threads of one core.
    Near,
    /// Two cores with a cache in common.
    SameComplex,
    /// Nothing in common.
    Far,
    /// Nobody knows which cores it ran on.
    Any,
}

impl Class {
    /// That are told by a reading.
    pub(crate) const ALL: [Self; 3] = [Self::Near, Self::SameComplex, Self::Far];

    /// Of cores between which a line takes so many nanoseconds.
    pub(crate) fn of(line_ns: f64) -> Self {
        match line_ns {
            ns if ns <= 20.0 => Self::Near,
            ns if ns <= 60.0 => Self::SameComplex,
            _ => Self::Far,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::SameComplex => "same complex",
            Self::Far => "far",
            Self::Any => "any cores",
        }
    }
}

/// What the classes are, below tables.
pub(crate) const NOTE: &str = "Pairs: each cell stands between two readings of how long a cache \
    line takes from one of its two cores to the other: near (20 ns or less), same complex (60 ns \
    or less), far. A cell with readings of two classes is thrown away and repeated. Ratios are of \
    two cells of one round and of one class: the median, the quartiles in brackets, and the number \
    of pairs; below 5 pairs there is no median, and the least and the most are given.";

/// The same where cells are of any two cores.
pub(crate) const ANY_NOTE: &str = "Ratios are of two cells of one round, wherever the kernel ran \
    them (any cores): this machine has more than two cores, and which of them the guests are on is \
    not known. The median, the quartiles in brackets, and the number of pairs; below 5 pairs there \
    is no median, and the least and the most are given.";

/// What was about while a cell was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Surroundings {
    pub(crate) class: Class,
    /// Before and after, in nanoseconds; 0 of any cores.
    pub(crate) line_ns: [f64; 2],
    /// CPU time of everybody else, in cores.
    pub(crate) cpu_others: f64,
    /// CPU time that the hypervisor gave to others, in cores.
    pub(crate) cpu_stolen: f64,
}

/// Attempts at a cell.
pub(crate) const ATTEMPTS: u32 = 5;

/// Measures until the readings before and after are of one class, [`ATTEMPTS`] times at most.
///
/// # Errors
/// Those of `read` and of `measure`, and if no attempt had two readings of one class.
pub(crate) fn cell<F>(
    mut read: impl FnMut() -> Result<f64, Failure>,
    mut measure: impl FnMut() -> Result<F, Failure>,
) -> Result<(F, Surroundings), Failure> {
    let mut before = read()?;
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let clock = Clock::start();
        let figures = measure()?;
        let (cpu_others, cpu_stolen) = clock.stop();
        let after = read()?;
        let class = Class::of(before);
        if class == Class::of(after) {
            let line_ns = [before, after];
            return Ok((figures, Surroundings { class, line_ns, cpu_others, cpu_stolen }));
        }
        seen.push(format!("{before:.0} to {after:.0}"));
        before = after;
    }
    let seen = seen.join(", ");
    Err(Failure::Failed(format!(
        "the two cores did not stay as near as they were in {ATTEMPTS} attempts (a cache line took \
         {seen} ns)"
    )))
}

/// Measures once, on any cores.
///
/// # Errors
/// Those of `measure`.
pub(crate) fn anywhere<F>(
    measure: impl FnOnce() -> Result<F, Failure>,
) -> Result<(F, Surroundings), Failure> {
    let clock = Clock::start();
    let figures = measure()?;
    let (cpu_others, cpu_stolen) = clock.stop();
    let (class, line_ns) = (Class::Any, [0.0; 2]);
    Ok((figures, Surroundings { class, line_ns, cpu_others, cpu_stolen }))
}

/// CPU time of the whole machine, and of this program and what it has started.
struct Clock {
    start: Instant,
    busy: f64,
    stolen: f64,
    ours: f64,
}

impl Clock {
    fn start() -> Self {
        // Where /proc does not tell, nobody else was about.
        let seconds = |time: vmlan_harness::Result<std::time::Duration>| {
            time.map_or(0.0, |time| time.as_secs_f64())
        };
        Self {
            start: Instant::now(),
            busy: seconds(machine_busy()),
            stolen: seconds(machine_stolen()),
            ours: seconds(family_time()),
        }
    }

    /// Others' and stolen, in cores.
    fn stop(self) -> (f64, f64) {
        let (now, seconds) = (Self::start(), self.start.elapsed().as_secs_f64().max(1e-6));
        let others = (now.busy - self.busy) - (now.ours - self.ours);
        ((others / seconds).max(0.0), ((now.stolen - self.stolen) / seconds).max(0.0))
    }
}

/// Ratios of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) pairs: usize,
    /// Least, lower quartile, median, upper quartile, most.
    pub(crate) ranks: [f64; 5],
}

/// Fewer pairs have no median.
pub(crate) const ENOUGH: usize = 5;

impl Spread {
    pub(crate) fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.retain(|ratio| ratio.is_finite());
        ratios.sort_by(f64::total_cmp);
        let ranks = [0, 1, 2, 3, 4].map(|n| quantile(&ratios, n));
        let [Some(a), Some(b), Some(c), Some(d), Some(e)] = ranks else { return None };
        Some(Self { pairs: ratios.len(), ranks: [a, b, c, d, e] })
    }

    /// If there are enough pairs for one.
    pub(crate) fn median(&self) -> Option<f64> {
        (self.pairs >= ENOUGH).then_some(self.ranks[2])
    }

    /// `2.01 [1.95, 2.10]`, or `1.8 to 2.2` of too few pairs.
    pub(crate) fn words(&self) -> String {
        let [least, low, _, high, most] = self.ranks.map(short);
        match self.median() {
            Some(median) => format!("{} [{low}, {high}]", short(median)),
            None if self.pairs == 1 => least,
            None => format!("{least} to {most}"),
        }
    }
}

/// The `n`th quartile of sorted values, between two of them where it falls there.
fn quantile(sorted: &[f64], n: usize) -> Option<f64> {
    let place = sorted.len().checked_sub(1)? * n;
    let (at, rest) = (place / 4, place % 4);
    let (low, high) = (*sorted.get(at)?, sorted.get(at + 1).copied());
    let part = [0.0, 0.25, 0.5, 0.75].get(rest).copied().unwrap_or(0.0);
    Some(high.map_or(low, |high| low + (high - low) * part))
}

fn short(ratio: f64) -> String {
    match ratio {
        x if x >= 99.95 => format!("{x:.0}"),
        x if x >= 9.995 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// Ratios by class.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spreads(Vec<(Class, Spread)>);

impl Spreads {
    /// Of pairs that were measured in these classes.
    pub(crate) fn of(pairs: &[(Class, f64)]) -> Self {
        let one = |class| {
            let mine = pairs.iter().filter(|(other, _)| *other == class);
            Some((class, Spread::of(mine.map(|(_, ratio)| *ratio).collect())?))
        };
        Self(Class::ALL.into_iter().chain([Class::Any]).filter_map(one).collect())
    }

    pub(crate) fn get(&self, class: Class) -> Option<&Spread> {
        self.0.iter().find(|(other, _)| *other == class).map(|(_, spread)| spread)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Class, Spread)> {
        self.0.iter()
    }

    /// All classes that were met in one cell of a table; `-` for none.
    pub(crate) fn words(&self) -> String {
        let one = |(class, s): &(Class, Spread)| {
            format!("{}: {}, {} pairs", class.name(), s.words(), s.pairs)
        };
        let all: Vec<_> = self.0.iter().map(one).collect();
        if all.is_empty() { "-".into() } else { all.join("; ") }
    }

    /// Behind a figure in a table: ` (4.00 [4.00, 4.00]x near, 5 pairs; 2.00x far, 1 pairs)`, or
    /// nothing.
    pub(crate) fn times(&self) -> String {
        let one = |(class, s): &(Class, Spread)| {
            format!("{}x {}, {} pairs", s.words(), class.name(), s.pairs)
        };
        let all: Vec<_> = self.0.iter().map(one).collect();
        if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
    }

    /// Class, ratio and pairs: for a row each, also for the classes that were not met.
    pub(crate) fn rows(&self) -> impl Iterator<Item = [String; 3]> + '_ {
        Class::ALL.into_iter().map(|class| {
            let (words, pairs) = match self.get(class) {
                Some(spread) => (spread.words(), spread.pairs.to_string()),
                None => ("not met on this machine".into(), "0".into()),
            };
            [class.name().into(), words, pairs]
        })
    }

    /// Of the class with most pairs.
    pub(crate) fn most(&self) -> Option<(Class, &Spread)> {
        self.0.iter().max_by_key(|(_, spread)| spread.pairs).map(|(class, spread)| (*class, spread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings one after the other.
    fn gauge(readings: &[f64]) -> impl FnMut() -> Result<f64, Failure> + '_ {
        let mut all = readings.iter().copied();
        move || all.next().ok_or_else(|| Failure::Failed("too many readings".into()))
    }

    #[test]
    fn a_cell_between_two_classes_is_repeated() {
        let mut cells = 0;
        let measure = || {
            cells += 1;
            Ok(cells)
        };
        let (figures, about) = cell(gauge(&[13.7, 31.0, 155.0, 150.0]), measure).unwrap();
        assert_eq!((figures, about.class, about.line_ns), (3, Class::Far, [155.0, 150.0]));
        let (figures, about) = cell(gauge(&[20.0, 14.0]), || Ok(7)).unwrap();
        assert_eq!((figures, about.class), (7, Class::Near));
    }

    #[test]
    fn classes_that_never_repeat_are_given_up() {
        let wander: Vec<f64> = [14.0, 31.0].repeat(9);
        let Err(Failure::Failed(why)) = cell(gauge(&wander), || Ok(())) else { panic!("a cell") };
        assert!(why.contains("14 to 31, 31 to 14") && why.contains("5 attempts"), "{why}");
        let gone = || Err(Failure::Failed("one core".into()));
        assert_eq!(cell(gone, || Ok(())), Err(Failure::Failed("one core".into())));
    }

    #[test]
    fn ratios_stay_within_their_class() {
        let mut pairs: Vec<_> = [1.0, 2.0, 3.0, 4.0, 5.0].map(|r| (Class::Near, r)).into();
        pairs.extend([(Class::Far, 10.0), (Class::Far, 30.0), (Class::Near, f64::INFINITY)]);
        let spreads = Spreads::of(&pairs);
        let rows: Vec<_> = spreads.rows().map(|row| row.join(" | ")).collect();
        assert_eq!(
            rows,
            [
                "near | 3.00 [2.00, 4.00] | 5",
                "same complex | not met on this machine | 0",
                "far | 10.0 to 30.0 | 2"
            ]
        );
        assert_eq!(spreads.most().unwrap().0, Class::Near);
        assert_eq!(spreads.get(Class::Far).unwrap().median(), None, "two pairs have no median");
        let times = " (3.00 [2.00, 4.00]x near, 5 pairs; 10.0 to 30.0x far, 2 pairs)";
        assert_eq!([spreads.times(), Spreads::default().times()], [times, ""]);
        assert_eq!(Spreads::default().words(), "-");
    }

    #[test]
    fn classes_are_told_by_how_long_a_line_takes() {
        let of = [1.0, 20.0, 20.1, 60.0, 60.1].map(Class::of);
        let [near, complex, far] = Class::ALL;
        assert_eq!(of, [near, near, complex, complex, far]);
    }
}
