//! From IntrMitigate (E2h) to nanoseconds.
//!
//! ```text
//!   15:12 transmit timer   11:8 transmit frames / 4   7:4 receive timer   3:0 receive frames / 4
//!
//!   C+CR 1:0     1000 Mbit/s      100        10        the timers' unit
//!      0           320 ns       2.56 us   40.96 us
//!      1             x 8
//!      2             x 16
//!      3             x 32
//! ```
//!
//! The register is in no datasheet. Fields and units are those that Linux's `r8169` uses (its
//! comment on interrupt coalescing, and `ethtool -C`): "8169" in its table. An interrupt is due
//! when a timer has run out, or when so many frames have passed since the last. A timer of 0 waits
//! for nothing. As everywhere here, the first interrupt after silence waits for nothing either.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::Counter;

use super::chip::R8169;
use super::regs::{CPCR, INTMIT, cpcr};
use crate::chip::Delays;
use crate::chip::state::Fields;

/// Units by speed, in ns.
const UNITS: [u64; 3] = [40_960, 2_560, 320];
/// Their factors, by C+CR.
const FACTORS: [u64; 4] = [1, 8, 16, 32];
const FRAMES: u64 = 4; // Frames that a field of frames counts.

/// Frames of one direction since the last interrupt.
#[derive(Debug, Default)]
pub struct Since {
    /// Interrupts delivered, as last seen.
    delivered: AtomicU64,
    /// Frames when that was.
    start: AtomicU64,
    /// Frames as last seen.
    seen: AtomicU64,
}

impl Since {
    /// Passes them.
    pub(super) fn fields(&self, io: &mut Fields<'_>) {
        let Self { delivered, start, seen } = self;
        [delivered, start, seen].into_iter().for_each(|count| io.atomic_u64(count));
    }

    /// Frames since the number of interrupts changed. What came together with the interrupt may be
    /// counted as after it.
    fn frames(&self, delivered: u64, frames: u64) -> u64 {
        let seen = self.seen.swap(frames, Ordering::Relaxed);
        if self.delivered.swap(delivered, Ordering::Relaxed) != delivered {
            self.start.store(seen, Ordering::Relaxed);
        }
        frames.saturating_sub(self.start.load(Ordering::Relaxed))
    }
}

impl R8169 {
    /// Windows of moderation, from the registers as they are now.
    #[inline]
    pub(super) fn windows(&self) -> Delays {
        match self.regs.get(INTMIT) {
            0 => Delays::default(),
            mitigate => self.mitigated(mitigate),
        }
    }

    fn mitigated(&self, mitigate: u32) -> Delays {
        let by = |table: &[u64], i: u32| table.get(i as usize).copied().unwrap_or(0);
        let unit = by(&UNITS, self.wire().speed);
        let unit = unit * by(&FACTORS, self.regs.get(CPCR) & cpcr::UNIT);
        let (_, _, delivered) = self.core.irq.counts();
        let field = |shift: u32| u64::from(mitigate >> shift & 15);
        let window = |shift: u32, since: &Since, frames: &Counter| {
            let most = field(shift) * FRAMES;
            let reached = most > 0 && since.frames(delivered, frames.get()) >= most;
            if reached { 0 } else { field(shift + 4) * unit }
        };
        let stats = &self.core.stats;
        Delays {
            all: 0,
            transmit: window(8, &self.sent, &stats.tx.frames),
            receive: window(0, &self.received, &stats.rx.frames),
        }
    }
}
