//! Measuring every cell in every round.

use std::time::Duration;

use super::BenchArgs;
use crate::failure::Failure;
use crate::native::{Setup, progress};
use vmlan_config::human_text::si;

/// A bench under way.
pub(super) struct Run<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) setup: Setup,
    /// Length of a measurement.
    pub(super) time: Duration,
    pub(super) rounds: u16,
    /// What could not be measured, and why.
    pub(super) failures: Vec<String>,
}

/// What a measurement is given.
pub(super) struct Cell<'a, C> {
    pub(super) what: &'a C,
    pub(super) setup: &'a Setup,
    pub(super) time: Duration,
    /// Shows frames a second and the time left.
    pub(super) news: &'a mut dyn FnMut(f64, Duration),
}

/// What one cell has shown, round by round; `None` where it failed.
#[derive(Clone, Debug)]
pub(super) struct Samples<F>(pub(super) Vec<Option<F>>);

impl<F> Samples<F> {
    /// The middle of all rounds (of the two middle ones, the mean).
    pub(super) fn median(&self, value: impl Fn(&F) -> f64) -> Option<f64> {
        let mut values: Vec<_> = self.0.iter().flatten().map(value).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
        Some(f64::midpoint(values[low], values[high]))
    }

    /// This over `base`, round by round.
    pub(super) fn ratios(&self, base: &Self, value: impl Fn(&F) -> f64) -> Vec<f64> {
        let pairs = self.0.iter().zip(&base.0);
        pairs.filter_map(|(a, b)| Some(value(a.as_ref()?) / value(b.as_ref()?))).collect()
    }
}

impl Run<'_> {
    /// Measures every cell once a round, every other round backwards. A cell that fails is noted
    /// and does without the figure.
    ///
    /// # Errors
    /// Only Ctrl-C.
    pub(super) fn rounds<C, F>(
        &mut self,
        cells: &[C],
        name: impl Fn(&C) -> String,
        show: impl Fn(&C, &F) -> String,
        mut measure: impl FnMut(Cell<'_, C>) -> Result<F, Failure>,
    ) -> Result<Vec<Samples<F>>, Failure> {
        let mut samples: Vec<_> = cells.iter().map(|_| Samples(Vec::new())).collect();
        let total = cells.len() * usize::from(self.rounds);
        for (done, at) in order(cells.len(), self.rounds).enumerate() {
            let what = &cells[at];
            let label = format!("[{}/{total}] {}", done + 1, name(what));
            progress(&format!("{label}: starting"));
            let mut news = |rate: f64, left: Duration| {
                let left = left.as_secs_f64();
                progress(&format!("{label}: {} frames/s, {left:.0} s to go", si(rate)));
            };
            let cell = Cell { what, setup: &self.setup, time: self.time, news: &mut news };
            let found = measure(cell);
            progress("");
            // Ctrl-C ends the guests as well; that they say so is expected.
            self.setup.stop.check()?;
            match &found {
                Ok(figures) => eprintln!("{label}: {}", show(what, figures)),
                Err(e) => {
                    eprintln!("{label}: no figure: {e}");
                    self.failures.push(format!("{}: {e}", name(what)));
                }
            }
            samples[at].0.push(found.ok());
        }
        // Rounds that ran backwards were pushed in their own order all the same: one value a round
        // for each cell.
        Ok(samples)
    }

    /// An error if something could not be measured.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.failures.first() {
            None => Ok(()),
            Some(first) => {
                let count = self.failures.len();
                Err(Failure::Failed(format!("{count} without a figure, the first: {first}")))
            }
        }
    }
}

/// `0, 1, 2, 2, 1, 0, 0, ...`
fn order(cells: usize, rounds: u16) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| {
        (0..cells).map(move |at| if round % 2 == 0 { at } else { cells - 1 - at })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_round_runs_backwards() {
        assert_eq!(order(3, 3).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0, 0, 1, 2]);
    }

    #[test]
    fn medians_and_ratios_do_without_what_failed() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let base = Samples(vec![Some(1.0), Some(2.0), None]);
        let other = Samples(vec![Some(10.0), None, Some(30.0)]);
        assert!(near(base.median(|x| *x).unwrap(), 1.5));
        assert!(near(Samples(vec![Some(9.0), Some(1.0), Some(5.0)]).median(|x| *x).unwrap(), 5.0));
        assert!(Samples::<f64>(vec![None]).median(|x| *x).is_none());
        let ratios = other.ratios(&base, |x| *x);
        assert!(ratios.len() == 1 && near(ratios[0], 10.0), "{ratios:?}");
    }
}
