//! How often a peer may ask for something that costs us more than itself.
//!
//! What a port's thread does on a peer's behalf is not charged to the peer's process. So whoever
//! asks for more than a well-behaved peer ever does waits, in the port's own thread: its messages
//! stay in its socket, and in the end its own calls wait.

use std::time::{Duration, Instant};

/// Pauses end when so much has been earned: waking up for each message would cost more than the
/// message.
const SLICE: Duration = Duration::from_millis(2);

/// So many at once, and one more in each `each`.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    burst: u32,
    each: Duration,
    owed: Duration,
    /// When that much was owed.
    at: Option<Instant>,
    /// Nothing more is served before.
    until: Option<Instant>,
}

impl Budget {
    /// Messages of one front end. QEMU sends some hundred when a guest starts, and for each of 32
    /// queue pairs a dozen; a worker is told of each change, and a table of memory is mapped.
    pub const MESSAGES: Self = Self::new(4096, Duration::from_micros(100));

    /// Connections to one port. Each is opened and closed by two processes, and what it set up is
    /// taken down.
    pub const CONNECTIONS: Self = Self::new(64, Duration::from_millis(20));

    const fn new(burst: u32, each: Duration) -> Self {
        Self { burst, each, owed: Duration::ZERO, at: None, until: None }
    }

    /// One more was served.
    pub fn spend(&mut self, now: Instant) {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.owed = self.owed.saturating_sub(passed) + self.each;
        self.at = Some(now);
        let over = self.owed.saturating_sub(self.each * self.burst);
        self.until = (!over.is_zero()).then(|| now + over + SLICE);
    }

    /// How long to wait before the next; `None`: it may be served.
    #[must_use]
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that are served in so many seconds to whoever always has another.
    fn served(mut budget: Budget, seconds: u64) -> u32 {
        let start = Instant::now();
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(seconds) {
            match budget.left(now) {
                Some(left) => now += left,
                None => {
                    budget.spend(now);
                    (now, count) = (now + Duration::from_micros(1), count + 1);
                }
            }
        }
        count
    }

    #[test]
    fn a_burst_passes_and_a_flood_waits() {
        assert!((13_996..=14_196).contains(&served(Budget::MESSAGES, 1)));
        assert!((103_996..=104_196).contains(&served(Budget::MESSAGES, 10)));
        assert!((560..=570).contains(&served(Budget::CONNECTIONS, 10)));
    }

    #[test]
    fn who_stays_below_never_waits() {
        let (start, mut budget) = (Instant::now(), Budget::MESSAGES);
        for n in 0..20_000 {
            let now = start + Duration::from_micros(110) * n;
            assert_eq!(budget.left(now), None);
            budget.spend(now);
        }
    }
}
