//! The timer of a port: what its interrupts are held back by.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use vmlan_nic::notify::moderate::Clock;

use crate::sys;

/// A timerfd, which the port's thread watches.
#[derive(Debug)]
pub struct Timer(File);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// That of the system.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(sys::timer()?.into()))
    }

    /// To poll.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes its expiry.
    pub fn take(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl Clock for Timer {
    fn now(&self) -> u64 {
        sys::monotonic()
    }

    fn set_timer(&self, at: u64) {
        sys::set_timer(self.0.as_fd(), at);
    }
}
