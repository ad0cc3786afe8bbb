//! The limit of a port's interrupts, `irq_rate_max`, for NICs that have no moderation of their own.

use std::os::fd::BorrowedFd;

use vmlan_nic::notify::moderate::{Moderator, Set};

use crate::timer::Timer;

/// The limit of one port. It belongs to the port and not to a connection: otherwise a front end
/// could start afresh by connecting again.
#[derive(Debug)]
pub struct IrqLimit {
    moderator: Moderator,
    timer: Timer,
}

impl IrqLimit {
    /// No limit yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { moderator: Moderator::default(), timer: Timer::new()? })
    }

    /// At most `rate_max` interrupts a second from now on; 0: no limit. What was held back is
    /// delivered by the port's thread when that is due.
    pub fn set(&self, rate_max: u32) {
        self.moderator.set_rate(rate_max, &self.timer);
    }

    pub fn is_on(&self) -> bool {
        self.moderator.is_on()
    }

    /// See [`Moderator::admits`].
    #[inline]
    #[must_use]
    pub fn admits(&self, who: u8) -> bool {
        self.moderator.admits(who, &self.timer)
    }

    /// See [`Moderator::take`].
    #[must_use]
    pub fn take(&self, who: u8) -> bool {
        self.moderator.take(who)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.timer.fd()
    }

    /// Looks whether the timer has fired, and returns the interrupts that are to be delivered now.
    #[must_use]
    pub fn due(&self) -> Set {
        // First the timer, then the look: one that is set meanwhile fires again.
        self.timer.take();
        self.moderator.due(&self.timer)
    }

    /// See [`Moderator::counts`].
    pub fn counts(&self) -> (u64, u64) {
        self.moderator.counts()
    }
}
