//! What a port says to the log: errors with their causes, and no flood of lines that a peer causes.

use std::error::Error;
use std::time::Duration;

const BURST: u32 = 5; // Lines allowed at once.
const REFILL: Duration = Duration::from_secs(10); // Time in which another one is earned.

/// Counts the lines of one port: the first few are logged at once, then one each ten seconds, which
/// says how many were left out. Time counts from when it was made.
#[derive(Debug)]
pub struct LogLimit {
    tokens: u32,
    /// When the last one was earned.
    earned: Duration,
    left_out: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { tokens: BURST, earned: Duration::ZERO, left_out: 0 }
    }
}

impl LogLimit {
    /// Whether a line may be logged at `now`, and how many were left out before it.
    pub fn allow(&mut self, now: Duration) -> Option<u64> {
        while self.tokens < BURST && now.saturating_sub(self.earned) >= REFILL {
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

/// An error with its causes, in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        // Transparent errors repeat their source.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_events_is_a_few_lines_a_minute() {
        let mut limit = LogLimit::default();
        // A peer that comes and goes 10 times a second, for a day.
        let lines: Vec<u64> = (0..86_400_000)
            .step_by(100)
            .filter_map(|n| limit.allow(Duration::from_millis(n)))
            .collect();
        assert!(lines.len() <= 8_645, "{} lines", lines.len());
        assert_eq!(lines[..5], [0; 5]);
        let told: u64 = lines.iter().sum();
        assert!(told > 800_000, "the next line says how many were left out: {told}");
    }

    #[test]
    fn what_happens_now_and_then_is_always_logged() {
        let mut limit = LogLimit::default();
        let mut times = (0..1000).map(|n| Duration::from_secs(10 * n));
        assert!(times.all(|now| limit.allow(now) == Some(0)));
    }
}
