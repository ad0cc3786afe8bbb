//! Ports that went down: a guest that leaves takes its addresses with it.
//!
//! Frames to an address that was learned at such a port would be lost there until the address ages,
//! though the guest may be reachable by another port already. So learned addresses are forgotten
//! when their port goes down, as bridges do on loss of carrier; pinned ones stay.
//!
//! None of this is on the data path: a port's own thread marks the port, and the control thread
//! walks the forwarding table, once for all ports that are marked. A guest can take its port down
//! and up as often as it likes, and each time make a frame to be learned from. So the table is
//! walked once in [`PAUSE_NS`] at most. A port that is up again by then keeps its addresses: mostly
//! it is the same guest, and a walk would take what it has said since. One that comes back while
//! the table is walked may lose that, which costs a flood and is learned again with its next frame.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fdb::Fdb;
use crate::{MAX_PORTS, PortId, PortSet};

/// The least time between two walks of the forwarding table, in nanoseconds. A walk of the default
/// table reads 1 MiB: some 0.2 ms of the control thread, 0.2 % of its time.
const PAUSE_NS: u64 = 100_000_000;

/// The ports that went down, and when the table may be walked for them.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    marked: [AtomicU64; MAX_PORTS / 64],
    /// Not before this time, of the control thread's clock.
    next_walk: AtomicU64,
}

impl Departures {
    /// `port` has gone down. Any thread may say so.
    pub(crate) fn mark(&self, port: PortId) {
        if let Some(word) = self.marked.get(port.index() / 64) {
            // Pairs with the acquire of `take`: what was learned before is seen by the walk.
            word.fetch_or(1 << (port.index() % 64), Ordering::Release);
        }
    }

    /// `port` is up again. Any thread may say so.
    pub(crate) fn unmark(&self, port: PortId) {
        let bit = 1 << (port.index() % 64);
        let word = self.marked.get(port.index() / 64);
        if let Some(word) = word.filter(|word| word.load(Ordering::Relaxed) & bit != 0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn take(&self) -> PortSet {
        PortSet::from_words(self.marked.each_ref().map(|word| match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::Acquire),
        }))
    }

    fn any(&self) -> bool {
        self.marked.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Forgets what was learned at the marked ports, if it is time to. Nanoseconds until it is, if
    /// it is not yet.
    pub(crate) fn forget(&self, fdb: &Fdb, now: u64) -> Option<u64> {
        if !self.any() {
            return None;
        }
        let wait = self.next_walk.load(Ordering::Relaxed).saturating_sub(now).min(PAUSE_NS);
        if wait > 0 {
            return Some(wait);
        }
        let ports = self.take();
        if fdb.has_learned(&ports) {
            fdb.flush_learned(&ports);
            self.next_walk.store(now.saturating_add(PAUSE_NS), Ordering::Relaxed);
        }
        None
    }
}
