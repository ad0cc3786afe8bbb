//! Limits on a frame's way: what may leave a port now, what may go to another, and what is charged.
//!
//! Tokens are spent for frames that have passed, afterwards: a frame that a full receiver sends
//! back costs nothing. Two workers that share a limit may exceed it by one batch, which is owed
//! then.

use std::ops::Range;

use vmlan_frame::{BATCH, Batch, Gso, Offload, Offloads, Reason, Verdict};

use crate::PortId;
use crate::forward::{Pass, Way};
use crate::policy::{Budget, Limiter, Policy, Turns};

/// How soon to look again at frames that wait for their turn at an uplink, in nanoseconds. Their
/// turn comes when others have had theirs, and no doorbell announces it.
const TURN_NS: u64 = 100_000;

/// How soon a port that shares a limit looks again whether it is its turn, in nanoseconds. No
/// doorbell announces that either.
const SHARED_TURN_NS: u64 = 20_000;

/// Bytes that a frame counts as among ports that share a limit of frames only.
const FRAME: u64 = 1514;

/// Bits of the shortest frame that drivers send.
const SHORT: i64 = 60 * 8;

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
fn cost(batch: &Batch<'_>, i: usize) -> (u64, u64) {
    let offload = if batch.needs() == Offloads::NONE { Offload::NONE } else { batch.offload(i) };
    on_wire(batch.frame_len(i), offload)
}

/// The cost of all frames of the batch together, where that can be told without looking at each.
#[inline]
fn total(batch: &Batch<'_>) -> Option<(u64, u64)> {
    (batch.needs() == Offloads::NONE).then(|| (batch.len() as u64, batch.bytes() * 8))
}

impl Budget {
    /// True if nothing may pass.
    pub(crate) fn is_spent(&self) -> bool {
        self.bits <= 0 || self.frames <= 0
    }

