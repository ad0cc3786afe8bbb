//! Eventfds: our own, and those that a peer hands over as doorbells and interrupts.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use vmlan_keeper::Descriptor;

/// A non-blocking eventfd.
pub fn new() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Adds 1 to an eventfd of our own.
pub fn signal(eventfd: BorrowedFd<'_>) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Makes reads and writes on `fd` fail rather than wait. The flag belongs to the open file, which a
/// peer that sent us the descriptor shares: it can clear it again.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if !flags.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Why a descriptor cannot be a doorbell or an interrupt.
#[derive(Debug, thiserror::Error)]
pub enum EventFdError {
    /// It is something else: writing to a pipe, a terminal or a file could block or do harm.
    #[error("the descriptor is not an eventfd but `{0}`")]
    NotEventFd(String),
    /// It cannot be made non-blocking.
    #[error("cannot look at the descriptor")]
    Io(#[from] io::Error),
}

/// The eventfd that `fd` is, made non-blocking.
pub fn check(fd: Descriptor) -> Result<OwnedFd, EventFdError> {
    let Descriptor::Event(fd) = fd else {
        return Err(EventFdError::NotEventFd(fd.describe()));
    };
    set_nonblocking(fd.as_fd())?;
    Ok(fd)
}

/// How often an eventfd was written to since it was last read, as /proc says: looking changes
/// nothing and cannot block. 0 if /proc does not say.
pub fn count(fd: BorrowedFd<'_>) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let info = info.unwrap_or_default();
    let value = info.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    value.and_then(|v| u64::from_str_radix(v.trim(), 16).ok()).unwrap_or(0)
}
