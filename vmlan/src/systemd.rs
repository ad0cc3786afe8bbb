//! Tells the service manager how far we are (sd_notify(3)), and takes from it (sd_listen_fds(3))
//! the API's socket and what its store has kept. Without one nothing happens.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use listenfd::ListenFd;
use rustix::net::{AddressFamily, SocketType};
use sd_notify::NotifyState;
use vmlan_keeper::hold::{HoldError, Store};

/// What the service manager has opened for this process.
#[derive(Default)]
pub(crate) struct Given {
    /// The socket of the API.
    pub(crate) api: Option<UnixListener>,
    /// What the switch before has had it keep, by name.
    kept: Vec<(String, OwnedFd)>,
}

impl Given {
    pub(crate) fn take() -> io::Result<Self> {
        let mut list = ListenFd::from_env();
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.split(':').chain(std::iter::repeat(""));
        let (unix, packets) = (AddressFamily::UNIX.as_raw(), SocketType::SEQPACKET.as_raw());
        let mut given = Self::default();
        // Both kinds become close-on-exec: programs that we start, gateways, get none of them.
        for (place, name) in (0..list.len()).zip(names) {
            if Store::is_drawers(name) {
                let fd = list.take_custom(place, unix.into(), packets.cast_signed(), "drawer");
                given.kept.extend(fd.ok().flatten().map(|fd| (name.to_owned(), fd)));
            } else if given.api.is_none() {
                given.api = list.take_unix_listener(place)?;
            }
        }
        Ok(given)
    }

    /// The store for the next switch, if the service manager has one.
    pub(crate) fn store(self) -> Result<Option<Store>, HoldError> {
        // Before systemd 254 the unit has to say it.
        let room = ["FDSTORE", "VMLAN_FDSTORE"].map(|key| std::env::var(key).ok());
        let room = room.into_iter().flatten().find_map(|room| room.parse().ok());
        match (notify_socket(), room) {
            (Some(notify), Some(room)) => Store::new(&notify, room, self.kept).map(Some),
            _ => Ok(None),
        }
    }
}

fn notify_socket() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty())
}

/// A service manager has started this process, and waits to be told how far it is.
pub(crate) fn is_service() -> bool {
    notify_socket().is_some()
}

/// How long a start takes that fails while the service manager keeps NICs of VMs. After 5 starts
/// within 10 seconds systemd gives up (`StartLimitBurst=`; our units say 10), and lets them go: a
/// mistake in a file or an option must not use these up.
const FAILED_START: Duration = Duration::from_millis(2500);

/// A start has failed; something is `kept`.
pub(crate) fn failed_start(kept: bool) {
    if kept {
        std::thread::sleep(FAILED_START);
    }
}

/// It gives this process what a switch before has had it keep.
pub(crate) fn has_kept() -> bool {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    is_for_this() && names.split(':').any(Store::is_drawers)
}

/// What it has opened, if it has, is for this process.
fn is_for_this() -> bool {
    let own = std::process::id().to_string();
    std::env::var("LISTEN_PID").is_ok_and(|pid| pid == own)
}

/// So it is: it listens for this process, or waits to be told how far it is.
pub(crate) fn has_started_this() -> bool {
    is_service() || is_for_this()
}

/// Started: others may connect now.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
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
