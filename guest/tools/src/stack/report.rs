//! What a run tells its caller: one line a second, and a summary.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::Serialize;

use crate::workload::{self, Totals};
use vmlan_driver::nic::{Connected, Registers};
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// What the application did.
    pub work: workload::Interval,
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
        write!(
            out,
            "{} tx {} rx {} frames {} kicks {} irqs",
            self.work, self.frames_sent, self.frames_received, self.doorbells, self.interrupts,
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
    /// What the application did.
    #[serde(flatten)]
    pub totals: Totals,
    pub threads: u8,
    /// Who ran when.
    pub schedule: Schedule,
    pub frames_sent: u64,
    pub frames_received: u64,
    /// Datagrams that arrived for the application of a UDP sink.
    pub arrived: u64,
    /// Datagrams that arrived in a second.
    pub arrived_per_s: f64,
    /// Of those that arrived, the ones the socket queue had no room for.
    pub dropped: u64,
    pub doorbells: u64,
    pub interrupts: u64,
    /// Times the run went on with a new switch.
    pub reconnects: u64,
    /// Every ring passed its audit at the end.
    pub rings_sound: bool,
    /// Register accesses (e1000), over the whole run.
    pub registers: Option<Registers>,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}; frames tx {} rx {}, {} doorbells, {} interrupts",
            self.totals, self.frames_sent, self.frames_received, self.doorbells, self.interrupts,
        )?;
        if self.arrived > 0 {
            write!(out, "; {} arrived, {} dropped", self.arrived, self.dropped)?;
        }
        if let Some(registers) = &self.registers {
            write!(out, "\n{registers}")?;
        }
        match &self.totals.latency {
            Some(latency) => write!(out, "\nround trip us: {latency}"),
            None => Ok(()),
        }
    }
}
