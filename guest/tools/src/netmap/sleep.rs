//! Descriptors that a sleeping port is woken by.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

/// A set of descriptors that is a descriptor itself: it can be read while any of them can.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor as bit `bit` (less than 64) of [`Self::ready`]; one that is in the set
    /// already gets another bit. It leaves the set when it is closed everywhere.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, bit: usize) -> io::Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(bit as u64), epoll::EventFlags::IN);
        match epoll::add(&self.0, fd, data, flags) {
            Err(rustix::io::Errno::EXIST) => Ok(epoll::modify(&self.0, fd, data, flags)?),
            done => Ok(done?),
        }
    }

    /// Takes a descriptor out of the set, if it is in it.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// The bits of those that can be read now, or have hung up.
    pub(super) fn ready(&self) -> io::Result<u64> {
        let mut events = [MaybeUninit::uninit(); 64];
        let (found, _) = epoll::wait(&self.0, &mut events, Some(&Timespec::default()))?;
        Ok(found.iter().fold(0, |bits, event| bits | 1 << (event.data.u64() & 63)))
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that can be read once a time is over.
#[derive(Debug)]
pub(super) struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Can be read after `time` from now on; never, if there is none.
    pub(super) fn set(&self, time: Option<Duration>) -> io::Result<()> {
        // Zero would mean "never", as does a time that is too long for the kernel.
        let after = time.map(|time| time.max(Duration::from_nanos(1)));
        let it_value = after.and_then(|time| Timespec::try_from(time).ok()).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
