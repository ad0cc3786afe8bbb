//! Measuring every cell in every round.

use std::time::{Duration, Instant};

use super::BenchArgs;
use crate::alike::{self, Class, Spread, Spreads, Surroundings};
use crate::failure::Failure;
use crate::native::{Setup, progress};
use crate::probe::cores::line_ns;
use vmlan_config::human_text::si;

/// The budget is spent.
const TIME: &str = "the time was up";

/// Which cells are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairing {
    /// Those of one round and one class: each stands between two readings of how near the cores
    /// are.
    Cores,
    /// Those of one round.
    Rounds,
    /// None.
    Off,
}

/// A bench under way.
pub(super) struct Run<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) setup: Setup,
    /// Length of a measurement.
    pub(super) time: Duration,
    pub(super) rounds: u16,
    /// What is not measured by then is left out.
    pub(super) ends: Instant,
    pub(super) pairing: Pairing,
    /// What kind of guests was measured.
    pub(super) guests: String,
    /// What could not be measured, and why.
    pub(super) failures: Vec<String>,
}

/// What a measurement is given.
pub(super) struct Cell<'a, C> {
    pub(super) what: &'a C,
    pub(super) setup: &'a Setup,
    pub(super) time: Duration,
    /// The run is a short one.
    pub(super) short: bool,
    /// Shows frames a second and the time left.
    pub(super) news: &'a mut dyn FnMut(f64, Duration),
}

/// What one cell has shown, round by round; `None` where it failed. Beside it, what was about; no
/// ratio is made of what was measured without.
#[derive(Clone, Debug)]
pub(super) struct Samples<F>(pub(super) Vec<Option<F>>, pub(super) Vec<Option<Surroundings>>);

impl<F> Samples<F> {
    /// The middle of all rounds (of the two middle ones, the mean).
    pub(super) fn median(&self, value: impl Fn(&F) -> f64) -> Option<f64> {
        middle(self.0.iter().flatten().map(value).collect())
    }

    /// This over `base`: rounds in which both were measured in one class.
    pub(super) fn ratios(&self, base: &Self, value: impl Fn(&F) -> f64) -> Spreads {
        self.pairs(base, value, |one, two| one / two)
    }

    /// What `join` makes of this and `base`, likewise; what is not finite is left out.
    pub(super) fn pairs(
        &self,
        base: &Self,
        value: impl Fn(&F) -> f64,
        join: impl Fn(f64, f64) -> f64,
    ) -> Spreads {
        let classed = |samples: &Self, round: usize| -> Option<(Class, f64)> {
            let figures = samples.0.get(round)?.as_ref()?;
            Some((samples.1.get(round)?.as_ref()?.class, value(figures)))
        };
        let pairs = (0..self.0.len()).filter_map(|round| {
            let ((class, one), (other, two)) = (classed(self, round)?, classed(base, round)?);
            (class == other).then_some((class, join(one, two)))
        });
        Spreads::of(&pairs.collect::<Vec<_>>())
    }

    /// By class; what is not finite is left out.
    pub(super) fn by_class(&self, value: impl Fn(&F) -> f64) -> Spreads {
        let one = |(figures, about): (&Option<F>, &Option<Surroundings>)| {
            Some((about.as_ref()?.class, value(figures.as_ref()?)))
        };
        Spreads::of(&self.0.iter().zip(&self.1).filter_map(one).collect::<Vec<_>>())
    }

    /// Of one class alone.
    pub(super) fn within(&self, class: Class, value: impl Fn(&F) -> f64) -> Option<Spread> {
        self.by_class(value).get(class).cloned()
    }

    #[cfg(test)]
    pub(super) fn near(figures: Vec<Option<F>>) -> Self {
        let near = |figures: &Option<F>| {
            figures.as_ref().map(|_| Surroundings {
                class: Class::Near,
                line_ns: [14.0; 2],
                cpu_others: 0.0,
                cpu_stolen: 0.0,
            })
        };
        let about = figures.iter().map(near).collect();
        Self(figures, about)
    }
}

