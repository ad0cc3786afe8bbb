//! Register accesses, counted.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::chip::Access;
use crate::stats::ratio;

/// Accesses of a chip's registers during a run, after the chip was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Registers {
    /// Reads: each a trip to the device and back.
    pub reads: u64,
    /// Writes that went as messages.
    pub writes: u64,
    /// Loads and stores in shared pages.
    pub mapped: u64,
    /// Reads and writes, without the mapped ones, for 1,000 frames.
    pub accesses_per_1000_frames: f64,
    /// Interrupts for 1,000 frames.
    pub interrupts_per_1000_frames: f64,
    /// The longest that one of the reads or writes took, in microseconds: a guest's processor
    /// stands still for as long.
    pub slowest_us: f64,
    /// Each register that was touched.
    pub by_name: Vec<Access>,
}

impl Registers {
    /// The sums over `by_name`.
    pub(crate) fn new(by_name: Vec<Access>, slowest: Duration) -> Self {
        let slowest_us = slowest.as_secs_f64() * 1e6;
        let sum = |part: fn(&Access) -> u64| by_name.iter().map(part).sum();
        let (reads, writes) = (sum(|a| a.reads), sum(|a| a.writes));
        Self { reads, writes, mapped: sum(|a| a.mapped), slowest_us, by_name, ..Self::default() }
    }

    /// What came since `then`, for so many frames and interrupts.
    pub fn since(self, then: &Self, frames: u64, interrupts: u64) -> Self {
        let mut by_name = self.by_name;
        for access in &mut by_name {
            let old = then.by_name.iter().find(|old| old.register == access.register);
            let old = old.copied().unwrap_or_default();
            access.reads -= old.reads;
            access.writes -= old.writes;
            access.mapped -= old.mapped;
        }
        by_name.retain(|access| access.reads + access.writes + access.mapped > 0);
        let mut new = Self { slowest_us: self.slowest_us, ..Self::new(by_name, Duration::ZERO) };
        new.accesses_per_1000_frames = 1000.0 * ratio(new.reads + new.writes, frames);
        new.interrupts_per_1000_frames = 1000.0 * ratio(interrupts, frames);
        new
    }
}

impl fmt::Display for Registers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "registers: {:.1} accesses per 1,000 frames ({} reads, {} writes, slowest {:.0} us; {} \
             more in shared pages)",
            self.accesses_per_1000_frames, self.reads, self.writes, self.slowest_us, self.mapped
        )?;
        for (n, access) in self.by_name.iter().enumerate() {
            let between = if n == 0 { ":" } else { "," };
            write!(out, "{between} {}", access.register)?;
            let parts = [(access.reads, "r"), (access.writes, "w"), (access.mapped, "m")];
            for (count, letter) in parts.iter().filter(|part| part.0 > 0) {
                write!(out, " {count}{letter}")?;
            }
        }
        Ok(())
    }
}
