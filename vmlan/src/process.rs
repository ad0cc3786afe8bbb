//! Signals and timers of this process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::Failure;

/// A flag that SIGINT and SIGTERM raise.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|e| Failure::Failed(format!("cannot handle signals: {e}")))?;
    }
    Ok(flag)
}

/// Lets this thread's sleeps, and those of threads it starts, end when they are due, instead of up
/// to 50 us later: what plays a guest keeps its driver's bounds on time (send combining), as a
/// kernel would.
pub(crate) fn exact_timers() {
    // A kernel that refuses leaves the sleeps as they were.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
