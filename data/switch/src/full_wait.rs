//! How long a full receiver may be waited for.
//!
//! A frame for a full receiver waits in its sender's ring, and so do the frames behind it. Between
//! honest guests that is back-pressure; otherwise it is an attack: a guest that stops receiving
//! must cost its senders almost nothing. So waiting is paid for: each frame a receiver takes earns
//! [`EARN_NS`] of it, a long one for each 1514 bytes, up to the switch's `full_wait`. A receiver of
//! 50,000 frames/s or of 600 Mbit/s can be waited for all the time. One that takes nothing is
//! waited for once, and then its frames are dropped and counted until it takes some.
//!
//! What a receiver takes from some earns waiting for others as well, so one that takes small frames
//! could hold the sender of a large one for ever, or by one of two queues who sends to the other.
//! Therefore a source gives a receiver up that has held up one of its lanes for [`PATIENCE`] times
//! `full_wait` (`forward/heads.rs`), and took less of it meanwhile than would be its part if
//! [`SHARERS`] shared the receiver: for a while its frames are dropped where they find no room.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{MAX_PORTS, PortId};

const EARN_NS: u64 = 20_000; // Waiting time earned by taking a frame of the usual length.

/// How many times `full_wait` a source is held up by one receiver. Many senders that share a slow
/// one may each have to wait for all others' bursts.
const PATIENCE: u64 = 4;

/// How many senders a receiver may have that takes just enough to be waited for all the time.
const SHARERS: u64 = 64;

/// How many times `full_wait` the periods last at whose end all that was given up is forgotten.
const PERIOD: u64 = 256;

/// Who has given a receiver up.
#[derive(Debug, Default)]
struct GivenUp {
    /// The period, from 1 on, in which these did.
    period: AtomicU64,
    sources: [AtomicU64; MAX_PORTS / 64],
}

#[derive(Debug)]
struct Wait {
    /// Nanoseconds this receiver may still be waited for.
    credit: AtomicU64,
    /// When the present wait began; 0: nobody waits.
    since: AtomicU64,
}

/// The accounts of all receivers. Several workers may update one at once; an update lost costs a
/// few microseconds of somebody's waiting and nothing else.
#[derive(Debug)]
pub(crate) struct Waits {
    accounts: Box<[Wait]>,
    given_up: Box<[GivenUp]>,
    /// Somebody has given somebody up until then.
    until: AtomicU64,
    most: u64,
}

impl Waits {
    pub(crate) fn new(full_wait: Duration) -> Self {
        let most = crate::nanos(full_wait);
        let new = |_| Wait { credit: AtomicU64::new(most), since: AtomicU64::new(0) };
        let given_up = (0..MAX_PORTS).map(|_| GivenUp::default()).collect();
        Self {
            accounts: (0..MAX_PORTS).map(new).collect(),
            given_up,
            until: AtomicU64::new(0),
            most,
        }
    }

    #[allow(clippy::indexing_slicing)] // as above, and of `sources`
    fn given_up(&self, to: PortId, source: PortId) -> (&GivenUp, &AtomicU64, u64) {
        let given_up = &self.given_up[to.index()];
        let (word, bit) = (source.index() / 64, source.index() % 64);
        (given_up, &given_up.sources[word], 1 << bit)
    }

    /// The longest that anybody is waited for in one go, in nanoseconds.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The length of periods, in nanoseconds.
    pub(crate) fn period(&self) -> u64 {
        self.most.saturating_mul(PERIOD).max(1)
    }

    fn number(&self, now: u64) -> u64 {
        now / self.period() + 1
    }

    /// True if a source that has waited for so long gives up.
    pub(crate) fn is_too_long(&self, ns: u64) -> bool {
        ns >= self.most.saturating_mul(PATIENCE)
    }

    /// How much longer a source waits for a receiver that has taken so many of its frames.
    pub(crate) fn earned(frames: usize) -> u64 {
        EARN_NS.saturating_mul(SHARERS).saturating_mul(frames as u64)
    }

