//! Tells the service manager how far we are (sd_notify(3)). Without one nothing happens.

use sd_notify::NotifyState;

/// Started: others may connect now.
pub(crate) fn ready(ports: usize) {
    let status = format!("{ports} ports");
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Asked to stop, and doing so.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        log::warn!("the service manager cannot be notified: {e}");
    }
}
