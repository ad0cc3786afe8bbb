//! Shares of a worker's time: deficit round robin by measured time.
//!
//! A worker asks its ports one after the other, round after round, for a breath each. The time that
//! a breath took, divided by the port's weight, is added to what the port has used. Ports that have
//! more to do stay together: a port that is ahead of the last of them by more than two of their
//! cheapest breaths sits out until the others have caught up. So equal ports take turns, as they
//! would without all this, and a port whose breaths are four times as long has a quarter as many.
//!
//! The textbook's quantum is implicit: it is what the last of the busy ports needs. Nobody waits
//! for it, since that port may always run: the worker is idle only if no port has anything to do.
//!
//! # What is charged
//!
//! Time, not frames: time is what the worker has to give, and a guest can make its frames as
//! expensive as it likes. Ports that do the same work get the same number of frames as far as their
//! frames cost the same; where a port's rings lie in the cache may make some percent of difference.
//!
//! While a breath lasts, the worker may be kept from its processor for milliseconds. That is not
//! the port's doing. So each port has an estimate `long` of its long breaths: what exceeds it four
//! times is forgiven. The estimate rises by half of what a breath exceeds it, and falls by 1/256 of
//! what a breath falls short of it. So a long breath that is forgiven makes the estimate 2.5 times
//! as long (half way from 1 to 4), and n short ones after it make it shorter by exp(-n/256):
//!
//! - A port whose long breaths are less than 256 ln 2.5 = 235 breaths apart is soon charged for
//!   them in full: the estimate rises faster than it falls. This is why it rises fast and falls
//!   slowly.
//! - If they are further apart it could go on being forgiven. So it is forgiven only time that it
//!   has earned: half of what it is charged, up to [`MOST_FORGIVEN`]. Whatever a guest does, it
//!   gets one and a half times its share at most.
//! - A worker that loses its processor for 4 ms every 100 ms is forgiven all of it.

#[cfg(test)]
mod tests;

use crate::{MAX_PORTS, PortId};

/// Used time is kept in 64ths of nanoseconds, or a weight of 1000 would be lost in rounding. Lasts
/// for nine years of one port's work; then all have used the same, and take turns.
const SCALE: u64 = 64;

/// The first estimate of a port's long breaths, in nanoseconds, if its first breath is longer: more
/// than breaths take that are not interrupted.
const FIRST: u64 = 100_000;

/// The most that a port can be forgiven at once, in nanoseconds: a few time slices of the kernel.
const MOST_FORGIVEN: u64 = 20_000_000;

/// What one port has used.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Time by weight. Only differences mean anything.
    used: u64,
    /// What its last breath added to it.
    last: u64,
    /// The estimate of its long breaths, in nanoseconds; 0: it has had none yet.
    long: u64,
    /// What it may still be forgiven, in nanoseconds.
    forgivable: u64,
    weight: u64,
    /// The round it was asked in.
    asked: u64,
    /// It had more to do after its last breath.
    more: bool,
}

/// Which port may have how much of a worker's time. Each worker has its own.
///
/// ```text
/// begin(); for each port: if may_run(port) { breath; spent(port, ns, more) }
/// ```
///
/// A port that is not asked (it waits for tokens, it has gone) holds nobody up. After a round in
/// which a port was refused its turn there is work left: do not sleep.
#[derive(Debug)]
pub struct Shares {
    ports: Box<[Share]>,
    round: u64,
    /// The least that any port has used which has more to do; and how far others may be ahead of
    /// it.
    least: u64,
    ahead: u64,
    /// The same of this round, as far as it is known.
    next_least: Option<u64>,
    next_ahead: u64,
    /// The most that any port has used.
    most: u64,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            ports: vec![Share::default(); MAX_PORTS].into_boxed_slice(),
            round: 1,
            least: 0,
            ahead: 0,
            next_least: None,
            next_ahead: u64::MAX,
            most: 0,
        }
    }
}

impl Shares {
    /// A new round begins.
    #[inline]
    pub fn begin(&mut self) {
        self.round += 1;
        // Where nobody has more to do, nobody owes anything.
        self.least = self.next_least.take().unwrap_or(self.most).max(self.least);
        self.ahead = std::mem::replace(&mut self.next_ahead, u64::MAX).saturating_mul(2);
    }

    /// True if it is the port's turn: it has time left.
    #[must_use]
    #[inline]
    pub fn may_run(&mut self, port: PortId, weight: u16) -> bool {
        let Some(share) = self.ports.get_mut(port.index()) else { return true };
        let missed = share.asked.saturating_add(1) < self.round;
        share.asked = self.round;
        share.weight = u64::from(weight.max(1));
        share.more &= !missed;
        if !share.more {
            // What it has not used while it had nothing to do is forfeited; what it owes is not.
            share.used = share.used.max(self.least);
        }
        let may = share.used <= self.least.saturating_add(self.ahead);
        let share = *share;
        if !may && share.more {
            self.has_more(share);
        }
        may
    }

    /// A breath of the port took `ns` nanoseconds. `more`: it did so much that there is probably
    /// more to do. Say no when the port waits for somebody else, or others would wait with it.
    #[inline]
    pub fn spent(&mut self, port: PortId, ns: u64, more: bool) {
        let Some(share) = self.ports.get_mut(port.index()) else { return };
        share.last = share.charge(ns) * SCALE / share.weight.max(1);
        share.used = share.used.saturating_add(share.last);
        share.more = more;
        let share = *share;
        self.most = self.most.max(share.used);
        if more {
            self.has_more(share);
        }
    }

    #[inline]
    fn has_more(&mut self, share: Share) {
        self.next_least = Some(self.next_least.map_or(share.used, |least| least.min(share.used)));
        self.next_ahead = self.next_ahead.min(share.last);
    }
}

impl Share {
    /// What the port is charged for a breath of `ns` nanoseconds: see the top of this file.
    #[inline]
    fn charge(&mut self, ns: u64) -> u64 {
        if self.long == 0 {
            (self.long, self.forgivable) = (ns.min(FIRST), MOST_FORGIVEN);
        }
        let long = self.long;
        // A microsecond more, as the shortest breaths vary by more than four times.
        let expected = ns.min(4 * long + 1000);
        if expected > long {
            self.long += (expected - long) / 2;
        } else {
            self.long -= (long - expected) / 256;
        }
        let forgiven = (ns - expected).min(self.forgivable);
        let charged = ns - forgiven;
        self.forgivable = (self.forgivable - forgiven + charged / 2).min(MOST_FORGIVEN);
        charged
    }
}
