//! Token pacing: a token is a frame, and at most one millisecond's worth (or one burst) is saved
//! up.

use std::time::Duration;
use vmlan_transport::numbers::{limit32, limit64};

/// Time is an argument: nanoseconds since the run began.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    rate: u64,
    start: u64,
    spent: u64,
    most: u64,
}

impl RateLimiter {
    /// `rate` in frames a second, 0 for no limit.
    pub(crate) fn new(rate: u64, burst: u32) -> Self {
        let most = (rate / 1000).clamp(1, u64::from(burst).max(1));
        Self { rate, start: 0, spent: 0, most }
    }

    fn earned(&self, now: u64) -> u64 {
        let passed = u128::from(now.saturating_sub(self.start));
        limit64(passed * u128::from(self.rate) / 1_000_000_000)
    }

    /// Frames that may be sent now, up to `wanted`. Tokens that cannot be saved up are gone, so a
    /// stall is not followed by a flood.
    pub(crate) fn allow(&mut self, now: u64, wanted: u32) -> u32 {
        if self.rate == 0 {
            return wanted;
        }
        let saved = self.earned(now).saturating_sub(self.spent);
        // A late wake-up may pay back ten milliseconds' worth, no more.
        let cap = (self.rate / 100).max(self.most);
        self.spent += saved.saturating_sub(cap);
        let saved = saved.min(cap);
        if saved < self.most.min(wanted.into()) { 0 } else { limit32(saved).min(wanted) }
    }

    pub(crate) fn spend(&mut self, frames: u32) {
        self.spent += u64::from(frames);
    }

    /// How long until a batch is allowed again.
    pub(crate) fn until(&self, now: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let target = u128::from(self.spent + self.most) * 1_000_000_000 / u128::from(self.rate);
        let at = limit64(target).saturating_add(self.start + 1);
        Duration::from_nanos(at.saturating_sub(now))
    }
}
