//! Ctrl-C: a flag that every wait looks at, so that what was started is ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{HarnessError, Result};

/// How often a wait looks.
const TICK: Duration = Duration::from_millis(5);

/// Shared by everything that waits. The default one is never raised.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Raised by SIGINT, SIGTERM and SIGHUP from now on.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))
                .map_err(HarnessError::io("handle signals"))?;
        }
        Ok(stop)
    }

    /// # Errors
    /// [`HarnessError::Interrupted`] once a signal has arrived.
    pub fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(HarnessError::Interrupted),
            false => Ok(()),
        }
    }

    /// Sleeps for `time`.
    ///
    /// # Errors
    /// [`HarnessError::Interrupted`] once a signal has arrived.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(TICK));
        }
    }

    /// Asks `ready` every few milliseconds until it gives a value.
    ///
    /// # Errors
    /// [`HarnessError::Deadline`] naming `what` after `within`, [`HarnessError::Interrupted`], and
    /// those of `ready`.
    pub fn wait_for<T>(
        &self,
        what: &str,
        within: Duration,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let end = Instant::now() + within;
        loop {
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if Instant::now() >= end {
                let (what, seconds) = (what.to_owned(), within.as_secs());
                return Err(HarnessError::Deadline { what, seconds, heard: "none".into() });
            }
            self.sleep(TICK)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_ends_every_wait() {
        let stop = Stop::default();
        stop.check().unwrap();
        assert_eq!(stop.wait_for("a value", Duration::ZERO, || Ok(Some(3))).unwrap(), 3);
        let late = stop.wait_for("the moon", Duration::ZERO, || Ok(None::<()>)).unwrap_err();
        assert!(late.to_string().starts_with("the moon: nothing within 0 s"), "{late}");
        stop.0.store(true, Ordering::Relaxed);
        let hours = Duration::from_secs(7200);
        assert!(matches!(stop.sleep(hours), Err(HarnessError::Interrupted)));
        let wait = stop.wait_for("a value", hours, || Ok(None::<()>));
        assert!(matches!(wait, Err(HarnessError::Interrupted)));
    }
}
