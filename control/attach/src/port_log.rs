//! The log lines of one port. A hostile peer cannot cause a flood of them.

use std::fmt::Display;
use std::time::{Duration, Instant};

use vmlan_frame::LogLimit;

/// Shortest time between two lines about peers that come, or that go: a peer can do either tens of
/// thousands of times in a second.
const QUIET: Duration = Duration::from_secs(1);

/// The log of one port.
#[derive(Debug)]
pub struct PortLog {
    port: String,
    start: Instant,
    limit: LogLimit,
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
    pub fn new(port: String, now: Instant) -> Self {
        Self {
            port,
            start: now,
            limit: LogLimit::default(),
            goodbye: None,
            welcome: None,
            welcomed: false,
        }
    }

    /// Logs a warning, or counts it. Returns true if it was logged.
    pub fn warn(&mut self, now: Instant, what: &dyn Display) -> bool {
        match self.limit.allow(now.saturating_duration_since(self.start)) {
            None => return false,
            Some(0) => log::warn!("{}: {what}", self.port),
            Some(n) => log::warn!("{}: {what} (and {n} more warnings)", self.port),
        }
        true
    }

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
