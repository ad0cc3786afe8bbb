//! What frames cost, and how many of them a budget covers: what may leave a port now, and what may
//! go to another.

use std::ops::Range;

use vmlan_frame::{BATCH, Batch, Gso, Offload, Offloads};

use crate::PortId;
use crate::policy::{Budget, Limiter, Policy, Turns};

/// How soon a port that shares a limit looks again whether it is its turn, in nanoseconds. No
/// doorbell announces that either.
const SHARED_TURN_NS: u64 = 20_000;

/// Bytes that a frame counts as among ports that share a limit of frames only.
pub(crate) const FRAME: u64 = 1514;

/// Bits of the shortest frame that drivers send.
pub(crate) const SHORT: i64 = 60 * 8;

/// Frames and bits on a wire: those of a frame that is still to be segmented are those of its
/// segments.
#[inline]
fn on_wire(len: usize, offload: Offload) -> (u64, u64) {
    let len = len as u64;
    if offload.gso == Gso::None {
        return (1, len * 8);
    }
    let headers = u64::from(offload.hdr_len);
    let payload = len.saturating_sub(headers);
    let segments = payload.div_ceil(u64::from(offload.gso_size).max(1)).max(1);
    (segments, (len + (segments - 1) * headers) * 8)
}

/// Frames and bits on a wire of frame `i`.
#[inline]
pub(crate) fn cost(batch: &Batch<'_>, i: usize) -> (u64, u64) {
    let offload = if batch.needs() == Offloads::NONE { Offload::NONE } else { batch.offload(i) };
    on_wire(batch.frame_len(i), offload)
}

/// The cost of all frames of the batch together, where that can be told without looking at each.
#[inline]
pub(crate) fn total(batch: &Batch<'_>) -> Option<(u64, u64)> {
    (batch.needs() == Offloads::NONE).then(|| (batch.len() as u64, batch.bytes() * 8))
}

impl Budget {
    /// True if nothing may pass.
    pub(crate) fn is_spent(&self) -> bool {
        self.bits <= 0 || self.frames <= 0
    }

    /// True if it certainly covers the whole batch.
    #[inline]
    pub(crate) fn covers(&self, batch: &Batch<'_>) -> bool {
        let fits = |n: u64, tokens: i64| u64::try_from(tokens).is_ok_and(|t| n <= t);
        total(batch).is_some_and(|(n, bits)| fits(n, self.frames) && fits(bits, self.bits))
    }
}

/// How many of `frames` the budget covers. A frame passes as long as something is left, and its
/// cost is subtracted.
pub(crate) fn covered(
    batch: &Batch<'_>,
    frames: impl Iterator<Item = usize>,
    Budget { mut bits, frames: mut count }: Budget,
) -> usize {
    let mut fits = |i: &usize| {
        let fits = bits > 0 && count > 0;
        let (n, b) = cost(batch, *i);
        count = count.saturating_sub_unsigned(n);
        bits = bits.saturating_sub_unsigned(b);
        fits
    };
    frames.take_while(|i| fits(i)).count()
}

/// What `source` may send now: what its limits have tokens for and, of a limit that it shares, no
/// more than its turn.
pub(crate) fn budget_from(policy: &Policy, source: PortId, now: u64) -> Option<Budget> {
    if policy.from.is_none() {
        return None;
    }
    let mut budget = policy.from.budget(now);
    let Some((limiter, turns)) = shared(policy) else { return Some(budget) };
    let bytes = turns.grant(source, policy.weight, now);
    if bytes != u64::MAX {
        match limiter.bits {
            Some(_) => budget.bits = budget.bits.min(in_bits(bytes)),
            None => budget.frames = budget.frames.min(bytes.div_ceil(FRAME).cast_signed()),
        }
    }
    if budget.is_spent() {
        turns.wants(source, policy.weight, now);
    }
    Some(budget)
}

/// Bytes in bits; what is too much for the type is as good as no limit.
pub(crate) fn in_bits(bytes: u64) -> i64 {
    bytes.saturating_mul(8).min(i64::MAX.unsigned_abs()).cast_signed()
}

/// The limit that a source shares with others, and whose turn it is there.
pub(crate) fn shared(policy: &Policy) -> Option<(&Limiter, &Turns)> {
    let limiter = policy.from.shared.as_deref()?;
    Some((limiter, limiter.turns.as_deref()?))
}

/// How long a source that may send nothing waits, for tokens or for its turn, in nanoseconds.
pub(crate) fn wait_from(policy: &Policy, now: u64) -> u64 {
    match policy.from.wait(now) {
        0 if shared(policy).is_some() => SHARED_TURN_NS,
        ns => ns.max(1),
    }
}

/// How many frames to ask a port for: as many of the shortest as the budget covers, and one more to
/// see whether there are more.
pub(crate) fn worth_pulling(budget: Budget) -> usize {
    let frames = budget.frames.min(budget.bits / SHORT + 1);
    // What does not fit the type is more than a batch.
    usize::try_from(frames.max(0)).map_or(BATCH, |n| n.saturating_add(1).min(BATCH))
}

/// What may go to a port. A guest gets helpings, so that it is not interrupted for single frames;
/// an uplink does not need that.
pub(crate) fn budget_to(policy: &Policy, now: u64) -> Budget {
    match &policy.uplink {
        Some(_) => policy.to.budget(now),
        None => policy.to.in_helpings(now),
    }
}

/// How many of `run` fit into `tokens` frames, and how many frames they are on a wire.
pub(crate) fn frames_within(batch: &Batch<'_>, run: Range<usize>, tokens: i64) -> (usize, u64) {
    let pass = covered(batch, run.clone(), Budget { bits: i64::MAX, frames: tokens });
    (pass, sum(run.take(pass).map(|i| cost(batch, i))).0)
}

pub(crate) fn sum(costs: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
    costs.fold((0, 0), |(n, b), (frames, bits)| (n + frames, b + bits))
}
