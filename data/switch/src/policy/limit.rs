//! Limits: bits and frames, of one port or shared by several, counted.

use std::sync::Arc;

use vmlan_frame::Counter;

use super::Bucket;

/// What a limiter has seen, in frames.
#[derive(Debug, Default)]
pub struct LimitCounters {
    /// Frames that passed or were dropped.
    pub offered: Counter,
    /// Frames that passed.
    pub passed: Counter,
    /// Times that a frame was left in its sender's ring.
    pub held: Counter,
    /// Frames dropped.
    pub dropped: Counter,
}

/// One limit: in bits, in frames, or both.
#[derive(Debug, Default)]
pub struct Limiter {
    /// Bits of frames (without preamble and frame check sequence) a second.
    pub bits: Option<Bucket>,
    /// Frames a second.
    pub frames: Option<Bucket>,
    /// Kept when the rates change.
    pub counters: Arc<LimitCounters>,
}

/// The limits of one direction of a port: its own, and one that it shares with others.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Its own.
    pub own: Option<Arc<Limiter>>,
    /// Its tenant's.
    pub shared: Option<Arc<Limiter>>,
}

/// How much may pass now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bits; nothing passes when there are none left.
    pub bits: i64,
    /// Frames, likewise.
    pub frames: i64,
}

impl Limits {
    /// True if nothing is limited.
    #[must_use]
    #[inline]
    pub fn is_none(&self) -> bool {
        self.own.is_none() && self.shared.is_none()
    }

    /// What may pass at `now`.
    #[must_use]
    pub fn budget(&self, now: u64) -> Budget {
        let _ = now;
        Budget { bits: i64::MAX, frames: i64::MAX }
    }

    /// `frames` of `bits` have passed.
    pub fn passed(&self, frames: u64, bits: u64) {
        let _ = (frames, bits);
    }

    /// They passed this limit but not another, and will come again.
    pub fn returned(&self, frames: u64, bits: u64) {
        let _ = (frames, bits);
    }

    /// Frames were left with their sender.
    pub fn held(&self, frames: u64) {
        let _ = frames;
    }

    /// Frames were dropped.
    pub fn dropped(&self, frames: u64) {
        let _ = frames;
    }

    /// Nanoseconds until something may pass; 0: now.
    #[must_use]
    pub fn wait(&self, now: u64) -> u64 {
        let _ = now;
        0
    }
}
