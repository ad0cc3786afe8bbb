//! Ctrl-C: a flag that every wait looks at, so that `Drop` guards run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Error;

const TICK: Duration = Duration::from_millis(5);

/// Shared by everything that waits.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Raised by SIGINT, SIGTERM and SIGHUP from now on.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// # Errors
    /// [`Error::Interrupted`] once a signal has arrived.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `time`, or until interrupted.
    ///
    /// # Errors
    /// [`Error::Interrupted`] as in [`Stop::check`].
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.check()?;
            thread::sleep(TICK.min(end.saturating_duration_since(Instant::now())));
        }
        self.check()
    }

    /// Asks `ready` every few milliseconds until it gives a value.
    ///
    /// # Errors
    /// [`Error::Failed`] naming `what` after `limit`, [`Error::Interrupted`], and those of `ready`.
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + limit;
        loop {
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if Instant::now() >= end {
                return Err(Error::Failed(format!("no {what} within {} s", limit.as_secs())));
            }
            self.sleep(TICK)?;
        }
    }
}
