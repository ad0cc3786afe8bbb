//! Guest memory: the map, checked copies, typed ring access.
//!
//! A VM's memory reaches this process as file descriptors. [`Map`] is a snapshot of all regions of
//! one VM; it is never changed, only replaced whole. Everything that looks into guest memory goes
//! through one of three doors, each of which checks bounds once and then cannot leave them:
//!
//! - [`Slice`]: bytes to read, borrowed from a map (or from our own memory, for uplinks);
//! - [`SliceMut`]: bytes to write;
//! - [`Window`]: a ring that lives in guest memory, read and written field by field.
//!
//! # Contract
//!
//! *Nothing here panics on any value a guest can choose.* Addresses outside the map give `None`.
//!
//! *Guest memory changes while we look at it.* Every read copies out once; whoever checks a value
//! must use the copy. The compiler is kept from reading twice: scalars are read by atomic loads, and a
//! compiler fence follows each bulk copy out, so that a copy of the copy cannot become a second copy
//! of the guest's bytes.
//!
//! *A mapped file may shrink under us.* Files are checked to be long enough and sealed where the peer
//! allows it; where not, [`fault`] turns the SIGBUS into zeros and a poisoned map, which costs
//! its own port only (`reliability.md` F13).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

pub mod fault;
mod log;
mod map;
mod mapping;
mod slice;
#[cfg(test)]
mod tests;
mod window;

pub use log::DirtyLog;
pub use map::{Map, Region};
pub use mapping::{Error, Mapping};
pub use slice::{Slice, SliceMut, prefetch, recycle};
pub use window::{Window, full_fence};
