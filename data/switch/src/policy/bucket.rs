//! Token buckets in integers.
//!
//! What time has brought is computed from the clock's whole value, and compared with the sum of all
//! that was ever spent: nothing is added up that was rounded before. Both sums are kept modulo
//! 2^64, and only their difference is looked at, so that neither wraps into anything: not after
//! years at 400 Gbit/s either.
//!
//! # Clocks
//!
//! | the clock | the bucket |
//! | --- | --- |
//! | stands still, or goes back by less than [`SKEW`] (another worker took its time earlier) | gains nothing until it goes on |
//! | goes back further | goes on from there with the tokens it had |
//! | leaps forward | is full, never fuller |

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::nanos;

const SECOND: u64 = 1_000_000_000;

/// Clocks of several workers may differ by this much; past it, the clock itself has gone back.
const SKEW: u64 = SECOND;

/// After this long without a look a bucket is full, whatever it owed. So differences are far from
/// 2^63.
const LEAP: u64 = 3600 * SECOND;

/// The highest rate, in tokens a second, and the longest burst; more is taken as that much.
const MAX_RATE: u64 = 1_000_000_000_000;
const MAX_BURST: u64 = 10 * SECOND;

/// The most that is spent in one go: far beyond a batch of the largest frames.
const MAX_SPEND: u64 = 1 << 40;

/// The longest sleep; a debt may last longer.
const MAX_WAIT: u64 = SECOND;

/// The longest that a helping is waited for, in nanoseconds: often enough for full rings, seldom
/// enough to be no polling.
const HELPING: u64 = 500_000;

/// A rate and how much of it may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second: bits, or frames. At least 1; up to 10^12.
    pub per_second: u64,
    /// Time's worth of tokens that an idle bucket gathers; one token at least. Up to 10 s.
    pub burst: Duration,
}

/// A token bucket. Anybody may spend from it at any time, without a lock.
///
/// In any stretch of time `t` there pass at most `rate * t` tokens, plus the burst, plus one
/// helping for each of those who spend: a helping passes whole as long as there is one token left.
/// What was overspent is paid before anything passes again.
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
    /// Until when nothing passes that comes in helpings.
    opens: AtomicU64,
}

impl Bucket {
    /// A full bucket at `now` (nanoseconds of the workers' clock).
    #[must_use]
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
    /// Tokens gathered or owed stay the same number, or last the same time, whichever is less: a
    /// debt of the slow rate does not hold up the fast one, what the fast one gathered or owes is
    /// nothing to the slow one, and changing the rate to and fro brings nobody anything.
    #[must_use]
    pub fn with_rate(&self, rate: Rate, now: u64) -> Self {
        let now = self.see(now);
        let new = Self::new(rate, now);
        let (old, tokens) = (self.per_second(), self.tokens(now));
        let n = u128::from(tokens.unsigned_abs());
        let scaled = n * u128::from(new.per_second().min(old)) / u128::from(old);
        // At most 2^63, which is one too many.
        let scaled = i64::try_from(scaled).unwrap_or(i64::MAX);
        let kept = if tokens < 0 { -scaled } else { scaled.min(new.depth.cast_signed()) };
        new.spent.store(new.brought(now).0.wrapping_sub(kept.cast_unsigned()), Ordering::Relaxed);
        new
    }

    /// Its rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate { per_second: self.per_second(), burst: self.burst }
    }

    /// Tokens there are at `now`; negative if some are owed.
    #[must_use]
    #[inline]
    pub fn tokens(&self, now: u64) -> i64 {
        self.look(now).0
    }

    /// As [`Bucket::tokens`], but none for half the burst after somebody was refused.
    ///
    /// Whoever is given each token as soon as it is there is interrupted as often as there are
    /// tokens. This is for receivers. It is as exact: what comes while it is shut fits into the
    /// other half.
    #[must_use]
    #[inline]
    pub fn in_helpings(&self, now: u64) -> i64 {
        let tokens = self.tokens(now);
        if self.is_shut(now) { tokens.min(0) } else { tokens }
    }

    /// True if nothing might be spent of it when it was looked at last.
    pub(crate) fn is_used_up(&self) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        let (brought, _) = self.brought(latest);
        let tokens = brought.wrapping_sub(self.spent.load(Ordering::Relaxed)).cast_signed();
        tokens <= 0 || self.is_shut(latest)
    }

    /// As [`Bucket::is_used_up`], and shuts it for those who take helpings: one of them was
    /// refused.
    pub(crate) fn refuses(&self) -> bool {
        let (over, latest) = (self.is_used_up(), self.latest.load(Ordering::Relaxed));
        if over && !self.is_shut(latest) {
            self.opens.store(latest.saturating_add(self.half()), Ordering::Relaxed);
        }
        over
    }

    fn is_shut(&self, now: u64) -> bool {
        let left = self.opens.load(Ordering::Relaxed).saturating_sub(now);
        // Longer than it can be: the clock has gone back.
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

    /// Nanoseconds until a helping worth sleeping for is there, at most a second; 0: there is
    /// something now.
    #[must_use]
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

    /// Tokens that `now` nanoseconds bring, exactly: modulo 2^64, and the 10^9ths of one that is on
    /// its way.
    #[inline]
    fn brought(&self, now: u64) -> (u64, u64) {
        let (s, ns) = (now / SECOND, now % SECOND);
        let parts = ns * self.part;
        let whole = s.wrapping_mul(self.per_second());
        let whole = whole.wrapping_add(ns * self.whole);
        (whole.wrapping_add(parts / SECOND), parts % SECOND)
    }

    /// Tokens there are, and the 10^9ths of the next one. What exceeds the depth is forfeited.
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
        // Once is enough: if it fails somebody spends, and the surplus goes with the next look.
        let full = brought.wrapping_sub(self.depth);
        let _ = self.spent.compare_exchange(spent, full, Ordering::Relaxed, Ordering::Relaxed);
        (depth, rest)
    }

    /// The time to reckon with: the latest that anybody has seen.
    #[inline]
    fn see(&self, now: u64) -> u64 {
        let latest = self.latest.load(Ordering::Relaxed);
        if now.wrapping_sub(latest) < LEAP && now >= latest {
            // Two workers may overwrite each other here: by their skew, which the next look mends.
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
            // First the tokens, then the time: who comes between does the same again.
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