    /// From now on, until the period ends, `source` does not wait for `to`.
    pub(crate) fn give_up(&self, to: PortId, source: PortId, now: u64) {
        let (given_up, word, bit) = self.given_up(to, source);
        let period = self.number(now);
        if given_up.period.swap(period, Ordering::Relaxed) != period {
            given_up.sources.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        word.fetch_or(bit, Ordering::Relaxed);
        self.until.fetch_max(period.saturating_mul(self.period()), Ordering::Relaxed);
    }

    /// True if frames of `source` are not to wait for `to`, whatever its account says.
    pub(crate) fn is_given_up(&self, to: PortId, source: PortId, now: u64) -> bool {
        let (given_up, word, bit) = self.given_up(to, source);
        given_up.period.load(Ordering::Relaxed) == self.number(now)
            && word.load(Ordering::Relaxed) & bit != 0
    }

    /// True if some source may have given up some receiver.
    #[inline]
    pub(crate) fn are_some_given_up(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    #[allow(clippy::indexing_slicing)] // a PortId is below MAX_PORTS, the length of `accounts`
    fn account(&self, port: PortId) -> &Wait {
        &self.accounts[port.index()]
    }

    pub(crate) fn reset(&self, port: PortId) {
        let a = self.account(port);
        a.credit.store(self.most, Ordering::Relaxed);
        a.since.store(0, Ordering::Relaxed);
        for index in 0..MAX_PORTS {
            let Some(other) = PortId::new(index) else { continue };
            let (.., word, bit) = self.given_up(other, port);
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        self.given_up(port, port).0.period.store(0, Ordering::Relaxed);
    }

    /// The receiver took `frames` of the usual length (at least one), which are counted only if
    /// that matters.
    #[inline]
    pub(crate) fn took(&self, port: PortId, frames: impl FnOnce() -> usize, now: u64) {
        let a = self.account(port);
        let since = a.since.load(Ordering::Relaxed);
        let credit = a.credit.load(Ordering::Relaxed);
        if since == 0 && credit >= self.most {
            return;
        }
        let waited = if since == 0 { 0 } else { now.saturating_sub(since) };
        let earned = EARN_NS.saturating_mul(frames() as u64);
        let credit = credit.saturating_sub(waited).saturating_add(earned).min(self.most);
        a.credit.store(credit, Ordering::Relaxed);
        a.since.store(0, Ordering::Relaxed);
    }

    /// Nobody waits for the receiver any more, and what was waited until now costs it nothing.
    pub(crate) fn is_over(&self, port: PortId) {
        self.account(port).since.store(0, Ordering::Relaxed);
    }

    /// True if frames wait for the receiver just now.
    pub(crate) fn is_full(&self, port: PortId) -> bool {
        self.account(port).since.load(Ordering::Relaxed) != 0
    }

    /// True if `source` may wait for the receiver at `now`: what [`Waits::full`] would say.
    #[inline(never)]
    pub(crate) fn may(&self, port: PortId, source: Option<PortId>, now: u64) -> bool {
        if source.is_some_and(|source| self.is_given_up(port, source, now)) {
            return false;
        }
        let a = self.account(port);
        let since = a.since.load(Ordering::Relaxed);
        let waited = if since == 0 { 0 } else { now.saturating_sub(since) };
        waited < a.credit.load(Ordering::Relaxed)
    }

    /// The receiver is full at `now`: nanoseconds its frames, if those of one source only, of that
    /// one, may still wait, or `None` to drop them.
    pub(crate) fn full(&self, port: PortId, source: Option<PortId>, now: u64) -> Option<u64> {
        if source.is_some_and(|source| self.is_given_up(port, source, now)) {
            return None;
        }
        let a = self.account(port);
        let credit = a.credit.load(Ordering::Relaxed);
        if credit == 0 {
            return None;
        }
        let since = a.since.load(Ordering::Relaxed);
        if since == 0 {
            a.since.store(now.max(1), Ordering::Relaxed);
            return Some(credit);
        }
        let left = credit.checked_sub(now.saturating_sub(since)).filter(|l| *l > 0);
        if left.is_none() {
            a.credit.store(0, Ordering::Relaxed);
            a.since.store(0, Ordering::Relaxed);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every history of seven looks: senders have waited no longer for a receiver than it had at
    /// first and has earned since, and are told never to wait longer than that.
    #[test]
    fn nobody_is_waited_for_longer_than_he_has_paid_for() {
        const MOST: u64 = 50_000;
        let port = PortId::new(3).unwrap();
        let steps = [0, 10_000, 70_000];
        let waits = Waits::new(Duration::from_nanos(MOST));
        for history in 0..9usize.pow(7) {
            let account = waits.account(port);
            account.credit.store(MOST, Ordering::Relaxed);
            account.since.store(0, Ordering::Relaxed);
            let (mut now, mut rest) = (1_000_000, history);
            let (mut paid, mut waited, mut since) = (MOST, 0, None::<(u64, u64)>);
            for _ in 0..7 {
                now += steps[rest % 3];
                let act = rest / 3 % 3;
                rest /= 9;
                // They were told to wait until then, and did, unless it took frames before.
                if let Some((from, until)) = since.take() {
                    waited += now.min(until) - from;
                }
                if act == 0 {
                    let may = waits.may(port, None, now);
                    let left = waits.full(port, None, now);
                    assert_eq!(may, left.is_some());
                    since = left.map(|left| (now, now + left));
                    assert!(waited + left.unwrap_or(0) <= paid, "history {history}");
                    assert_eq!(waits.is_full(port), left.is_some());
                } else {
                    // One frame, or three.
                    waits.took(port, || act * 2 - 1, now);
                    paid += EARN_NS * (act as u64 * 2 - 1);
                    assert!(!waits.is_full(port));
                }
            }
        }
    }

    /// A receiver that takes nothing is waited for once.
    #[test]
    fn who_takes_nothing_is_waited_for_once() {
        let port = PortId::new(0).unwrap();
        let waits = Waits::new(Duration::from_micros(10));
        assert_eq!(waits.full(port, None, 5), Some(10_000));
        assert_eq!(waits.full(port, None, 9_005), Some(1_000));
        assert_eq!((10_005..10_100).filter_map(|now| waits.full(port, None, now)).count(), 0);
        waits.took(port, || 1, 20_000);
        assert_eq!(waits.full(port, None, 20_000), Some(10_000));
    }
}
