//! Frames: Ethernet with offload state, batches of them, and the trait of a [`Port`].
//!
//! - [`Batch`]: up to 256 frames lent by one port, each with a snapshot of its first 128 bytes;
//! - [`Offload`]: what is still to be done to a frame (checksum, segmentation);
//! - [`Headers`]: the one parser; [`Checksum`];
//! - [`Finisher`]: does what a receiver cannot: checksums, segmentation;
//! - [`Port`]: a place where frames enter and leave;
//! - [`Counters`], [`Reason`]: every drop has one.
//!
//! # Contract
//!
//! Whatever bytes and lengths come in, nothing here panics. A frame in a batch has at least
//! [`MIN_FRAME`] bytes and its [`Offload`] has been checked against its header snapshot: every
//! offset in it lies inside the snapshot, every length inside the frame.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod batch;
mod check;
mod checksum;
mod counters;
mod flow;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod headers;
mod lock_wait;
mod mac;
mod nic_counters;
mod offload;
mod port;
mod port_log;
mod reason;
mod sample;
mod segment;
#[cfg(test)]
mod tests;

pub use batch::{Batch, FrameView, Verdict};
pub use checksum::Checksum;
pub use counters::{Counter, Counters, Direction, Snapshot};
pub use flow::{FlowFields, fields_hash, flow_hash, place_of};
pub use headers::{Headers, Network};
pub use lock_wait::{lock_unless, lock_waited, measure_lock_waits};
pub use mac::{Mac, ParseMacError};
pub use nic_counters::{CsbCounters, NicCounters, RegisterCount};
pub use offload::{Gso, Offload, Offloads, work};
pub use port::{Changed, Details, Doorbell, Mirror, Port, Sink};
pub use port_log::{LogLimit, error_chain};
pub use reason::Reason;
pub use sample::{Fate, Sample, Sampler, Sampling};
pub use segment::Finisher;

/// Bytes of a frame that are snapshot: every decision is taken on them, and they are what is
/// delivered.
pub const HEAD: usize = 128;

/// Frames of a port that a batch holds.
pub const BATCH: usize = 256;

/// Frames of several ports that a batch holds.
pub const JOINT: usize = 1024;

/// Work one pull lends, in bytes to copy: other ports wait that long for their turn. The last frame
/// may exceed it.
pub const WORK: usize = 1 << 20;

/// Shortest frame: an Ethernet header.
pub const MIN_FRAME: usize = 14;

/// Longest frame: an IP packet of 65,535 bytes, Ethernet header, two VLAN tags. Frames that are
/// still to be segmented have this length, and so may others: passt's interfaces have an MTU of
/// 65,520. Receivers have limits of their own.
pub const MAX_FRAME: usize = MAX_PACKET + 14 + 8;

/// Longest IP packet (IPv6 without jumbograms: 40 bytes less of payload).
pub(crate) const MAX_PACKET: usize = 65_535;
