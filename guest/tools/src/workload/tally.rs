//! What a run counts, and when its measured stretch begins and ends.

use super::Task;
use vmlan_transport::numbers::{limit32, nanos};

/// What the application counts.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) corrupt: u64,
    pub(crate) connections: u64,
    count: u64,
    warmup: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Messages, bytes and time at the end of the warm-up.
    warm: Option<(u64, u64, u64)>,
    sends: bool,
}

impl Tally {
    pub(crate) fn new(task: &Task) -> Self {
        Self {
            messages: 0,
            bytes: 0,
            lost: 0,
            out_of_order: 0,
            corrupt: 0,
            connections: 0,
            count: task.count,
            warmup: nanos(task.warmup),
            first_ns: None,
            last_ns: 0,
            warm: None,
            sends: task.workload.calls(),
        }
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
            self.warm = Some((self.messages, self.bytes, now));
        }
        over
    }

    /// Messages and bytes of the measured stretch.
    pub(crate) fn measured(&self) -> (u64, u64) {
        let base = self.warm.map_or((0, 0), |(messages, bytes, _)| (messages, bytes));
        (self.messages - base.0, self.bytes - base.1)
    }

    /// How long the measured stretch lasted: a sender's ends now, a receiver's with its last
    /// message.
    pub(crate) fn nanos(&self, now: u64) -> u64 {
        let end = if self.sends { now } else { self.last_ns };
        let start = self.warm.map(|(_, _, at)| at).or(self.first_ns);
        start.map_or(0, |start| end.saturating_sub(start))
    }
}
