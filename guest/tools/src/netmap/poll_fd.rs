//! The one descriptor of a port: an epoll set of what its device sleeps on, a timer, and an eventfd
//! that can be read whenever the port is *not* armed. So a program that polls the descriptor
//! without having armed the port is woken at once, too often, instead of never.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::sleep::{Epoll, Timer};
use vmlan_driver::nic::Nic;
use vmlan_transport::sys::EventFd;

const TIMER: usize = 62; // Bits of the set; those below are the device's.
const AWAKE: usize = 63;

/// See above.
#[derive(Debug)]
pub(super) struct Bell {
    set: Epoll,
    awake: EventFd,
    timer: Timer,
    timed: bool,
    armed: bool,
}

impl Bell {
    pub(super) fn new(device: &impl Nic) -> io::Result<Self> {
        let (set, awake, timer) = (Epoll::new()?, EventFd::new()?, Timer::new()?);
        awake.signal();
        set.add(awake.as_fd(), AWAKE)?;
        set.add(timer.as_fd(), TIMER)?;
        let bell = Self { set, awake, timer, timed: false, armed: false };
        bell.watch(device)?;
        Ok(bell)
    }

    /// From now on for this device too.
    pub(super) fn watch(&self, device: &impl Nic) -> io::Result<()> {
        for (bit, fd) in device.watched().into_iter().enumerate().take(TIMER) {
            self.set.add(fd, bit)?;
        }
        Ok(())
    }

    /// No longer for this device.
    pub(super) fn leave(&self, device: &impl Nic) {
        device.watched().into_iter().for_each(|fd| self.set.remove(fd));
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// The device is armed: the descriptor sleeps until it has something, or for `most`.
    pub(super) fn arm(&mut self, most: Duration) -> io::Result<()> {
        if most != Duration::MAX {
            self.timed = true;
            self.timer.set(Some(most))?;
        }
        // Last: from here on, any news from the device makes the set readable.
        let _ = self.awake.take();
        self.armed = true;
        Ok(())
    }

    /// The port is awake again; which of the device's descriptors can be read.
    pub(super) fn disarm(&mut self) -> io::Result<u64> {
        self.armed = false;
        self.awake.signal();
        if std::mem::take(&mut self.timed) {
            self.timer.set(None)?;
        }
        Ok(self.set.ready()? & !(1 << TIMER | 1 << AWAKE))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
