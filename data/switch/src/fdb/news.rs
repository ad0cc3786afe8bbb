//! Addresses that were learned or moved, for whoever wants to hear of it.
//!
//! Workers tell, the control thread takes. What finds no room, or the control thread just taking,
//! is counted and not told: no worker waits, and nothing grows. Where nobody listens, it costs a
//! load of an address that is new or moves, and nothing else.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::{Counter, Mac};

use crate::PortId;
use crate::policy::Domain;

/// Addresses kept until they are taken.
const MOST: usize = 1024;

/// An address that was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbNews {
    /// The address.
    pub mac: Mac,
    /// The domain in which it was learned.
    pub domain: Domain,
    /// The port that it is behind now.
    pub port: PortId,
    /// The port that it was behind before; `None`: it was not known.
    pub from: Option<PortId>,
}

/// What was learned since it was last asked for.
#[derive(Debug, Default)]
pub(super) struct News {
    wanted: AtomicBool,
    list: Mutex<Vec<FdbNews>>,
    missed: Counter,
}

impl News {
    pub(super) fn tell(&self, news: FdbNews) {
        if !self.wanted.load(Ordering::Relaxed) {
            return;
        }
        match self.list.try_lock() {
            Ok(mut list) if list.len() < MOST => list.push(news),
            _ => self.missed.add_shared(1),
        }
    }

    /// Begins or ends to gather.
    pub(super) fn want(&self, wanted: bool) {
        let mut list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        list.clear();
        list.reserve(MOST);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Moves what was gathered to `into`. Returns how many were missed since the beginning.
    pub(super) fn take(&self, into: &mut Vec<FdbNews>) -> u64 {
        let mut list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        into.append(&mut list);
        self.missed.get()
    }
}
