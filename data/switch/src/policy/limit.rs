//! Limits: bits and frames, of one port or shared by several, counted.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use vmlan_frame::Counter;

use super::{Bucket, Turns};

#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LimitCounters {
    pub passed: Counter,
    /// Times that a frame was left in its sender's ring.
    pub held: Counter,
    pub dropped: Counter,
}

impl LimitCounters {
    /// Frames that passed or were dropped.
    pub fn offered(&self) -> u64 {
        self.passed.get() + self.dropped.get()
    }
}

/// One limit: in bits, in frames, or both.
#[derive(Debug, Default)]
pub struct Limiter {
    /// Bits per second, without preamble and frame check sequence.
    pub bits: Option<Bucket>,
    /// Frames per second.
    pub frames: Option<Bucket>,
    /// Kept when the rates change.
    pub counters: Arc<LimitCounters>,
    /// Whose turn it is, if ports share it: else the first to come would take all.
    pub turns: Option<Arc<Turns>>,
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
    /// Bits. Nothing passes when none are left.
    pub bits: i64,
    /// Frames. Nothing passes when none are left.
    pub frames: i64,
}

impl Limits {
    /// True if nothing is limited.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.own.is_none() && self.shared.is_none()
    }

    /// What may pass at `now`: the least of all.
    ///
    /// Frames pass as long as both numbers are above 0, each taking its bits and one frame: the
    /// last one may take more than is left.
    #[inline]
    pub fn budget(&self, now: u64) -> Budget {
        self.least(|bucket| bucket.tokens(now))
    }

    /// Like [`Limits::budget`], for receivers: after frames were dropped, nothing passes for half
    /// the burst. A guest that is given each frame as soon as there are tokens for it is
    /// interrupted for each.
    #[inline]
    pub fn in_helpings(&self, now: u64) -> Budget {
        self.least(|bucket| bucket.in_helpings(now))
    }

    #[inline]
    fn least(&self, tokens: impl Fn(&Bucket) -> i64) -> Budget {
        let of = |bucket: &Option<Bucket>| bucket.as_ref().map_or(i64::MAX, &tokens);
        let all = Budget { bits: i64::MAX, frames: i64::MAX };
        self.each().fold(all, |least, limiter| Budget {
            bits: least.bits.min(of(&limiter.bits)),
            frames: least.frames.min(of(&limiter.frames)),
        })
    }

    /// `frames` of `bits` have passed: both limiters are charged.
    #[inline]
    pub fn passed(&self, frames: u64, bits: u64) {
        if frames == 0 {
            return;
        }
        for limiter in self.each() {
            if let Some(bucket) = &limiter.bits {
                bucket.spend(bits);
            }
            if let Some(bucket) = &limiter.frames {
                bucket.spend(frames);
            }
            limiter.counters.passed.add_shared(frames);
        }
    }

    /// Frames were left with their sender, by those limiters that have no tokens left.
    pub fn held(&self, frames: u64) {
        self.each_over(Bucket::is_used_up, |counters| counters.held.add_shared(frames));
    }

    /// Frames were dropped, by those limiters that have no tokens left. Call it after
    /// [`Limits::passed`].
    pub fn dropped(&self, frames: u64) {
        if frames == 0 {
            return;
        }
        self.each_over(Bucket::refuses, |counters| counters.dropped.add_shared(frames));
    }

    /// Nanoseconds until something worth waking for may pass; 0: now.
    #[inline]
    pub fn wait(&self, now: u64) -> u64 {
        let buckets = self.each().flat_map(|l| l.bits.iter().chain(&l.frames));
        buckets.map(|b| b.wait(now)).max().unwrap_or(0)
    }

    #[inline]
    fn each(&self) -> impl Iterator<Item = &Limiter> {
        self.own.iter().chain(&self.shared).map(|l| &**l)
    }

    /// Counts at the limiters that are over; at all, if another worker has just seen new tokens
    /// come.
    fn each_over(&self, over: fn(&Bucket) -> bool, count: impl Fn(&LimitCounters)) {
        let is_over = |l: &Limiter| {
            let [bits, frames] = [&l.bits, &l.frames].map(|b| b.as_ref().is_some_and(over));
            bits || frames
        };
        let overs = [&self.own, &self.shared].map(|l| l.as_ref().filter(|l| is_over(l)));
        if overs.iter().flatten().count() > 0 {
            overs.iter().flatten().for_each(|l| count(&l.counters));
        } else {
            self.each().for_each(|l| count(&l.counters));
        }
    }
}
