//! Request and response, one at a time: what is under way, and how long each took.

use std::time::Duration;

use super::{Tally, Task, byte};
use crate::pktgen::{Histogram, Latency, RateLimiter};
use vmlan_transport::numbers::nanos;

const TIMEOUT_NS: u64 = 1_000_000_000; // A datagram without an answer for so long is lost.

/// What becomes of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// It may still come.
    Wait,
    /// It is lost: the next one goes.
    Lost,
    /// Nobody has ever answered.
    NoAnswer,
}

/// The client's requests. Time is an argument: nanoseconds since the run began.
pub(crate) struct Requests {
    request: Vec<u8>,
    /// When the request that is under way was sent.
    sent: Option<u64>,
    /// The first answer takes finding the way as well, and is not counted.
    warm: bool,
    pace: RateLimiter,
    histogram: Histogram,
    patience: u64,
}

impl Requests {
    pub(crate) fn new(task: &Task) -> Self {
        Self {
            request: (0..task.size() as usize).map(byte).collect(),
            sent: None,
            warm: false,
            pace: RateLimiter::new(task.rate, 1),
            histogram: Histogram::new(),
            patience: nanos(task.patience),
        }
    }

    /// The bytes of the last one.
    pub(crate) fn last(&self) -> &[u8] {
        &self.request
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.sent.is_some()
    }

    /// Is another one due at `now`?
    pub(crate) fn is_due(&mut self, now: u64) -> bool {
        self.pace.allow(now, 1) > 0
    }

    /// The next one's bytes, which leave at `now`.
    pub(crate) fn begin(&mut self, now: u64) -> &[u8] {
        self.pace.spend(1);
        self.request[0] = self.request[0].wrapping_add(1);
        self.sent = Some(now);
        &self.request
    }

    /// The answer came at `now`.
    pub(crate) fn answered(&mut self, tally: &mut Tally, now: u64) {
        let Some(sent) = self.sent.take() else { return };
        if std::mem::replace(&mut self.warm, true) {
            self.histogram.add(now.saturating_sub(sent));
            tally.add(now, 1, self.request.len() as u64);
        } else {
            tally.start(now);
        }
    }

    /// There is no answer at `now`, over a path that may lose it, or not.
    pub(crate) fn unanswered(&mut self, tally: &mut Tally, now: u64, loses: bool) -> Unanswered {
        let Some(sent) = self.sent else { return Unanswered::Wait };
        if !self.warm && now >= self.patience {
            return Unanswered::NoAnswer;
        }
        if !loses || now.saturating_sub(sent) < TIMEOUT_NS {
            return Unanswered::Wait;
        }
        tally.lost += u64::from(self.warm);
        self.sent = None;
        Unanswered::Lost
    }

    /// How long until one is due, if none is under way.
    pub(crate) fn pause(&self, now: u64) -> Option<Duration> {
        let pause = self.pace.until(now);
        (self.sent.is_none() && !pause.is_zero()).then_some(pause)
    }

    /// What was measured so far does not count.
    pub(crate) fn warm(&mut self) {
        self.histogram = Histogram::new();
    }

    pub(crate) fn latency(&self) -> Option<Latency> {
        self.histogram.latency()
    }
}
