//! Log lines that a peer causes: it must not be able to cause a flood of them.

use std::time::{Duration, Instant};

/// Lines allowed at once.
const BURST: u32 = 6;

/// Time in which another one is earned.
const REFILL: Duration = Duration::from_secs(10);

/// Counts the lines of one port.
#[derive(Debug)]
pub(crate) struct LogLimit {
    tokens: u32,
    /// When the last one was earned.
    earned: Instant,
    left_out: u64,
}

impl LogLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { tokens: BURST, earned: now, left_out: 0 }
    }

    /// Whether a line may be logged at `now`, and how many were left out before it.
    pub(crate) fn allow(&mut self, now: Instant) -> Option<u64> {
        while self.tokens < BURST && now.saturating_duration_since(self.earned) >= REFILL {
            self.tokens += 1;
            self.earned += REFILL;
        }
        if self.tokens == BURST {
            self.earned = now;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            self.left_out += 1;
            return None;
        };
        self.tokens = left;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_events_is_a_few_lines_a_minute() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        // A peer that comes and goes 50 times a second, for a day.
        let ms = |n| start + Duration::from_millis(n);
        let lines: Vec<u64> =
            (0..86_400_000).step_by(100).filter_map(|n| limit.allow(ms(n))).collect();
        assert!(lines.len() <= 8_646, "{} lines", lines.len());
        assert_eq!(lines[..6], [0; 6]);
        let told: u64 = lines.iter().sum();
        assert!(told > 800_000, "the next line says how many were left out: {told}");
    }

    #[test]
    fn what_happens_now_and_then_is_always_logged() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        let times = (0..1000).map(|n| start + Duration::from_secs(10 * n));
        assert!(times.map(|now| limit.allow(now)).all(|allowed| allowed == Some(0)));
    }
}
