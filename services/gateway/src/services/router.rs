//! When a router advertises itself (RFC 4861, 6.2).

use smoltcp::time::{Duration, Instant};

/// How often it does so unasked: what it says holds three times as long.
const USUAL: Duration = Duration::from_secs(600);
/// How often it tells all at most, however often they ask.
const SOONEST: Duration = Duration::from_secs(3);
/// Seconds for which guests may rely on it.
pub(crate) const LIFETIME: u16 = 1800;

/// A router's clock.
#[derive(Debug)]
pub(crate) struct Router {
    next: Instant,
    last: Option<Instant>,
}

impl Router {
    /// One that has something to say at once.
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now, last: None }
    }

    /// When it tells all.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// All are to be told soon.
    pub(crate) fn hurry(&mut self, now: Instant) {
        let soonest = self.last.map_or(now, |last| (last + SOONEST).max(now));
        self.next = self.next.min(soonest);
    }

    /// True if all are to be told now; it is taken for done.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            (self.next, self.last) = (now + USUAL, Some(now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_all_the_time_is_answered_once_in_three_seconds() {
        let at = Instant::from_millis;
        let mut router = Router::new(at(0));
        assert!(router.is_due(at(0)) && !router.is_due(at(0)));
        let mut told = 0;
        for n in 0..10_000 {
            router.hurry(at(n));
            told += usize::from(router.is_due(at(n)));
        }
        assert_eq!(told, 3);
        assert_eq!(router.due(), at(12_000), "one more for those who came last");
        assert!(router.is_due(at(12_000)) && !router.is_due(at(611_999)));
        assert!(router.is_due(at(612_000)));
    }
}
