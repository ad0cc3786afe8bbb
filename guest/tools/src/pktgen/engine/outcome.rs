//! What a thread did, and what all of them did.

use std::time::Duration;

use super::super::histogram::Histogram;
use super::super::options::{Function, Options};
use super::super::sequence::{self, Faults};
use super::super::summary::Summary;
use super::Engine;
use vmlan_driver::nic::{Nic, Registers};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::stats::ratio;
use vmlan_transport::sys;

/// Counters of the run beside those of the queues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) batches: u64,
    pub(super) other: u64,
    pub(super) lost: u64,
    pub(super) corrupt: u64,
}

/// What is known about a thread's part when it is over.
pub(super) struct Outcome {
    counts: Counts,
    first_ns: Option<u64>,
    end_ns: u64,
    queues: QueueStats,
    reconnects: u64,
    sound: bool,
    registers: Option<Registers>,
    sent: Histogram,
    due: Histogram,
    /// Of all threads.
    faults: Faults,
}

impl<N: Nic> Engine<'_, N> {
    pub(super) fn outcome(self) -> Outcome {
        // For what is sent the time runs until the last slot came back; for what is received, until
        // the last frame; for pings, until the last one might have been sent.
        let end_ns = match self.options.function {
            Function::Ping => self.ended_ns,
            Function::Tx => self.now(),
            _ => self.last_ns,
        };
        let queues = self.nic.stats();
        Outcome {
            end_ns,
            counts: self.counts,
            first_ns: self.first_ns,
            reconnects: self.nic.reconnects(),
            sound: self.nic.is_sound(),
            registers: self.nic.registers().map(|registers| {
                let before = self.before.clone().unwrap_or_default();
                registers.since(&before, self.counts.frames, queues.interrupts)
            }),
            queues,
            faults: sequence::lock(&self.share.sequences).faults(),
            sent: self.pings.sent,
            due: self.pings.due,
        }
    }
}

impl Outcome {
    /// Adds what another thread did.
    pub(super) fn merge(&mut self, other: &Self) {
        let (counts, more) = (&mut self.counts, &other.counts);
        counts.frames += more.frames;
        counts.bytes += more.bytes;
        counts.batches += more.batches;
        counts.other += more.other;
        counts.lost += more.lost;
        counts.corrupt += more.corrupt;
        self.first_ns = match (self.first_ns, other.first_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.end_ns = self.end_ns.max(other.end_ns);
        self.queues.doorbells += other.queues.doorbells;
        self.queues.interrupts += other.queues.interrupts;
        self.queues.full += other.queues.full;
        self.queues.malformed += other.queues.malformed;
        self.reconnects = self.reconnects.max(other.reconnects);
        self.sound &= other.sound;
        self.sent.merge(&other.sent);
        self.due.merge(&other.due);
        // A thread that ended early has not seen the last of them.
        if other.faults.seen > self.faults.seen {
            self.faults = other.faults;
        }
    }

    /// The summary, for a run that began with `cpu` used.
    pub(super) fn summary(self, options: &Options, cpu: Duration) -> Summary {
        let Self { counts, queues, faults, .. } = self;
        let micros = self.end_ns.saturating_sub(self.first_ns.unwrap_or(self.end_ns)) / 1000;
        let seconds = ratio(micros, 1_000_000);
        let per_second = |count| if seconds > 0.0 { ratio(count, 1) / seconds } else { 0.0 };
        let open_loop = options.function == Function::Ping && options.rate > 0;
        Summary {
            function: options.function,
            frame_bytes: options.size,
            threads: options.threads,
            verified: options.verify,
            frames: counts.frames,
            bytes: counts.bytes,
            seconds,
            frames_per_s: per_second(counts.frames),
            gbit_per_s: per_second(counts.bytes) * 8e-9,
            cpu_seconds: sys::process_cpu().saturating_sub(cpu).as_secs_f64(),
            doorbells: queues.doorbells,
            interrupts: queues.interrupts,
            mean_batch: ratio(counts.frames, counts.batches),
            full: queues.full,
            other_frames: counts.other,
            malformed: queues.malformed,
            lost: counts.lost + faults.lost,
            out_of_order: faults.duplicated + faults.reordered,
            duplicated: faults.duplicated,
            reordered: faults.reordered,
            restarts: faults.restarts,
            corrupt: counts.corrupt,
            reconnects: self.reconnects,
            rings_sound: self.sound,
            registers: self.registers,
            latency: self.sent.latency(),
            latency_due: if open_loop { self.due.latency() } else { None },
        }
    }
}
