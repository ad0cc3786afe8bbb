//! What a run tells its caller of the application's work.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Counts, Tally, Task, Workload};
use crate::pktgen::{Latency, scaled};
use vmlan_driver::stats::ratio;
use vmlan_transport::sys;

/// What the application did since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Datagrams, writes or reads, or transactions.
    pub messages: u64,
    /// Their payload.
    pub bytes: u64,
    /// Microseconds.
    pub micros: u64,
}

impl Interval {
    /// Of `nanos`, between two tallies of one run.
    pub(crate) fn between(old: &Tally, new: &Tally, nanos: u64) -> Self {
        let (messages, bytes) = (new.messages - old.messages, new.bytes - old.bytes);
        Self { messages, bytes, micros: nanos / 1000 }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = ratio(self.micros, 1_000_000).max(1e-9);
        let (rate, rate_unit) = scaled(ratio(self.messages, 1) / seconds);
        let (bits, bits_unit) = scaled(ratio(self.bytes, 1) * 8.0 / seconds);
        write!(
            out,
            "{rate:.3} {rate_unit}msg/s {bits:.3} {bits_unit}bit/s ({} messages in {} usec)",
            self.messages, self.micros,
        )
    }
}

/// What the application did in the measured stretch: nothing, if the warm-up did not end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Totals {
    pub workload: Workload,
    /// Bytes of a message that was sent: payload of a datagram, of a write, or of a request.
    pub size: u32,
    /// Datagrams (streams: sent, sinks: taken by the application), writes or reads (TCP), or
    /// transactions (request-response).
    pub messages: u64,
    /// Their payload; of request-response in one direction.
    pub bytes: u64,
    /// Seconds from the first message (or the end of the warm-up) to the last.
    pub seconds: f64,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Payload, in Mbit/s.
    pub mbit_per_s: f64,
    /// Numbers that never came to a UDP sink's application from one of its first 256 senders
    /// (payload from 8 bytes on), or requests without an answer.
    pub lost: u64,
    /// Datagrams that came twice or late.
    pub out_of_order: u64,
    /// Datagrams with a wrong checksum, or TCP bytes that are not what was sent (with verify).
    pub corrupt: u64,
    /// TCP connections served, over the whole run.
    pub connections: u64,
    /// CPU seconds of this process, user and system, over the whole run.
    pub cpu_seconds: f64,
    /// Round trips (request-response).
    pub latency: Option<Latency>,
}

impl Totals {
    /// Of a run that ends at `now` and began when the process had used `cpu`.
    pub(crate) fn new(
        task: &Task,
        tally: &Tally,
        latency: Option<Latency>,
        (now, cpu): (u64, Duration),
    ) -> Self {
        let seconds = ratio(tally.nanos(now), 1_000_000_000);
        let Counts { messages, bytes, lost, out_of_order, corrupt } = tally.measured();
        Self {
            workload: task.workload,
            size: task.size(),
            messages,
            bytes,
            seconds,
            messages_per_s: per_second(messages, seconds),
            mbit_per_s: per_second(bytes, seconds) * 8e-6,
            lost,
            out_of_order,
            corrupt,
            connections: tally.connections,
            cpu_seconds: sys::process_cpu().saturating_sub(cpu).as_secs_f64(),
            latency: latency.filter(|_| tally.is_measured()),
        }
    }

    /// `count` a second of the measured stretch.
    pub(crate) fn rate(&self, count: u64) -> f64 {
        per_second(count, self.seconds)
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { ratio(count, 1) / seconds } else { 0.0 }
}

/// Without the round trips.
impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, unit) = scaled(self.messages_per_s);
        write!(
            out,
            "{}: {} messages, {} bytes in {:.3} s: {rate:.3} {unit}msg/s, {:.3} Mbit/s; {:.2} s of \
             CPU, {} lost, {} corrupt",
            self.workload.name(),
            self.messages,
            self.bytes,
            self.seconds,
            self.mbit_per_s,
            self.cpu_seconds,
            self.lost,
            self.corrupt,
        )
    }
}
