//! Token buckets in integers.
//!
//! The tokens that time has brought are computed from the clock's whole value and compared with the
//! sum of all tokens ever spent. So rounding errors do not add up. Both sums are kept modulo 2^64,
//! and only their difference is looked at, so that it does not matter when they wrap, which they do
//! after years at 400 Gbit/s.
//!
//! # Clocks
//!
//! - It stands still, or goes back by less than [`SKEW`] because another worker took its time
//!   earlier: the bucket gains nothing until it goes on.
//! - It goes back further: the bucket goes on from there with the tokens it had.
//! - It leaps forward: the bucket is full, never fuller.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::nanos;

const SECOND: u64 = 1_000_000_000;

/// The clocks of several workers may differ by this much, in nanoseconds. If it is more, the clock
/// itself has gone back.
const SKEW: u64 = SECOND;

/// A bucket that nobody looked at for this long, in nanoseconds, is full, whatever it owed. So
/// differences stay far below 2^63.
const LEAP: u64 = 3600 * SECOND;

/// The highest rate, in tokens per second, and the longest burst, in nanoseconds. Higher values are
/// taken as these.
const MAX_RATE: u64 = 1_000_000_000_000;
const MAX_BURST: u64 = 10 * SECOND;

/// The most that is spent in one go: far beyond a batch of the largest frames.
const MAX_SPEND: u64 = 1 << 40;

const MAX_WAIT: u64 = SECOND; // The longest wait, in nanoseconds. A debt may last longer.

/// The longest that a helping is waited for, in nanoseconds: short enough for rings not to run
/// full, long enough not to be polling.
const HELPING: u64 = 500_000;

/// A rate and how much of it may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens per second: bits, or frames. From 1 to 10^12.
    pub per_second: u64,
    /// How long an idle bucket gathers tokens. Up to 10 s; at least one token.
    pub burst: Duration,
}

/// A token bucket. All workers may spend from it at any time, without a lock.
///
/// In any time `t` at most `rate * t` tokens pass, plus the burst, plus one helping for each worker
/// that spends: a helping passes whole as long as there is one token left. What was overspent is
/// paid back before anything passes again.
#[derive(Debug)]
#[repr(align(64))]
pub struct Bucket {
    burst: Duration,
    /// The rate: whole tokens per nanosecond, and the 10^9ths left over.
    whole: u64,
    part: u64,
    depth: u64,
    /// The latest time it was looked at.
    latest: AtomicU64,
    /// All tokens ever spent or forfeited, modulo 2^64.
    spent: AtomicU64,
    /// Until this time nothing passes that comes in helpings.
    opens: AtomicU64,
}

impl Bucket {
    /// A full bucket at `now` (nanoseconds of the workers' clock).
    pub fn new(rate: Rate, now: u64) -> Self {
        let per_second = rate.per_second.clamp(1, MAX_RATE);
        let mut bucket = Self {
            burst: rate.burst,
            whole: per_second / SECOND,
            part: per_second % SECOND,
            depth: 0,
            latest: AtomicU64::new(now),
            spent: AtomicU64::new(0),
            opens: AtomicU64::new(0),
        };
        bucket.depth = bucket.brought(nanos(rate.burst).min(MAX_BURST)).0.max(1);
        bucket.spent = AtomicU64::new(bucket.brought(now).0.wrapping_sub(bucket.depth));
        bucket
    }

    /// A bucket of another rate that goes on where this one is.
    ///
    /// Of the tokens gathered or owed, the same number is kept, or what lasts the same time,
    /// whichever is less. So a debt of the slow rate does not hold up the fast one, what the fast
    /// one gathered or owes counts little at the slow one, and nothing is gained by changing the
    /// rate to and fro.
    #[must_use]
    pub fn with_rate(&self, rate: Rate, now: u64) -> Self {
        let now = self.see(now);
        let new = Self::new(rate, now);
        let (old, tokens) = (self.per_second(), self.tokens(now));
        let n = u128::from(tokens.unsigned_abs());
        let scaled = n * u128::from(new.per_second().min(old)) / u128::from(old);
        // At most 2^63, which is one more than fits: saturate.
        let scaled = i64::try_from(scaled).unwrap_or(i64::MAX);
        let kept = if tokens < 0 { -scaled } else { scaled.min(new.depth.cast_signed()) };
        new.spent.store(new.brought(now).0.wrapping_sub(kept.cast_unsigned()), Ordering::Relaxed);
        new
    }

    /// Its rate.
    pub fn rate(&self) -> Rate {
        Rate { per_second: self.per_second(), burst: self.burst }
    }

    /// Tokens there are at `now`; negative if some are owed.
    #[inline]
    pub fn tokens(&self, now: u64) -> i64 {
        self.look(now).0
    }

