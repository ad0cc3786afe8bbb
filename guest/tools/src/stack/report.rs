//! What a run tells its caller: one line a second, and a summary.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::Serialize;

use super::options::Workload;
use crate::pktgen::{Latency, scaled};
use vmlan_driver::nic::{Connected, Registers};
use vmlan_driver::stats::ratio;
use vmlan_transport::Mac;

/// A report of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Report {
    /// Connected, with these addresses.
    Connected(Connected, Mac, Ipv4Addr),
    /// A second (or what [`super::Options::report_every`] says) is over.
    Interval(Interval),
    /// The switch is gone.
    Disconnected,
    /// It is back, after this long.
    Reconnected(Duration),
}

/// What happened since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Datagrams, writes or reads, or transactions.
    pub messages: u64,
    /// Their payload.
    pub bytes: u64,
    /// Microseconds.
    pub micros: u64,
    /// Frames the NIC sent.
    pub frames_sent: u64,
    /// Frames it received.
    pub frames_received: u64,
    /// Datagrams that arrived for the application.
    pub arrived: u64,
    /// Of these, the ones its socket queue had no room for.
    pub dropped: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Interrupts received.
    pub interrupts: u64,
}

impl fmt::Display for Interval {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = ratio(self.micros, 1_000_000).max(1e-9);
        let (rate, rate_unit) = scaled(ratio(self.messages, 1) / seconds);
        let (bits, bits_unit) = scaled(ratio(self.bytes, 1) * 8.0 / seconds);
        write!(
            out,
            "{rate:.3} {rate_unit}msg/s {bits:.3} {bits_unit}bit/s ({} messages in {} usec) tx {} \
             rx {} frames {} kicks {} irqs",
            self.messages,
            self.micros,
            self.frames_sent,
            self.frames_received,
            self.doorbells,
            self.interrupts,
        )?;
        if self.arrived > 0 {
            write!(out, " arrived {} dropped {}", self.arrived, self.dropped)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(how, mac, ip) => write!(out, "connected, {how}; {mac} is {ip}"),
            Self::Interval(interval) => interval.fmt(out),
            Self::Disconnected => out.write_str("the switch is gone, waiting for it"),
            Self::Reconnected(time) => write!(out, "connected again after {} ms", time.as_millis()),
        }
    }
}

/// Who runs when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// One thread: an interrupt comes before the application, and its handler runs until no frame
    /// is left.
    InterruptsFirst,
    /// One thread: the driver polls, and takes turns with the application.
    InTurns,
    /// Two threads.
    Parallel,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub workload: Workload,
    pub threads: u8,
    /// Who ran when.
    pub schedule: Schedule,
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
    pub frames_sent: u64,
    pub frames_received: u64,
    /// Datagrams that arrived for the application of a UDP sink.
    pub arrived: u64,
    /// Datagrams that arrived in a second.
    pub arrived_per_s: f64,
    /// Of those that arrived, the ones the socket queue had no room for.
    pub dropped: u64,
    /// Numbers that never came to a UDP sink's application (payload from 8 bytes on), or requests
    /// without an answer.
    pub lost: u64,
    /// Datagrams that came twice or late.
    pub out_of_order: u64,
    /// Datagrams with a wrong checksum, or TCP bytes that are not what was sent (with verify).
    pub corrupt: u64,
    /// TCP connections served.
    pub connections: u64,
    /// CPU seconds of this process, user and system, over the whole run.
    pub cpu_seconds: f64,
    pub doorbells: u64,
    pub interrupts: u64,
    /// Times the run went on with a new switch.
    pub reconnects: u64,
    /// Every ring passed its audit at the end.
    pub rings_sound: bool,
    /// Register accesses (e1000), over the whole run.
    pub registers: Option<Registers>,
    /// Round trips (request-response).
    pub latency: Option<Latency>,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, unit) = scaled(self.messages_per_s);
        write!(
            out,
            "{}: {} messages, {} bytes in {:.3} s: {rate:.3} {unit}msg/s, {:.3} Mbit/s; frames tx \
             {} rx {}, {} doorbells, {} interrupts, {:.2} s of CPU, {} lost, {} corrupt",
            self.workload.name(),
            self.messages,
            self.bytes,
            self.seconds,
            self.mbit_per_s,
            self.frames_sent,
            self.frames_received,
            self.doorbells,
            self.interrupts,
            self.cpu_seconds,
            self.lost,
            self.corrupt,
        )?;
        if self.arrived > 0 {
            write!(out, "; {} arrived, {} dropped", self.arrived, self.dropped)?;
        }
        if let Some(registers) = &self.registers {
            write!(out, "\n{registers}")?;
        }
        match &self.latency {
            Some(latency) => write!(out, "\nround trip us: {latency}"),
            None => Ok(()),
        }
    }
}
