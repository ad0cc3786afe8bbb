//! What a source's lane waits for between its breaths.

use super::Pass;
use crate::PortId;

/// The oldest frame of a lane that is held for a full receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    receiver: PortId,
    /// When it was held first.
    since: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// The uplink whose tokens, or its turn at which, it waits for.
    pub(super) uplink: Option<PortId>,
    /// The oldest held frame after this breath, and after the one before it.
    oldest: Option<Oldest>,
    before: Option<Oldest>,
}

impl Waiting {
    /// What is known when the next breath begins.
    pub(super) fn next(self) -> Self {
        Self { before: self.oldest, ..Self::default() }
    }

    /// There was no breath, and it is in no uplink's queue.
    pub(super) fn without_turn(self) -> Self {
        Self { uplink: None, ..self }
    }

    /// A frame, perhaps the `first` of the lane, is held for `receiver`, which is full. A port
    /// lends what was held before anything else, and in the same order. Returns since when the
    /// first one has been waiting.
    fn note(&mut self, first: bool, receiver: PortId, now: u64) -> Option<u64> {
        let same = self.before.filter(|before| first && before.receiver == receiver);
        if same.is_some() {
            self.oldest = same;
        } else if self.oldest.is_none() || (first && self.oldest != self.before) {
            self.oldest = Some(Oldest { receiver, since: now });
        }
        same.map(|oldest| oldest.since)
    }
}

impl Pass<'_> {
    /// Frame `i` is held for `to`, which is full. If it has been, for too long, its source does not
    /// wait for that receiver any more, whatever that one takes from others.
    #[cold]
    pub(super) fn note_full(&mut self, i: usize, to: PortId) {
        let now = self.now;
        let (source, since) = if self.mixed {
            let senders = &mut self.state.senders;
            let behind = senders.partition_point(|sender| sender.first <= i);
            let Some(sender) = behind.checked_sub(1).and_then(|at| senders.get_mut(at)) else {
                return;
            };
            (sender.source, sender.waits.note(i == sender.first, to, now))
        } else {
            (self.source, self.waits.note(i == self.first, to, now))
        };
        if let Some(since) = since {
            self.switch.waits.give_up(to, source, since, now);
        }
    }
}
