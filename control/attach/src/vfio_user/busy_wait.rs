//! When it pays to poll for the next message instead of sleeping.

use std::time::Duration;

/// How long to poll for the next message, while that has paid lately: about what it costs to sleep
/// and wake up.
const PATIENCE: Duration = Duration::from_micros(8);

/// Decides whether to poll for the next message before sleeping. Polling goes on for as long as it
/// finds something. After each time that it does not, it pauses for longer. If the client waits for
/// this very CPU, polling never finds anything and would only delay the client.
#[derive(Debug, Default)]
pub struct BusyWait {
    /// Turns until the next try.
    skip: u32,
    /// Turns to leave after the next failure.
    back_off: u32,
}

impl BusyWait {
    const MOST: u32 = 1023;

    /// How long to look in this turn.
    pub fn patience(&mut self) -> Duration {
        match self.skip.checked_sub(1) {
            None => PATIENCE,
            Some(left) => {
                self.skip = left;
                Duration::ZERO
            }
        }
    }

    /// It found something.
    pub fn hit(&mut self) {
        self.back_off /= 2;
    }

    /// It did not.
    pub fn miss(&mut self) {
        self.back_off = (self.back_off * 2 + 1).min(Self::MOST);
        self.skip = self.back_off;
    }
}
