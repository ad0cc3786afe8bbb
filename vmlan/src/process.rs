//! Signals to this process.

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
