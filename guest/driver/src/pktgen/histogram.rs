//! Round-trip times in buckets of 1/16 of a power of two: percentiles within 6 %, no allocation per sample.

use serde::Serialize;

const STEPS: usize = 16;

/// Percentiles of the round trip, in nanoseconds; within 6 %, `max` and `min` exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many round trips.
    pub samples: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

#[derive(Debug)]
pub(super) struct Histogram {
    buckets: Box<[u64]>,
    samples: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { buckets: vec![0; 64 * STEPS].into(), samples: 0, min: u64::MAX, max: 0 }
    }

    fn bucket(ns: u64) -> usize {
        let log = 63 - ns.max(STEPS as u64).leading_zeros() as usize;
        let step = if ns < STEPS as u64 { 0 } else { ns >> (log - 4) & 15 };
        log * STEPS + usize::try_from(step).unwrap_or(0)
    }

    /// Upper end of a bucket.
    fn value(bucket: usize) -> u64 {
        let (log, step) = (bucket / STEPS, (bucket % STEPS) as u64);
        let base = STEPS as u64 + step + 1;
        base.checked_shl(u32::try_from(log).unwrap_or(0).saturating_sub(4)).unwrap_or(u64::MAX)
    }

    pub(super) fn add(&mut self, ns: u64) {
        self.buckets[Self::bucket(ns)] += 1;
        self.samples += 1;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.samples * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, Self::value).clamp(self.min.min(self.max), self.max)
    }

    pub(super) fn latency(&self) -> Option<Latency> {
        (self.samples > 0).then(|| Latency {
            samples: self.samples,
            min_ns: self.min,
            p50_ns: self.percentile(50),
            p90_ns: self.percentile(90),
            p99_ns: self.percentile(99),
            max_ns: self.max,
        })
    }
}
