//! Who keeps a stream port's sockets.
//!
//! A peer may have sent descriptors along that nobody reads, and whoever closes a socket closes
//! those: a file of a FUSE daemon that does not answer parks that thread for good, and a process
//! with a parked thread cannot end. So somebody else has to hold a second descriptor of each socket
//! that strangers reach, and to close it after us. These traits are what a port needs of that
//! somebody.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Makes a keeper for each port.
pub trait Keepers: Debug + Send + Sync {
    /// A keeper of `listener`, which is bound and does not listen yet: a backlog that nobody else
    /// has must not exist. `None`: the port connects.
    ///
    /// # Errors
    /// There is nobody to keep anything: the port cannot be.
    fn keeper(&self, listener: Option<OwnedFd>) -> io::Result<Arc<dyn Keep>>;
}

/// Keeps the sockets of one port. Only the port's own thread may call what waits.
pub trait Keep: Debug + Send + Sync {
    /// The listener, to poll.
    fn listener(&self) -> Option<BorrowedFd<'_>>;

    /// The next connection. Waits up to a second for a keeper that a peer has parked.
    ///
    /// # Errors
    /// That of `accept`, `WouldBlock` included; otherwise the caller tries again later.
    fn accept(&self) -> io::Result<Box<dyn Kept>>;

    /// Keeps a socket that is not connected yet.
    ///
    /// # Errors
    /// The caller tries again later.
    fn hold(&self, sock: OwnedFd) -> io::Result<Box<dyn Kept>>;

    /// Readable when [`Keep::look`] wants to be called.
    fn watch(&self) -> Option<Arc<OwnedFd>>;

    /// Looks whether all is well, and does something about it. To be called when
    /// [`Keep::watch`] is readable and after the time that the last call returned.
    fn look(&self) -> Option<Duration>;

    /// Nobody can connect any more, and whoever waits in a call above returns soon.
    fn close(&self);
}

/// A socket that somebody else has too. Dropping it closes ours, then theirs.
pub trait Kept: AsFd + Debug + Send + Sync {}

/// Nobody keeps anything: for tests, whose peers are friends.
#[derive(Debug)]
pub struct Unkept;

#[derive(Debug)]
struct Plain(Option<OwnedFd>);

#[derive(Debug)]
struct PlainSocket(OwnedFd);

impl Keepers for Unkept {
    fn keeper(&self, listener: Option<OwnedFd>) -> io::Result<Arc<dyn Keep>> {
        Ok(Arc::new(Plain(listener)))
    }
}

impl Keep for Plain {
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    fn accept(&self) -> io::Result<Box<dyn Kept>> {
        let listener = self.0.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        Ok(Box::new(PlainSocket(rustix::net::accept_with(listener, flags)?)))
    }

    fn hold(&self, sock: OwnedFd) -> io::Result<Box<dyn Kept>> {
        Ok(Box::new(PlainSocket(sock)))
    }

    fn watch(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn look(&self) -> Option<Duration> {
        None
    }

    fn close(&self) {
        if let Some(listener) = &self.0 {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
    }
}

impl AsFd for PlainSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Kept for PlainSocket {}
