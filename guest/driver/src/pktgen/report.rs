//! What a run tells its caller: one line a second, and a summary.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::histogram::Latency;
use super::options::Function;
use crate::device::{Connected, Registers, ratio};

/// News of a run. `Display` gives the line pkt-gen's users know.
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
pub struct Interval {
    /// Frames.
    pub frames: u64,
    /// Bytes, without FCS.
    pub bytes: u64,
    /// Microseconds.
    pub micros: u64,
    /// Batches.
    pub batches: u64,
    /// Fewest free slots seen (tx), or fewest buffers left to the device (rx).
    pub min_space: u16,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Interrupts received.
    pub interrupts: u64,
}

fn scaled(value: f64) -> (f64, &'static str) {
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
            "main_thread [0] {rate:.3} {rate_unit}pps ({frames:.3} {frames_unit}pkts {bits:.3} {bits_unit}bps in {} \
             usec) {:.2} avg_batch {} min_space {} kicks {} irqs",
            self.micros,
            ratio(self.frames, self.batches),
            self.min_space,
            self.doorbells,
            self.interrupts,
        )
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

/// The whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What was run.
    pub function: Function,
    /// Size asked for (tx, ping), in bytes.
    pub frame_bytes: u32,
    /// Frames sent (tx, ping), received (rx), or sent back (pong).
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Seconds from the first frame to the last.
    pub seconds: f64,
    /// Frames a second.
    pub frames_per_s: f64,
    /// Gbit/s of Ethernet frames (no preamble, gap or FCS).
    pub gbit_per_s: f64,
    /// CPU seconds of this process, user and system, over the whole run.
    pub cpu_seconds: f64,
    /// Doorbells rung, all queues.
    pub doorbells: u64,
    /// Interrupts received, all queues.
    pub interrupts: u64,
    /// Mean frames of a batch.
    pub mean_batch: f64,
    /// Times a frame waited for a transmit slot.
    pub full: u64,
    /// Frames received beside what was asked for: all of them for tx and ping.
    pub other_frames: u64,
    /// Frames the device delivered in a form it must not.
    pub malformed: u64,
    /// Numbers that never came (rx with verify), or pings without an answer.
    pub lost: u64,
    /// Numbers that came twice or late (rx with verify).
    pub out_of_order: u64,
    /// Frames whose sum or UDP checksum is wrong (rx with verify).
    pub corrupt: u64,
    /// Times the run went on with a new back end.
    pub reconnects: u64,
    /// Every ring passed its audit at the end: no descriptor lost, none twice.
    pub rings_sound: bool,
    /// Register accesses (e1000).
    pub registers: Option<Registers>,
    /// Round trips (ping).
    pub latency: Option<Latency>,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, unit) = scaled(self.frames_per_s);
        let per_k = |count| 1000.0 * ratio(count, self.frames);
        write!(
            out,
            "{} frames, {} bytes in {:.3} s: {rate:.3} {unit}pps, {:.3} Gbit/s, {:.1} doorbells and {:.1} interrupts \
             per 1,000 frames, mean batch {:.1}, {:.2} s of CPU, {} lost, {} corrupt",
            self.frames,
            self.bytes,
            self.seconds,
            self.gbit_per_s,
            per_k(self.doorbells),
            per_k(self.interrupts),
            self.mean_batch,
            self.cpu_seconds,
            self.lost,
            self.corrupt,
        )?;
        if let Some(registers) = &self.registers {
            write!(out, "\n{registers}")?;
        }
        let Some(rtt) = self.latency else { return Ok(()) };
        let micros = |ns| ratio(ns, 1000);
        write!(
            out,
            "\nround trip us: min {:.1} p50 {:.1} p90 {:.1} p99 {:.1} max {:.1}",
            micros(rtt.min_ns),
            micros(rtt.p50_ns),
            micros(rtt.p90_ns),
            micros(rtt.p99_ns),
            micros(rtt.max_ns)
        )
    }
}
