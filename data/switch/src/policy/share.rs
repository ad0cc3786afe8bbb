//! Shares of a worker's time: deficit round robin by measured cost.
//!
//! A worker asks its ports one after the other, round after round, a breath each. What a breath took, divided by the port's weight,
//! is added to what the port has used. Ports that have more to do stay together: who is ahead of the last one of them by more than two of
//! the cheapest of their breaths sits out until the others have caught up. So equal ports take turns, as without all this, and a port whose breaths are
//! four times as long has a quarter as many.
//!
//! The quantum of the textbook is implicit: it is whatever the last one of those who have more to do needs. It is never waited for, as that
//! one may always run: the worker is idle only if nobody has anything to do.

#[cfg(test)]
mod tests;

use crate::{MAX_PORTS, PortId};

/// Used time is kept in 64ths of nanoseconds, or a weight of 1000 would be lost in rounding. Lasts for nine years of one port's work;
/// then all have used the same, and take turns.
const SCALE: u64 = 64;

/// What is taken at first for a long breath, in nanoseconds.
const FIRST: u64 = 100_000;

/// What one port has used.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Time by weight. Only differences mean anything.
    used: u64,
    /// What its last breath added to it.
    last: u64,
    /// The longest breaths it has, smoothed, in nanoseconds.
    long: u64,
    weight: u64,
    /// The round it was asked in.
    asked: u64,
    /// It had more to do after its last breath.
    more: bool,
    /// What a frame of it costs, smoothed; and the mean of those ports whose frames cost about as much. In 64ths of nanoseconds; 0: not known yet.
    cost: u64,
    alike: u64,
    breaths: u32,
}

/// Who may have how much of a worker's time. One worker's own.
///
/// ```text
/// begin(); for each port: if may_run(port) { breath; spent_on(port, ns, frames, more) }
/// ```
///
/// A port that is not asked (it waits for tokens, it has gone) holds nobody up. After a round in which a port was refused its turn there is
/// work left: do not sleep.
#[derive(Debug)]
pub struct Shares {
    ports: Box<[Share]>,
    round: u64,
    /// The least that any port has used which has more to do; and how far others may be ahead of it.
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

    /// A breath of the port took `ns` and finished `frames`; `more` as in `spent`. Between ports whose frames cost the same but for an eighth, it is frames that are
    /// shared: where a port's rings lie in the cache is not its doing.
    #[inline]
    pub fn spent_on(&mut self, port: PortId, ns: u64, frames: usize, more: bool) {
        let frames = if more { frames as u64 } else { 0 };
        let ns = if frames > 0 { self.as_alike(port, ns, frames) } else { ns };
        self.spent(port, ns, more);
    }

    /// `ns`, times what frames of ports like this one cost, divided by what its own cost.
    fn as_alike(&mut self, port: PortId, ns: u64, frames: u64) -> u64 {
        let Some(share) = self.ports.get_mut(port.index()) else { return ns };
        let cost = (ns.saturating_mul(SCALE) / frames).max(1);
        share.cost = match share.cost {
            0 => cost,
            // The worker may have been kept from its processor.
            old => old - old / 64 + cost.min(2 * old) / 64,
        };
        share.breaths = share.breaths.wrapping_add(1);
        if share.breaths % 256 == 0 {
            let own = share.cost;
            let round = self.round;
            let is_alike = |p: &&Share| {
                p.more && p.asked.saturating_add(2) >= round && p.cost.abs_diff(own) <= own / 8
            };
            let sum = |(n, sum): (u64, u64), p: &Share| (n + 1, sum.saturating_add(p.cost));
            let (n, sum) = self.ports.iter().filter(is_alike).fold((0, 0), sum);
            if let Some(share) = self.ports.get_mut(port.index()) {
                share.alike = sum.checked_div(n).unwrap_or(0);
            }
        }
        let Some(Share { cost, alike, .. }) = self.ports.get(port.index()) else { return ns };
        let known = *alike > 0 && cost.abs_diff(*alike) <= *alike / 8;
        if known { ns.saturating_mul(*alike) / *cost } else { ns }
    }

    /// A breath of the port took `ns`. `more`: it did so much that there is probably more to do. Say no when it waits for somebody else, or others would
    /// wait with it.
    #[inline]
    pub(crate) fn spent(&mut self, port: PortId, ns: u64, more: bool) {
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
    /// What of `ns` is the port's doing. While a breath lasts, the worker may be kept from its processor for milliseconds: what is far beyond the port's
    /// long breaths is not charged. The estimate rises fast and falls slowly, so that many short breaths do not buy a long one.
    #[inline]
    fn charge(&mut self, ns: u64) -> u64 {
        if self.long == 0 {
            self.long = ns.min(FIRST);
        }
        let long = self.long;
        let charged = ns.min(4 * long + 1000);
        if charged > long {
            self.long += (charged - long) / 2;
        } else {
            self.long -= (long - charged) / 256;
        }
        charged
    }
}
