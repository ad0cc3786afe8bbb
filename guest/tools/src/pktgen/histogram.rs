//! Round-trip times in an HDR histogram: three digits at every percentile, no allocation per
//! sample.

use hdrhistogram::Histogram as Hdr;
use serde::Serialize;

const MOST_NS: u64 = 600_000_000_000; // Longer ones count as this: ten minutes.

/// Percentiles of the round trip, in nanoseconds; to three digits, `max` and `min` exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latency {
    /// How many round trips.
    pub samples: u64,
    pub min_ns: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub p9999_ns: u64,
    pub max_ns: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    hdr: Hdr<u64>,
    min: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        let hdr = Hdr::new_with_bounds(1, MOST_NS, 3).expect("these bounds are allowed");
        Self { hdr, min: u64::MAX, max: 0 }
    }

    pub(crate) fn add(&mut self, ns: u64) {
        self.hdr.saturating_record(ns.max(1));
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.hdr.add(&other.hdr).expect("the bounds are the same");
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub(crate) fn latency(&self) -> Option<Latency> {
        let at = |quantile| self.hdr.value_at_quantile(quantile).clamp(self.min, self.max);
        (!self.hdr.is_empty()).then(|| Latency {
            samples: self.hdr.len(),
            min_ns: self.min,
            mean_ns: self.hdr.mean(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: self.max,
        })
    }
}
