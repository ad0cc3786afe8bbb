//! What a keeper may use of the processor. Allocates nothing.
//!
//! A peer decides how much its keeper has to do: each message with descriptors is received, looked
//! at and passed on here, and memory whose last descriptor it was is freed here. None of that is
//! charged to the peer's process. So a keeper that has used more than a hundredth of a core for
//! long sleeps after each request, and whoever sends them waits.

use std::time::{Duration, Instant};

use crate::sys::cpu_time;

/// One part in so many of a core may be used for long.
const PART: u32 = 100;
/// CPU time beyond that which is there at once: a VMM's start needs a few milliseconds of it,
/// and keepers of many ports may want theirs at the same time.
const BURST: Duration = Duration::from_millis(20);
/// Longest sleep: the port waits for an answer meanwhile, and takes a keeper that is silent for
/// seconds for parked.
const LONGEST: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    owed: Duration,
    at: Instant,
    used: Duration,
}

impl Budget {
    pub fn new() -> Self {
        Self { owed: Duration::ZERO, at: Instant::now(), used: cpu_time() }
    }

    /// Sleeps if too much was used.
    pub fn keep(&mut self) {
        let wait = self.account(Instant::now(), cpu_time());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// How long to sleep, if by `now` so much was used.
    fn account(&mut self, now: Instant, used: Duration) -> Duration {
        let earned = now.saturating_duration_since(self.at) / PART;
        self.owed = (self.owed + used.saturating_sub(self.used)).saturating_sub(earned);
        (self.at, self.used) = (now, used);
        (self.owed.saturating_sub(BURST) * PART).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU time used in 20 s by requests that take so much, one after the other.
    fn used_by(request: Duration) -> Duration {
        let start = Instant::now();
        let mut budget = Budget { owed: Duration::ZERO, at: start, used: Duration::ZERO };
        let (mut now, mut used) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(20) {
            (now, used) = (now + request, used + request);
            now += budget.account(now, used);
        }
        used
    }

    #[test]
    fn a_flood_gets_a_hundredth_of_a_core() {
        for micros in [10, 100, 2000] {
            let used = used_by(Duration::from_micros(micros)).as_millis();
            assert!((215..=225).contains(&used), "{micros} us each: {used} ms in 20 s");
        }
    }

    #[test]
    fn who_asks_for_little_never_waits() {
        let start = Instant::now();
        let mut budget = Budget { owed: Duration::ZERO, at: start, used: Duration::ZERO };
        for n in 1..10_000 {
            let (now, used) = (start + Duration::from_millis(n), Duration::from_micros(9));
            let used = used * u32::try_from(n).unwrap();
            assert_eq!(budget.account(now, used), Duration::ZERO);
        }
    }
}
