//! A virtqueue's doorbell: the kick eventfd of the front end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmlan_frame::Counters;

use crate::eventfd;

/// The kick eventfd of a virtqueue, and how often the guest has written to it.
///
/// Workers watch it edge-triggered and nobody reads it, so it counts by itself. (Reading it would
/// also take the edge away from a worker that is just falling asleep.)
pub struct Kick {
    /// The eventfd.
    pub fd: Arc<OwnedFd>,
    /// It belongs to a transmit queue.
    pub transmit: bool,
    /// Its count when last looked at.
    seen: AtomicU64,
}

impl Kick {
    /// Counts from now on.
    #[must_use]
    pub fn new(fd: Arc<OwnedFd>, transmit: bool) -> Self {
        let seen = AtomicU64::new(eventfd::count(fd.as_fd()));
        Self { fd, transmit, seen }
    }

    /// Adds what has come since the last look.
    pub fn count(&self, counters: &Counters) {
        let counter =
            if self.transmit { &counters.input.notifications } else { &counters.rx_doorbells };
        let now = eventfd::count(self.fd.as_fd());
        let seen = self.seen.swap(now, Ordering::Relaxed);
        // A front end that takes its eventfd back may read it, which begins the count again.
        counter.add_shared(now.checked_sub(seen).unwrap_or(now));
    }
}
