//! What a run counts, and when its measured stretch begins and ends.

use super::Task;
use vmlan_transport::numbers::{limit32, nanos};

/// What the application counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) corrupt: u64,
    /// Of the whole run.
    pub(crate) connections: u64,
    count: u64,
    warmup: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Counts and time at the end of the warm-up.
    warm: Option<(Counts, u64)>,
    sends: bool,
}

/// What was counted in a stretch of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) corrupt: u64,
}

impl Tally {
    pub(crate) fn new(task: &Task) -> Self {
        let (count, warmup, sends) = (task.count, nanos(task.warmup), task.workload.calls());
        Self { count, warmup, sends, ..Self::default() }
    }

    /// So many messages with so many bytes of payload went on at `now`.
    #[inline]
    pub(crate) fn add(&mut self, now: u64, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
        self.start(now);
    }

    /// The measured stretch begins at `now`, unless it did.
    pub(crate) fn start(&mut self, now: u64) {
        self.first_ns.get_or_insert(now);
        self.last_ns = now;
    }

    /// Messages still to go, as far as one pass is concerned.
    pub(crate) fn left(&self) -> u32 {
        let left = self.count.saturating_sub(self.messages);
        if self.count == 0 { u32::MAX } else { limit32(left) }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Has something gone or come?
    pub(crate) fn has_begun(&self) -> bool {
        self.first_ns.is_some()
    }

    /// Has something come, but nothing for so long?
    pub(crate) fn silent(&self, now: u64, nanos: u64) -> bool {
        self.first_ns.is_some() && now.saturating_sub(self.last_ns) >= nanos
    }

    /// Is this the moment when the warm-up ends?
    pub(crate) fn warm(&mut self, now: u64) -> bool {
        let over = self.warm.is_none()
            && self.warmup > 0
            && self.first_ns.is_some_and(|first| now >= first + self.warmup);
        if over {
            self.warm = Some((self.counts(), now));
        }
        over
    }

    fn counts(&self) -> Counts {
        let Self { messages, bytes, lost, out_of_order, corrupt, .. } = *self;
        Counts { messages, bytes, lost, out_of_order, corrupt }
    }

    /// Has the measured stretch begun?
    pub(crate) fn is_measured(&self) -> bool {
        self.warmup == 0 || self.warm.is_some()
    }

    /// Of the measured stretch; nothing, if the warm-up has not ended.
    pub(crate) fn measured(&self) -> Counts {
        let all = self.counts();
        let before =
            if self.warmup == 0 { Counts::default() } else { self.warm.map_or(all, |w| w.0) };
        Counts {
            messages: all.messages - before.messages,
            bytes: all.bytes - before.bytes,
            // What was lost before may have come since.
            lost: all.lost.saturating_sub(before.lost),
            out_of_order: all.out_of_order - before.out_of_order,
            corrupt: all.corrupt - before.corrupt,
        }
    }

    /// How long the measured stretch lasted: a sender's ends now, a receiver's with its last
    /// message.
    pub(crate) fn nanos(&self, now: u64) -> u64 {
        let end = if self.sends { now } else { self.last_ns };
        let start = if self.warmup == 0 { self.first_ns } else { self.warm.map(|(_, at)| at) };
        start.map_or(0, |start| end.saturating_sub(start))
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Tally};
    use crate::workload::{Task, Totals, Workload};
    use std::time::Duration;

    fn sink() -> (Task, Tally) {
        let mut task = Task::new(Workload::UdpSink);
        task.warmup = Duration::from_nanos(100);
        let mut tally = Tally::new(&task);
        tally.add(1000, 5, 40);
        (tally.lost, tally.out_of_order, tally.corrupt) = (3, 2, 1);
        (task, tally)
    }

    #[test]
    fn what_was_counted_in_the_warm_up_is_taken_away() {
        let (_, mut tally) = sink();
        assert!(!tally.warm(1099) && tally.warm(1100) && !tally.warm(1200));
        tally.add(1300, 7, 56);
        (tally.lost, tally.out_of_order, tally.corrupt) = (13, 22, 31);
        let expected = Counts { messages: 7, bytes: 56, lost: 10, out_of_order: 20, corrupt: 30 };
        assert_eq!((tally.measured(), tally.nanos(1400)), (expected, 200));
        // Two of the warm-up came late.
        tally.lost = 1;
        assert_eq!(tally.measured().lost, 0);
    }

    #[test]
    fn a_warm_up_that_does_not_end_leaves_nothing_to_measure() {
        let (task, mut tally) = sink();
        tally.add(1050, 1, 8);
        assert!(!tally.warm(1099));
        let totals = Totals::new(&task, &tally, None, (1099, Duration::ZERO));
        assert_eq!((tally.measured(), tally.nanos(1099)), (Counts::default(), 0));
        assert_eq!((totals.messages, totals.lost, totals.corrupt), (0, 0, 0), "{totals}");
    }
}
