//! What a run tells its caller while it goes on: a line a second.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use vmlan_driver::nic::Connected;
use vmlan_driver::stats::ratio;

/// A report of a run. `Display` gives the line pkt-gen's users know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// Connected.
    Connected(Connected),
    /// A second (or what [`super::Options::report_every`] says) is over.
    Interval(Interval),
    /// The back end is gone.
    Disconnected,
    /// It is back, after this long.
    Reconnected(Duration),
}

/// What happened since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Interval {
    pub frames: u64,
    /// Bytes, without FCS.
    pub bytes: u64,
    /// Microseconds.
    pub micros: u64,
    pub batches: u64,
    /// Fewest free slots seen (tx), or fewest buffers left to the device (rx).
    pub min_space: u16,
    pub doorbells: u64,
    pub interrupts: u64,
    /// Ping: shortest and mean round trip of the interval, in nanoseconds.
    pub round_trip_ns: Option<(u64, u64)>,
}

impl Interval {
    /// What several threads did in the same interval.
    pub(super) fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.micros = self.micros.max(other.micros);
        self.batches += other.batches;
        self.min_space = self.min_space.min(other.min_space);
        self.doorbells += other.doorbells;
        self.interrupts += other.interrupts;
        self.round_trip_ns = match (self.round_trip_ns, other.round_trip_ns) {
            // Threads have about as many pings each.
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.midpoint(b.1))),
            (a, b) => a.or(b),
        };
    }
}

pub(crate) fn scaled(value: f64) -> (f64, &'static str) {
    match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "K"),
        v => (v, ""),
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = ratio(self.micros, 1_000_000).max(1e-9);
        let (rate, rate_unit) = scaled(ratio(self.frames, 1) / seconds);
        let (frames, frames_unit) = scaled(ratio(self.frames, 1));
        let (bits, bits_unit) = scaled(ratio(self.bytes, 1) * 8.0 / seconds);
        write!(
            out,
            "main_thread [0] {rate:.3} {rate_unit}pps ({frames:.3} {frames_unit}pkts {bits:.3} \
             {bits_unit}bps in {} usec) {:.2} avg_batch {} min_space {} kicks {} irqs",
            self.micros,
            ratio(self.frames, self.batches),
            self.min_space,
            self.doorbells,
            self.interrupts,
        )?;
        let Some((least, mean)) = self.round_trip_ns else { return Ok(()) };
        write!(out, " min/avg RTT {:.1}/{:.1} us", ratio(least, 1000), ratio(mean, 1000))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(how) => write!(out, "connected, {how}"),
            Self::Interval(interval) => interval.fmt(out),
            Self::Disconnected => out.write_str("the back end is gone, waiting for it"),
            Self::Reconnected(time) => write!(out, "connected again after {} ms", time.as_millis()),
        }
    }
}
