//! Keepers for ports that do not know where keepers come from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vmlan_keeper::{Keeper, KeeperError};
use vmlan_uplink::keep;

/// Processes that keep sockets: see [`vmlan_keeper`].
#[derive(Debug)]
pub(super) struct Keepers;

#[derive(Debug)]
struct Keep {
    keeper: Keeper,
    /// What befell the keeper, which the next call that accepts tells.
    trouble: Mutex<Option<KeeperError>>,
}

#[derive(Debug)]
struct Kept(vmlan_keeper::Kept);

impl keep::Keepers for Keepers {
    fn keeper(&self, listener: Option<OwnedFd>) -> io::Result<Arc<dyn keep::Keep>> {
        let keeper = Keeper::new(listener)?;
        Ok(Arc::new(Keep { keeper, trouble: Mutex::default() }))
    }
}

fn failed(error: KeeperError) -> io::Error {
    match error {
        KeeperError::Io(errno) => errno.into(),
        other => io::Error::other(other),
    }
}

impl keep::Keep for Keep {
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.listener()
    }

    fn accept(&self) -> io::Result<Box<dyn keep::Kept>> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        let kept = trouble.map_or_else(|| self.keeper.accept(), Err).map_err(failed)?;
        Ok(Box::new(Kept(kept)))
    }

    fn hold(&self, sock: OwnedFd) -> io::Result<Box<dyn keep::Kept>> {
        Ok(Box::new(Kept(self.keeper.hold(sock).map_err(failed)?)))
    }

    fn watch(&self) -> Option<Arc<OwnedFd>> {
        self.keeper.watch()
    }

    fn look(&self) -> Option<Duration> {
        if let Err(trouble) = self.keeper.look() {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
        }
        self.keeper.due(Instant::now())
    }

    fn close(&self) {
        self.keeper.close();
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl keep::Kept for Kept {}
