//! The port's thread asleep, with an eye on the keeper of its sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use crate::keep::Keep;
use crate::sys;
use crate::thread_control::Wake;

#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) keep: Arc<dyn Keep>,
    /// When to look after it.
    due: Option<Instant>,
}

impl Keeping {
    pub(super) fn new(keep: Arc<dyn Keep>) -> Self {
        let mut keeping = Self { keep, due: None };
        keeping.look();
        keeping
    }

    fn look(&mut self) {
        self.due = self.keep.look().and_then(|time| Instant::now().checked_add(time));
    }

    /// Sleeps until `wake` is rung, or something of what is wanted of another descriptor happens;
    /// returns what did.
    pub(super) fn sleep(
        &mut self,
        wake: &Wake,
        other: Option<(BorrowedFd<'_>, PollFlags)>,
    ) -> PollFlags {
        let watch = self.keep.watch();
        // What is not there is asked for nothing.
        let (watched, look) = match &watch {
            Some(watch) => (watch.as_fd(), PollFlags::IN),
            None => (wake.fd(), PollFlags::empty()),
        };
        let (other, wanted) = other.unwrap_or((wake.fd(), PollFlags::empty()));
        let fds = [(wake.fd(), PollFlags::IN), (watched, look), (other, wanted)];
        let mut fds = fds.map(|(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted));
        sys::poll(&mut fds, self.due.map(|due| due.saturating_duration_since(Instant::now())));
        let [woken, rung, happened] = fds.map(|fd| fd.revents());
        if !woken.is_empty() {
            wake.clear();
        }
        if !rung.is_empty() || self.due.is_some_and(|due| due <= Instant::now()) {
            self.look();
        }
        happened
    }
}
