//! What has been measured: nanoseconds, often.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::alike::Class;

/// More samples than that say nothing new.
const MOST: usize = 1_000_000;

/// One thing, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    /// For programs: the same in each run.
    pub(super) name: String,
    /// For people.
    pub(super) what: String,
    pub(super) median_ns: f64,
    /// The 99th percentile: of batches, where one alone is too short for the clock.
    pub(super) p99_ns: f64,
    /// How often it was measured.
    pub(super) times: u64,
    /// How many of these each sample is the mean of.
    pub(super) batch: u64,
    /// How near the two cores were, where that was read before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) class: Option<Class>,
}

impl Figure {
    /// A guest was in it.
    pub(super) fn is_of_kvm(&self) -> bool {
        self.name.starts_with("exit-") || self.name.starts_with("interrupt-")
    }
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Missing {
    pub(super) what: String,
    pub(super) why: String,
}

/// What a part of the probe has to say.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) figures: Vec<Figure>,
    pub(super) missing: Vec<Missing>,
}

impl Found {
    pub(super) fn miss(&mut self, what: &str, why: impl ToString) {
        self.missing.push(Missing { what: what.into(), why: why.to_string() });
    }

    /// The samples' figure, or that there is none.
    pub(super) fn add(&mut self, name: &str, what: &str, samples: Samples) {
        match samples.figure(name, what) {
            Some(figure) => self.figures.push(figure),
            None => self.miss(what, "there was no time for a single one"),
        }
    }

    /// As [`Self::add`], of cores that were so near all the time.
    pub(super) fn add_in(&mut self, class: Class, name: &str, what: &str, samples: Samples) {
        let before = self.figures.len();
        self.add(name, &format!("{what} ({})", class.name()), samples);
        self.figures.iter_mut().skip(before).for_each(|figure| figure.class = Some(class));
    }

    pub(super) fn append(&mut self, mut more: Self) {
        self.figures.append(&mut more.figures);
        self.missing.append(&mut more.missing);
    }

    /// The median of the figure of this name.
    pub(super) fn median(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.name == name).map(|f| f.median_ns)
    }
}

/// Times that something took.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// Nanoseconds of one.
    ns: Vec<f64>,
    batch: u32,
}

impl Samples {
    /// Each sample is of `batch` in a row.
    pub(super) fn new(batch: u32) -> Self {
        Self { ns: Vec::new(), batch: batch.max(1) }
    }

    /// Takes samples, each of one call, for `time`; one at least.
    pub(super) fn take(batch: u32, time: Duration, mut once: impl FnMut()) -> Self {
        let (mut samples, end) = (Self::new(batch), Instant::now() + time);
        loop {
            let start = Instant::now();
            once();
            let now = Instant::now();
            samples.add(now - start);
            if now >= end || samples.is_full() {
                return samples;
            }
        }
    }

    /// A whole batch has taken so long.
    pub(super) fn add(&mut self, took: Duration) {
        self.ns.push(took.as_secs_f64() * 1e9 / f64::from(self.batch));
    }

    pub(super) fn append(&mut self, mut more: Self) {
        self.ns.append(&mut more.ns);
    }

    pub(super) fn len(&self) -> usize {
        self.ns.len()
    }

    /// The lower quartile: what it takes while nobody interferes.
    pub(super) fn low(mut self) -> Option<f64> {
        self.ns.sort_unstable_by(f64::total_cmp);
        rank(&self.ns, 25)
    }

    /// The quicker half: whoever had to share a core is not in it.
    pub(super) fn undisturbed(mut self) -> Self {
        self.ns.sort_unstable_by(f64::total_cmp);
        self.ns.truncate(self.ns.len().div_ceil(2));
        self
    }

    pub(super) fn is_full(&self) -> bool {
        self.ns.len() >= MOST
    }

    pub(super) fn figure(mut self, name: &str, what: &str) -> Option<Figure> {
        self.ns.sort_unstable_by(f64::total_cmp);
        Some(Figure {
            name: name.into(),
            what: what.into(),
            median_ns: rank(&self.ns, 50)?,
            p99_ns: rank(&self.ns, 99)?,
            times: self.ns.len() as u64 * u64::from(self.batch),
            batch: self.batch.into(),
            class: None,
        })
    }
}

/// The percentile of sorted values: nearest rank.
fn rank(sorted: &[f64], percent: usize) -> Option<f64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let all: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((rank(&all, 50), rank(&all, 99)), (Some(100.0), Some(198.0)));
        assert_eq!((rank(&all[..1], 50), rank(&all[..1], 99)), (Some(1.0), Some(1.0)));
        assert_eq!(rank(&all[..3], 50), Some(2.0));
        assert_eq!(rank(&[], 50), None);
    }

    #[test]
    fn a_batch_is_shared_out_and_counted() {
        let mut samples = Samples::new(10);
        for us in [30, 10, 20] {
            samples.add(Duration::from_micros(us));
        }
        let figure = samples.figure("n", "w").unwrap();
        assert!((figure.median_ns - 2000.0).abs() < 1e-6 && (figure.p99_ns - 3000.0).abs() < 1e-6);
        assert_eq!((figure.times, figure.batch), (30, 10));
    }

    #[test]
    fn the_quicker_half_has_the_lower_quartile_in_its_middle() {
        let mut samples = Samples::new(1);
        for us in [9, 1, 8, 2, 7, 3, 6, 4] {
            samples.add(Duration::from_micros(us));
        }
        let mut found = Found::default();
        found.add_in(Class::Far, "n", "w", samples.clone().undisturbed());
        let figure = &found.figures[0];
        assert!((figure.median_ns - samples.low().unwrap()).abs() < 1e-9);
        assert_eq!(
            (figure.what.as_str(), figure.times, figure.class),
            ("w (far)", 4, Some(Class::Far))
        );
    }

    #[test]
    fn what_has_no_sample_is_missing_not_zero() {
        let mut found = Found::default();
        found.add("n", "w", Samples::new(1));
        assert!(found.figures.is_empty() && found.missing[0].what == "w");
        assert_eq!(found.median("n"), None);
        let mut calls = 0;
        found.add("n", "w", Samples::take(1, Duration::ZERO, || calls += 1));
        assert!((calls, found.figures[0].times) == (1, 1) && found.median("n").is_some());
    }
}
