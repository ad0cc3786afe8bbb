//! The log lines of one port. A hostile peer cannot cause a flood of them.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Warnings allowed at once.
const BURST: u32 = 5;
/// Time in which another one is earned.
const REFILL: Duration = Duration::from_secs(10);
/// Shortest time between two lines about peers that come, or that go: a peer can do either tens of
/// thousands of times in a second.
const QUIET: Duration = Duration::from_secs(1);

/// The log of one port. Of warnings the first few are logged at once, then one each ten seconds,
/// which says how many were left out.
#[derive(Debug)]
pub struct PortLog {
    port: String,
    tokens: u32,
    last: Instant,
    left_out: u64,
    /// When the end of a connection was last logged.
    goodbye: Option<Instant>,
    /// When a ready driver was last logged.
    welcome: Option<Instant>,
    /// This was logged for the present connection: a guest can stop and start its driver as often
    /// as it likes.
    welcomed: bool,
}

impl PortLog {
    /// The log of the port that lines call `port`.
    #[must_use]
    pub fn new(port: String, now: Instant) -> Self {
        Self {
            port,
            tokens: BURST,
            last: now,
            left_out: 0,
            goodbye: None,
            welcome: None,
            welcomed: false,
        }
    }

    /// Logs a warning, or counts it. Returns true if it was logged.
    pub fn warn(&mut self, now: Instant, what: &dyn Display) -> bool {
        let earned = now.saturating_duration_since(self.last).as_secs() / REFILL.as_secs();
        if earned > 0 {
            // More than a burst is never kept.
            let earned = u32::try_from(earned).unwrap_or(BURST);
            self.tokens = self.tokens.saturating_add(earned).min(BURST);
            self.last = now;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            self.left_out += 1;
            return false;
        };
        self.tokens = left;
        match std::mem::take(&mut self.left_out) {
            0 => log::warn!("{}: {what}", self.port),
            n => log::warn!("{}: {what} (and {n} more warnings)", self.port),
        }
        true
    }

    /// A peer has connected.
    pub fn connected(&mut self) {
        self.welcomed = false;
    }

    /// The driver behind this connection is ready: one line, for the first time.
    pub fn ready(&mut self, peer: &str) {
        if !self.welcomed && is_due(&mut self.welcome) {
            self.welcomed = true;
            log::info!("{}: {peer} has connected and its driver is ready", self.port);
        }
    }

    /// The connection has ended as it should.
    pub fn goodbye(&mut self, peer: &str) {
        if is_due(&mut self.goodbye) {
            log::info!("{}: {peer} closed the connection", self.port);
        }
    }
}

/// True if the last line is long enough ago for another one. Then this is the last one.
fn is_due(last: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
    if due {
        *last = Some(now);
    }
    due
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
