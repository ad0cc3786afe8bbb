//! The switch: pulls frames from ports in batches, finds each one's destination, pushes them.
//!
//! - [`Fdb`]: which MAC address lives behind which port; lock-free;
//! - [`Table`]: the ports, a snapshot that is replaced whole;
//! - [`Forwarder`]: one worker's breath: pull, look up, push;
//! - [`policy`]: who may send what, where to, how much, and when;
//! - [`Switch`]: what all workers share.
//!
//! # Contract
//!
//! No thread, clock or descriptor is owned here: time is an argument. Nothing panics on a frame's
//! bytes, allocates per frame, or blocks. A frame is delivered at most once to each port.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod departures;
mod explain;
mod fdb;
mod forward;
mod frame_lists;
mod full_wait;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod meter;
pub mod policy;
mod port_set;
mod snooping;
mod software_offload;
mod stalls;
mod table;
#[cfg(test)]
mod tests;
mod watchers;

use std::sync::Arc;
use std::time::Duration;

use departures::Departures;
pub use explain::{
    Check, Claim, ClaimFault, ClaimSetting, Claimed, End, Explanation, Fate, Finding, Naming,
    Place, Receiver, Step, StormTokens, Tag, Tags, Tokens, Unparsed, Verdict,
};
pub use fdb::{Fdb, FdbEntry, FdbError, FdbNews, WouldLearn};
pub use forward::{Begun, Breath, Forwarder, SOURCES, Source};
use full_wait::Waits;
pub use port_set::PortSet;
use snooping::Snooping;
use stalls::Stalls;
pub use stalls::Usage;
pub use table::{Entry, PortId, Table};
pub use watchers::Watch;

/// Ports a switch can have: 10 bits of a forwarding entry.
pub const MAX_PORTS: usize = 1024;

/// How a switch behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slots of the forwarding table, rounded up to a power of two. Give four for each address
    /// expected.
    pub fdb_entries: usize,
    /// Addresses one port may have in the table.
    pub fdb_port_cap: u32,
    /// After this long without a frame an address is forgotten. [`Fdb::tick`] must be called 30
    /// times in it.
    pub ageing: Duration,
    /// The longest a frame waits in its sender's ring for a full receiver, in one go.
    pub full_wait: Duration,
}

/// In nanoseconds; more than 584 years count as that.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fdb_entries: 1 << 17,
            fdb_port_cap: 8192,
            ageing: Duration::from_secs(300),
            full_wait: Duration::from_millis(10),
        }
    }
}

/// What all workers share.
#[derive(Debug)]
pub struct Switch {
    options: Options,
    fdb: Fdb,
    waits: Waits,
    departures: Departures,
    snooping: Snooping,
    stalls: Stalls,
    told: forward::too_long::Told,
}

impl Switch {
    /// A switch without ports.
    pub fn new(options: Options) -> Arc<Self> {
        let fdb = Fdb::new(options.fdb_entries, options.fdb_port_cap);
        let waits = Waits::new(options.full_wait);
        let (departures, snooping) = (Departures::default(), Snooping::new());
        let told = forward::too_long::Told::default();
        let stalls = Stalls::new();
        Arc::new(Self { options, fdb, waits, departures, snooping, stalls, told })
    }

    /// The forwarding table.
    pub fn fdb(&self) -> &Fdb {
        &self.fdb
    }

    /// How it was set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Forgets everything about a port that is removed, pinned addresses too.
    pub fn forget(&self, port: PortId) {
        self.fdb.flush_port(port);
        self.waits.reset(port);
        self.stalls.forget(port);
        self.snooping.forget(port);
    }

    /// True if a frame to a group, for `cast` of all, is for `port`.
    pub(crate) fn wants(
        &self,
        table: &Table,
        port: PortId,
        cast: snooping::Cast,
        now: u64,
    ) -> bool {
        let restricted = table.get(port).is_some_and(|e| e.policy.joined_only);
        !restricted || self.snooping.is_for(cast, port, now)
    }

    /// Multicast groups that `port` has joined, as far as they are told apart.
    pub fn groups_joined(&self, port: PortId) -> u32 {
        self.snooping.joined(port)
    }

    /// `port` has gone down: what was learned there is forgotten by the next
    /// [`Switch::forget_departed`]. Any thread may call this, also for a port that is not up yet:
    /// if nothing is learned there, nothing is marked, and what its guest says first is kept.
    ///
    /// What it joined is not, but multicast groups are not held back from who comes next.
    pub fn went_down(&self, port: PortId) {
        self.snooping.not_asked(port);
        if self.fdb.has_learned_at(port) {
            self.departures.mark(port);
        }
    }

    /// `port` is up: what was learned there is not forgotten, if it is not yet. Any thread may call
    /// this.
    pub fn came_up(&self, port: PortId) {
        self.departures.unmark(port);
    }

    /// Forgets the addresses that were learned at ports which went down since the last call, and
    /// are down; pinned ones stay. For the control thread, at `now` nanoseconds of its clock.
    ///
    /// However often ports go down, the forwarding table is walked ten times a second at most: if
    /// it is too soon, returns the nanoseconds after which to call again.
    pub fn forget_departed(&self, now: u64) -> Option<u64> {
        self.departures.forget(&self.fdb, now)
    }
}
