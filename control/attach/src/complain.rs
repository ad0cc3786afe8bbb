//! Log lines that a hostile peer cannot turn into a flood.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Lines allowed at once.
const BURST: u32 = 5;
/// Time in which another one is earned.
const REFILL: Duration = Duration::from_secs(10);

/// Warnings about one port, rate-limited: the first few at once, then one each ten seconds, which says how many
/// were left out.
#[derive(Debug)]
pub struct Complaints {
    who: String,
    tokens: u32,
    last: Instant,
    left_out: u64,
}

impl Complaints {
    /// About the port at `who`.
    #[must_use]
    pub fn new(who: String, now: Instant) -> Self {
        Self { who, tokens: BURST, last: now, left_out: 0 }
    }

    /// Whom they are about.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Logs `what`, or counts it. Returns true if it was logged.
    pub fn say(&mut self, now: Instant, what: &dyn Display) -> bool {
        let since = now.saturating_duration_since(self.last);
        let earned = since.as_secs() / REFILL.as_secs();
        if earned > 0 {
            self.tokens =
                self.tokens.saturating_add(u32::try_from(earned).unwrap_or(BURST)).min(BURST);
            self.last = now;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            self.left_out += 1;
            return false;
        };
        self.tokens = left;
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            log::warn!("{}: {what} (and {left_out} more complaints)", self.who);
        } else {
            log::warn!("{}: {what}", self.who);
        }
        true
    }
}

/// An error with all its causes, as one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Time between two lines of a kind that a peer can bring about as often as it likes.
const QUIET: Duration = Duration::from_secs(1);

/// A line may be logged, for the last one is long ago. Then this is the last one.
pub fn is_due(last: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
    if due {
        *last = Some(now);
    }
    due
}
