//! Tells the service manager how far we are (sd_notify(3)), and takes the API's socket from it
//! (sd_listen_fds(3)). Without one nothing happens.

use std::io;
use std::os::unix::net::UnixListener;

use rustix::io::FdFlags;
use sd_notify::NotifyState;

/// The socket of the API, if the service manager has made it.
pub(crate) fn api_socket() -> io::Result<Option<UnixListener>> {
    let listener = listenfd::ListenFd::from_env().take_unix_listener(0)?;
    if let Some(listener) = &listener {
        // Programs that we start, gateways, do not get it.
        rustix::io::fcntl_setfd(listener, FdFlags::CLOEXEC)?;
    }
    Ok(listener)
}

/// A service manager has started this process, and waits to be told how far it is.
pub(crate) fn is_service() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|place| !place.is_empty())
}

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