/// The middle value, or the mean of the two middle ones.
pub(super) fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some(f64::midpoint(values[low], values[high]))
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
        self.look_at_cores();
        let mut samples: Vec<_> = cells.iter().map(|_| Samples(Vec::new(), Vec::new())).collect();
        let total = cells.len() * usize::from(self.rounds);
        for (done, at) in order(cells.len(), self.rounds).enumerate() {
            if Instant::now() >= self.ends {
                let left = total - done;
                let why = format!("{TIME} before {left} of {total} cells (--budget)");
                eprintln!("{why}");
                self.failures.push(why);
                break;
            }
            let what = &cells[at];
            let label = format!("[{}/{total}] {}", done + 1, name(what));
            progress(&format!("{label}: starting"));
            let mut once = || {
                let mut news = |rate: f64, left: Duration| {
                    let left = left.as_secs_f64();
                    progress(&format!("{label}: {} frames/s, {left:.0} s to go", si(rate)));
                };
                let short = self.args.short;
                let cell =
                    Cell { what, setup: &self.setup, time: self.time, short, news: &mut news };
                measure(cell)
            };
            let read = || line_ns().map_err(Failure::Failed);
            let found = match self.pairing {
                Pairing::Cores => alike::cell(read, once).map(|(f, about)| (f, Some(about))),
                Pairing::Rounds => alike::anywhere(once).map(|(f, about)| (f, Some(about))),
                Pairing::Off => once().map(|figures| (figures, None)),
            };
            progress("");
            // Ctrl-C ends the guests as well; that they say so is expected.
            self.setup.stop.check()?;
            match &found {
                Ok((figures, about)) => {
                    let class = about.as_ref().map_or("", |about| about.class.name());
                    eprintln!("{label}: {} ({class})", show(what, figures));
                }
                Err(e) => {
                    eprintln!("{label}: no figure: {e}");
                    self.failures.push(format!("{}: {e}", name(what)));
                }
            }
            let (figures, about) = found.ok().unzip();
            samples[at].0.push(figures);
            samples[at].1.push(about.flatten());
        }
        // Rounds that ran backwards were pushed in their own order all the same: one value a round
        // for each cell.
        Ok(samples)
    }

    /// Measures in this share of the time that is left; of what it does not need, others have more.
    pub(super) fn within<T>(&mut self, share: f64, measure: impl FnOnce(&mut Self) -> T) -> T {
        let now = Instant::now();
        let part = now + self.ends.saturating_duration_since(now).mul_f64(share);
        let ends = std::mem::replace(&mut self.ends, part);
        let found = measure(self);
        self.ends = ends;
        found
    }

    /// Measures what is compared within a cell, or is counted: how near the cores are is no matter.
    pub(super) fn unpaired<T>(&mut self, measure: impl FnOnce(&mut Self) -> T) -> T {
        let pairing = std::mem::replace(&mut self.pairing, Pairing::Off);
        let found = measure(self);
        self.pairing = pairing;
        found
    }

    /// Notes and says it if nothing can be compared here: figures are measured all the same.
    fn look_at_cores(&mut self) {
        // A busy moment is not the end of all pairs.
        let look = || line_ns().or_else(|_| line_ns()).or_else(|_| line_ns());
        if self.pairing != Pairing::Cores {
            return;
        }
        if let Err(why) = look() {
            self.pairing = Pairing::Off;
            eprintln!("nothing is compared: {why}");
            self.failures.push(format!("no pair of cells can be compared: {why}"));
        }
    }

    /// An error if something could not be measured.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        missing(&self.failures).map_or(Ok(()), |words| Err(Failure::Failed(words)))
    }
}

/// What could not be measured, in a line.
pub(super) fn missing(failures: &[String]) -> Option<String> {
    let (first, count) = (failures.first()?, failures.len());
    let time = failures.iter().find(|why| why.starts_with(TIME) && *why != first);
    let time = time.map_or_else(String::new, |why| format!("; {why}"));
    Some(format!("{count} without a figure, the first: {first}{time}"))
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
        let base = Samples::near(vec![Some(1.0), Some(2.0), None]);
        let other = Samples::near(vec![Some(10.0), None, Some(30.0)]);
        assert!(near(base.median(|x| *x).unwrap(), 1.5));
        assert!(near(middle(vec![9.0, 1.0, 5.0]).unwrap(), 5.0));
        assert!(middle(Vec::new()).is_none());
        assert_eq!(other.ratios(&base, |x| *x).words(), "near: 10.0, 1 pairs");
    }

    #[test]
    fn unlike_cells_have_no_ratio() {
        let base = Samples::near(vec![Some(1.0), Some(2.0), Some(4.0)]);
        let mut other = Samples::near(vec![Some(10.0), Some(20.0), Some(80.0)]);
        other.1[0].as_mut().unwrap().class = Class::Far;
        other.1[1] = None;
        assert_eq!(other.ratios(&base, |x| *x), Spreads::of(&[(Class::Near, 20.0)]));
        assert_eq!(other.within(Class::Far, |x| *x), Spread::of(vec![10.0]));
        let any = alike::anywhere(|| Ok(7.0)).unwrap();
        let any = Samples(vec![Some(any.0)], vec![Some(any.1)]);
        assert_eq!(any.ratios(&any, |x| *x).words(), "any cores: 1.00, 1 pairs");
        assert_eq!(other.by_class(|x| *x).words(), "near: 80.0, 1 pairs; far: 10.0, 1 pairs");
    }
}
