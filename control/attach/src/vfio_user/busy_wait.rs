//! When waiting by looking pays.

use std::time::Duration;

/// How long to look for the next message before sleeping, where that has paid lately: about what
/// sleeping and waking up costs.
const PATIENCE: Duration = Duration::from_micros(8);

/// Whether to look for the next message before sleeping. Looking is tried, and goes on for as long
/// as it finds something; after each time that it did not, it is left for longer. Where the client
/// waits for this very CPU it never finds anything, and would only keep the client from its answer.
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