    /// Like [`Bucket::tokens`], but none for half the burst after a frame was refused.
    ///
    /// This is for receivers: a guest that is given each token as soon as it is there is
    /// interrupted as often as there are tokens. The rate is kept as exactly: what comes while the
    /// bucket is shut fits into the other half of the burst.
    #[inline]
    pub fn in_helpings(&self, now: u64) -> i64 {
        let tokens = self.tokens(now);
        if self.is_shut(now) { tokens.min(0) } else { tokens }
    }

    /// True if it had no tokens left when it was looked at last.
    pub(crate) fn is_used_up(&self) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        let (brought, _) = self.brought(latest);
        let tokens = brought.wrapping_sub(self.spent.load(Ordering::Relaxed)).cast_signed();
        tokens <= 0 || self.is_shut(latest)
    }

    /// Like [`Bucket::is_used_up`], and shuts the bucket for those who take helpings: one of them
    /// was refused.
    pub(crate) fn refuses(&self) -> bool {
        let (over, latest) = (self.is_used_up(), self.latest.load(Ordering::Relaxed));
        if over && !self.is_shut(latest) {
            self.opens.store(latest.saturating_add(self.half()), Ordering::Relaxed);
        }
        over
    }

    fn is_shut(&self, now: u64) -> bool {
        let left = self.opens.load(Ordering::Relaxed).saturating_sub(now);
        // A longer time than possible means that the clock has gone back.
        left > 0 && left <= self.half()
    }

    /// Half the burst, in nanoseconds.
    fn half(&self) -> u64 {
        nanos(self.burst).min(MAX_BURST) / 2
    }

    /// Takes `n` tokens, whether or not they are there.
    #[inline]
    pub fn spend(&self, n: u64) {
        self.spent.fetch_add(n.min(MAX_SPEND), Ordering::Relaxed);
    }

    /// Nanoseconds until there is a helping worth sleeping for, at most a second; 0 if there are
    /// tokens now.
    pub fn wait(&self, now: u64) -> u64 {
        let (tokens, rest) = self.look(now);
        if tokens > 0 {
            return 0;
        }
        let helping = (self.depth / 4).min(self.brought(HELPING).0).max(1);
        let missing = u128::from(tokens.unsigned_abs()) + u128::from(helping);
        let missing = missing * u128::from(SECOND) - u128::from(rest);
        let wait = missing.div_ceil(u128::from(self.per_second()));
        u64::try_from(wait).map_or(MAX_WAIT, |n| n.min(MAX_WAIT))
    }

    fn per_second(&self) -> u64 {
        self.whole * SECOND + self.part
    }

    /// The tokens that `now` nanoseconds bring, exactly: whole ones modulo 2^64, and the 10^9ths of
    /// the next.
    #[inline]
    fn brought(&self, now: u64) -> (u64, u64) {
        let (s, ns) = (now / SECOND, now % SECOND);
        let parts = ns * self.part;
        let whole = s.wrapping_mul(self.per_second());
        let whole = whole.wrapping_add(ns * self.whole);
        (whole.wrapping_add(parts / SECOND), parts % SECOND)
    }

    /// The tokens that there are, and the 10^9ths of the next. What exceeds the depth is forfeited.
    #[inline]
    fn look(&self, now: u64) -> (i64, u64) {
        let now = self.see(now);
        let (brought, rest) = self.brought(now);
        let spent = self.spent.load(Ordering::Relaxed);
        let tokens = brought.wrapping_sub(spent).cast_signed();
        let depth = self.depth.cast_signed();
        if tokens <= depth {
            return (tokens, rest);
        }
        // Trying once is enough: if it fails another worker spends, and the surplus goes with the
        // next look.
        let full = brought.wrapping_sub(self.depth);
        let _ = self.spent.compare_exchange(spent, full, Ordering::Relaxed, Ordering::Relaxed);
        (depth, rest)
    }

    /// The time that counts: the latest that any worker has seen.
    #[inline]
    fn see(&self, now: u64) -> u64 {
        let latest = self.latest.load(Ordering::Relaxed);
        if now.wrapping_sub(latest) < LEAP && now >= latest {
            // Two workers may overwrite each other's time here. It is wrong by their skew until the
            // next look.
            self.latest.store(now, Ordering::Relaxed);
            return now;
        }
        if latest > now && latest - now <= SKEW { latest } else { self.leap(latest, now) }
    }

    /// The clock has gone back, or nobody has looked for an hour.
    #[cold]
    fn leap(&self, latest: u64, now: u64) -> u64 {
        let brought = self.brought(now).0;
        if now > latest {
            // First the tokens, then the time: a worker that comes between does the same again.
            self.spent.store(brought.wrapping_sub(self.depth), Ordering::Relaxed);
            self.latest.store(now, Ordering::Relaxed);
            return now;
        }
        let claim = self.latest.compare_exchange(latest, now, Ordering::Relaxed, Ordering::Relaxed);
        if claim.is_ok() {
            let lost = self.brought(latest).0.wrapping_sub(brought);
            self.spent.fetch_sub(lost, Ordering::Relaxed);
        }
        now
    }
}
