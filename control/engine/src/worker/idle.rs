//! When to spin and when to sleep.

use std::time::Duration;

use super::run::nanoseconds;

/// Sleeps remembered: the more of them ended early, the more likely it is that spinning pays.
const MEMORY: u32 = 8;

/// Decides whether an idle worker spins. Spinning pays if the next frame comes within the spin
/// time; whether it does is judged by how long the last sleeps and spins lasted, so a stream of
/// 10,000 frames/s costs a wake-up each and no spinning, and a ping-pong of 10 us is caught
/// spinning.
#[derive(Debug)]
pub(super) struct Idle {
    spin_ns: u64,
    /// How many of the last idle times ended within `spin_ns`, smoothed, times 256.
    score: u32,
    since: Option<u64>,
}

impl Idle {
    pub(super) fn new(spin: Duration) -> Self {
        let spin_ns = nanoseconds(spin);
        Self { spin_ns, score: 256, since: None }
    }

    /// Frames moved at `now`: an idle time, if there was one, is over.
    #[inline]
    pub(super) fn busy(&mut self, now: u64) {
        if let Some(since) = self.since.take() {
            let early = now.saturating_sub(since) <= self.spin_ns;
            self.score = (self.score * (MEMORY - 1) + if early { 256 } else { 0 }) / MEMORY;
        }
    }

    /// Nothing moved at `now`: true to look again, false to sleep.
    pub(super) fn keep_spinning(&mut self, now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        let patience = if self.score >= 128 { self.spin_ns } else { 0 };
        now.saturating_sub(since) < patience
    }
}