    /// True if it certainly covers the whole batch.
    #[inline]
    fn covers(&self, batch: &Batch<'_>) -> bool {
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
fn shared(policy: &Policy) -> Option<(&Limiter, &Turns)> {
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

fn sum(costs: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
    costs.fold((0, 0), |(n, b), (frames, bits)| (n + frames, b + bits))
}

impl Pass<'_> {
    /// How many of the batch's frames the source may send now. The others stay in its ring.
    pub(crate) fn admit(&mut self, batch: &mut Batch<'_>) -> usize {
        let Some(budget) = self.budget.filter(|b| !b.covers(batch)) else { return batch.len() };
        let admitted = covered(batch, 0..batch.len(), budget);
        if admitted < batch.len() {
            (admitted..batch.len()).for_each(|i| batch.hold(i));
            self.done.paused = true;
        }
        admitted
    }

    /// Charges the source for those admitted frames that are finished with. Frames that a full
    /// receiver sent back come again.
    pub(crate) fn settle(&mut self, batch: &Batch<'_>, admitted: usize) {
        let from = &self.entry.policy.from;
        if from.is_none() {
            return;
        }
        // Those that were not admitted are held.
        let gone = || (0..admitted).filter(|i| batch.verdict(*i) == Verdict::Done);
        let (frames, bits) = total(batch)
            .filter(|_| !batch.any_held())
            .unwrap_or_else(|| sum(gone().map(|i| cost(batch, i))));
        from.passed(frames, bits);
        if let Some(Budget { bits: left, frames: count }) = &mut self.budget {
            *left = left.saturating_sub_unsigned(bits);
            *count = count.saturating_sub_unsigned(frames);
        }
        self.sent.0 += frames;
        self.sent.1 += bits;
        self.finished += if batch.any_held() { gone().count() } else { batch.len() };
        self.more |= batch.len() >= BATCH / 2;
        if admitted < batch.len() {
            from.held((batch.len() - admitted) as u64);
            self.more = true;
            self.wait(wait_from(&self.entry.policy, self.now));
        }
    }

    /// Charges the source for those of the `finished` frames that its port dropped by itself. Else
    /// a guest could keep its worker busy with such frames.
    pub(crate) fn charge_unseen(&mut self, finished: usize) {
        let unseen = finished.saturating_sub(self.finished) as u64;
        if unseen > 0 && !self.entry.policy.from.is_none() {
            let bits = unseen * SHORT.unsigned_abs();
            self.entry.policy.from.passed(unseen, bits);
            self.sent = (self.sent.0 + unseen, self.sent.1 + bits);
        }
    }

    /// Charges the source for frames that its port read only to drop them: they cost as much time
    /// and memory bandwidth as others.
    pub(crate) fn charge_skipped(&mut self, frames: usize, bytes: u64) {
        self.finished += frames;
        if !self.entry.policy.from.is_none() {
            let (frames, bits) = (frames as u64, bytes.saturating_mul(8));
            self.entry.policy.from.passed(frames, bits);
            self.sent = (self.sent.0 + frames, self.sent.1 + bits);
        }
    }

    /// At the end of a breath: lets the ports that share its limit know what it took, and whether
    /// it waits for more.
    pub(crate) fn report_to_turns(&self) {
        let policy = &self.entry.policy;
        let (frames, bits) = self.sent;
        if let Some((limiter, turns)) = shared(policy)
            && (frames > 0 || turns.is_waiting(self.source))
        {
            let bytes = if limiter.bits.is_some() { bits / 8 } else { frames * FRAME };
            turns.sent(self.source, policy.weight, bytes, self.more, self.now);
        }
    }

    /// Leaves the queue of the uplink that the source waited for, if it no longer does: a source
    /// that is not looked at, or has nothing left, must not hold others up.
    pub(crate) fn leave_uplink(&self, waited: Option<PortId>) {
        let Some(uplink) = waited.filter(|_| self.uplink != waited) else { return };
        let queue = self.table.get(uplink).and_then(|e| e.policy.uplink.as_ref());
        if let Some(queue) = queue {
            queue.sent(self.source, self.entry.policy.weight, 0, false, self.now);
        }
    }

    fn wait(&mut self, ns: u64) {
        let wait = &mut self.done.wait_ns;
        *wait = Some(ns.min(wait.unwrap_or(u64::MAX)));
    }

    /// How many of the frames of `list` may go to `to` now: as many as it has tokens for, and at an
    /// uplink only when it is the source's turn.
    pub(crate) fn allowed(&mut self, batch: &Batch<'_>, to: PortId, list: &[u16]) -> usize {
        let Some(entry) = self.table.get(to) else { return list.len() };
        let limits = &entry.policy.to;
        let mut allowed = list.len();
        let indices = || list.iter().map(|i| usize::from(*i));
        let uplink = entry.policy.uplink.as_deref();
        if !limits.is_none() {
            let budget = budget_to(&entry.policy, self.now);
            if !budget.covers(batch) {
                allowed = covered(batch, indices(), budget);
            }
        }
        let Some(queue) = uplink else { return allowed };
        if allowed < list.len() {
            self.wait(limits.wait(self.now).max(1));
        }
        let bytes = queue.grant(self.source, self.entry.policy.weight, self.now);
        if bytes != u64::MAX {
            let turn = Budget { bits: in_bits(bytes), frames: i64::MAX };
            let turn = covered(batch, indices(), turn);
            if turn < allowed {
                allowed = turn;
                self.wait(TURN_NS);
            }
        }
        allowed
    }

    /// The frames of `list` may not go to `to` now; nothing has been spent on them. They wait for
    /// an uplink, and are dropped for other ports.
    pub(crate) fn not_allowed(&mut self, batch: &mut Batch<'_>, to: PortId, list: &[u16]) {
        let Some(entry) = self.table.get(to).filter(|_| !list.is_empty()) else { return };
        if entry.policy.uplink.is_some() {
            return self.wait_at_uplink(batch, to, list);
        }
        list.iter().for_each(|i| batch.set_dropped(usize::from(*i), Reason::OverLimit));
        entry.policy.to.dropped(list.len() as u64);
        entry.port.counters().output.drop(Reason::OverLimit, list.len() as u64);
    }

    /// Frames that an uplink has no tokens for, or whose turn has not come: those for the uplink
    /// alone are held. Tokens and turns are certain to come, so no account is kept of this waiting.
    fn wait_at_uplink(&mut self, batch: &mut Batch<'_>, to: PortId, rest: &[u16]) {
        let mut held = 0;
        for i in rest.iter().map(|i| usize::from(*i)) {
            if self.state.ways.get(i) == Some(&Way::To(to)) {
                batch.hold(i);
                held += 1;
            } else {
                batch.set_dropped(i, Reason::OverLimit);
            }
        }
        if let Some(entry) = self.table.get(to) {
            entry.policy.to.held(held);
            let dropped = rest.len() as u64 - held;
            entry.policy.to.dropped(dropped);
            entry.port.counters().output.drop(Reason::OverLimit, dropped);
        }
    }

    /// The frames of `list` went to `to`. `more`: other frames of this source for it found no room
    /// or no tokens.
    pub(crate) fn pushed(&mut self, batch: &Batch<'_>, to: PortId, list: &[u16], more: bool) {
        let Some(entry) = self.table.get(to) else { return };
        let policy = &entry.policy;
        if policy.to.is_none() && policy.uplink.is_none() {
            return;
        }
        let all = total(batch).filter(|_| list.len() == batch.len());
        let (frames, bits) =
            all.unwrap_or_else(|| sum(list.iter().map(|i| cost(batch, usize::from(*i)))));
        policy.to.passed(frames, bits);
        if let Some(queue) = &policy.uplink {
            // A source that sent half a batch probably has more. It counts as waiting, or others
            // would take its turn until its next breath.
            let waits = more || list.len() >= BATCH / 2 || self.uplink == Some(to);
            self.uplink = if waits { Some(to) } else { self.uplink };
            queue.sent(self.source, self.entry.policy.weight, bits / 8, waits, self.now);
        }
    }
}
