//! One guest, several switches: the same frames bounced through vmlan and through its peers.
//!
//! A *cell* is one peer at one frame size in one round. For each cell the switch is started on core
//! 1, the guest on core 0, a steady window is measured, and both are ended again, so that no
//! polling switch disturbs the next cell. Everything started or changed is owned by a value whose
//! `Drop` undoes it.

mod args;
pub mod guest;
pub mod hugepages;
pub mod machine;
pub mod measure;
pub mod priority;
pub mod report;
pub mod run;
pub mod switch;
pub mod testpmd;
pub mod vde_loop;

pub use args::{Args, Peer};

/// The core the switch is pinned to.
pub const SWITCH_CORE: usize = 1;

/// The core the guest is pinned to.
pub const GUEST_CORE: usize = 0;
