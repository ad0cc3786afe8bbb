//! What a run tells its caller at the end.

use std::fmt;

use serde::Serialize;

use super::histogram::Latency;
use super::options::Function;
use super::report::scaled;
use vmlan_driver::nic::Registers;
use vmlan_driver::stats::ratio;

const FRAMING: u64 = 24; // Preamble, gap and FCS of a frame on a wire: 24 bytes.

#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub function: Function,
    /// Size asked for (tx, ping), in bytes; the larger one of two.
    pub frame_bytes: u32,
    pub threads: u16,
    /// The numbers and sums were checked.
    #[serde(skip)]
    pub verified: bool,
    /// Frames sent (tx, ping), received (rx), or sent back (pong).
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Seconds from the first frame to the last.
    pub seconds: f64,
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
    /// Frames that the device delivered in an invalid form.
    pub malformed: u64,
    /// Numbers that never came (rx with verify), or pings without an answer.
    pub lost: u64,
    /// Numbers that came twice or late (rx with verify).
    pub out_of_order: u64,
    /// Of these, numbers that came twice.
    pub duplicated: u64,
    /// Of these, numbers that came after a later one.
    pub reordered: u64,
    /// Times a sender's numbers started again (rx with verify).
    pub restarts: u64,
    /// Frames whose sum or UDP checksum is wrong (rx with verify).
    pub corrupt: u64,
    /// Times the run went on with a new back end.
    pub reconnects: u64,
    /// Every ring passed its audit at the end: no descriptor lost, none twice.
    pub rings_sound: bool,
    /// Register accesses (e1000).
    pub registers: Option<Registers>,
    /// Round trips (ping), from the moment each was sent.
    pub latency: Option<Latency>,
    /// Round trips of pings at a rate, from the moment each was due: a ping that is sent late
    /// because we or the NIC were busy has waited as well.
    pub latency_due: Option<Latency>,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.function == Function::Rx { "Received" } else { "Sent" };
        let per_s =
            |count: u64| if self.seconds > 0.0 { ratio(count, 1) / self.seconds } else { 0.0 };
        let (rate, unit) = scaled(self.frames_per_s);
        let (bits, bits_unit) = scaled(8.0 * per_s(self.bytes));
        let (raw, raw_unit) = scaled(8.0 * per_s(self.bytes + FRAMING * self.frames));
        let per_k = |count| 1000.0 * ratio(count, self.frames);
        write!(
            out,
            "{verb} {} packets {} bytes in {:.2} seconds.\nSpeed: {rate:.3} {unit}pps Bandwidth: \
             {bits:.3} {bits_unit}bps (raw {raw:.3} {raw_unit}bps). Average batch: {:.2} \
             pkts\n{:.1} doorbells and {:.1} interrupts per 1,000 packets, {:.2} s of CPU",
            self.frames,
            self.bytes,
            self.seconds,
            self.mean_batch,
            per_k(self.doorbells),
            per_k(self.interrupts),
            self.cpu_seconds,
        )?;
        self.faults(out)?;
        if let Some(registers) = &self.registers {
            write!(out, "\n{registers}")?;
        }
        if let Some(latency) = &self.latency {
            write!(out, "\nround trip us: {latency}")?;
        }
        if let Some(latency) = &self.latency_due {
            write!(out, "\n  from when due: {latency}")?;
        }
        Ok(())
    }
}

impl Summary {
    fn faults(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.verified {
            let Self { lost, duplicated, reordered, corrupt, restarts, .. } = self;
            write!(
                out,
                "\nsequence: {lost} lost, {duplicated} duplicated, {reordered} reordered, \
                 {corrupt} corrupt"
            )?;
            if *restarts > 0 {
                write!(out, ", {restarts} restarts of a sender")?;
            }
        } else if self.function == Function::Ping {
            write!(
                out,
                "\n{} answered, {} lost, {} corrupt",
                self.answered(),
                self.lost,
                self.corrupt
            )?;
        }
        Ok(())
    }

    fn answered(&self) -> u64 {
        self.latency.map_or(0, |latency| latency.samples)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = [
            ("min", self.min_ns),
            ("p50", self.p50_ns),
            ("p90", self.p90_ns),
            ("p99", self.p99_ns),
            ("p99.9", self.p999_ns),
            ("p99.99", self.p9999_ns),
            ("max", self.max_ns),
        ];
        for (n, (name, ns)) in at.into_iter().enumerate() {
            let between = if n == 0 { "" } else { " " };
            write!(out, "{between}{name} {:.1}", ratio(ns, 1000))?;
        }
        Ok(())
    }
}
