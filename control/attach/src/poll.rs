//! Waiting for descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Bytes, a connection, a hang-up.
    Read,
    /// Room to send, a hang-up.
    Write,
}

/// Waits until one of `fds` is ready, at most `timeout`. Entry i of the answer says whether
/// `fds[i]` is; all false after the timeout or a signal. `None` entries are left out; there must be
/// another.
pub fn poll<const N: usize>(
    fds: [Option<(BorrowedFd<'_>, Wait)>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut present = fds.into_iter().flatten().map(|(fd, wait)| {
        let flags = match wait {
            Wait::Read => PollFlags::IN,
            Wait::Write => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(fd, flags)
    });
    let first = present.next().ok_or(io::ErrorKind::InvalidInput)?;
    // Entries that are present, in order. The kernel is not shown the rest of the array.
    let mut set = std::array::from_fn::<_, N, _>(|_| first.clone());
    let mut count = 1;
    for (to, from) in set.iter_mut().skip(1).zip(present) {
        *to = from;
        count += 1;
    }
    // A time that does not fit is so far away that it never comes.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    match rustix::event::poll(set.get_mut(..count).unwrap_or_default(), timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => return Ok([false; N]),
        other => other?,
    };
    let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
    Ok(fds.map(|entry| entry.is_some() && ready.next().unwrap_or(false)))
}

/// Watches a descriptor for writes without reading it: its sender could make reads block.
#[derive(Debug)]
pub struct EdgeWatch {
    epoll: OwnedFd,
    /// The watch ends when the last descriptor of the file is closed.
    fd: Arc<OwnedFd>,
}

impl EdgeWatch {
    /// Watches `fd`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &fd, epoll::EventData::new_u64(0), events)?;
        Ok(Self { epoll, fd: Arc::new(fd) })
    }

    /// What it watches.
    pub fn watched(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// To poll: readable once `fd` was written to, until [`EdgeWatch::take`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// True if there was a write since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut events = [MaybeUninit::uninit(); 1];
        let found = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
        found.is_ok_and(|(events, _)| !events.is_empty())
    }
}
