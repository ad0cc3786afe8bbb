//! What the limits on a frame's way let pass in a breath, and whom they charge.
//!
//! Tokens are spent for frames that have passed, afterwards: a frame that a full receiver sends
//! back costs nothing. Two workers that share a limit may exceed it by one batch, which is owed
//! then.

use vmlan_frame::{BATCH, Batch, Reason, Verdict};

use super::{Pass, Way};
use crate::PortId;
use crate::meter::{
    FRAME, SHORT, budget_to, cost, covered, in_bits, shared, sum, total, wait_from,
};
use crate::policy::Budget;

/// How soon to look again at frames that wait for their turn at an uplink, in nanoseconds. Their
/// turn comes when others have had theirs, and no doorbell announces it.
const TURN_NS: u64 = 100_000;

impl Pass<'_> {
    /// How many of the batch's frames the source may send now. The others stay in its ring.
    pub(super) fn admit(&mut self, batch: &mut Batch<'_>) -> usize {
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
    pub(super) fn settle(&mut self, batch: &Batch<'_>, admitted: usize) {
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
    pub(super) fn charge_unseen(&mut self, finished: usize) {
        let unseen = finished.saturating_sub(self.finished) as u64;
        if unseen > 0 && !self.entry.policy.from.is_none() {
            let bits = unseen * SHORT.unsigned_abs();
            self.entry.policy.from.passed(unseen, bits);
            self.sent = (self.sent.0 + unseen, self.sent.1 + bits);
        }
    }

    /// Charges the source for frames that its port read only to drop them: they cost as much time
    /// and memory bandwidth as others.
    pub(super) fn charge_skipped(&mut self, frames: usize, bytes: u64) {
        self.finished += frames;
        if !self.entry.policy.from.is_none() {
            let (frames, bits) = (frames as u64, bytes.saturating_mul(8));
            self.entry.policy.from.passed(frames, bits);
            self.sent = (self.sent.0 + frames, self.sent.1 + bits);
        }
    }

    /// At the end of a breath: lets the ports that share its limit know what it took, and whether
    /// it waits for more.
    pub(super) fn report_to_turns(&self) {
        let policy = &self.entry.policy;
        let (frames, bits) = self.sent;
        if let Some((limiter, turns)) = shared(policy)
            && (frames > 0 || turns.is_waiting(self.source))
        {
            let bytes = if limiter.bits.is_some() { bits / 8 } else { frames * FRAME };
            turns.sent(self.source, policy.weight, bytes, self.more, self.now);
        }
    }

    /// Leaves the queue of the uplink that the source waited for, if it no longer does, by no lane
    /// of this worker: a source that is not looked at, or has nothing left, must not hold others
    /// up.
    pub(super) fn leave_uplink(&self, waited: Option<PortId>) {
        let Some(uplink) = waited.filter(|_| self.uplink != waited) else { return };
        let others = self.state.at_uplink.get(self.source.index());
        if others.is_some_and(|others| others.contains(&waited)) {
            return;
        }
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
