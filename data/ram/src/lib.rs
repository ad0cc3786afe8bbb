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
//! *Guest memory changes while we look at it.* Every access is atomic, so that no value a guest
//! stores, at whatever moment, is undefined behaviour here:
//!
//! - Fields of rings are read and written by atomic loads and stores, each once, with the ordering
//!   that the caller names.
//! - Runs of bytes are copied by assembly that amounts to relaxed atomic accesses of single bytes
//!   (see `copy.rs`). A copy that races with a writer holds any mixture of old and new bytes. Its
//!   order against other accesses is that of relaxed atomics: whoever needs more reads a field of
//!   the ring with [`Acquire`](std::sync::atomic::Ordering::Acquire) before.
//! - The compiler never reads guest memory by itself: what was copied out is ours, and a copy of
//!   the copy cannot become a second look at the guest's bytes. So whoever checks a value must use
//!   the copy that was checked, and then it stays checked.
//!
//! *A mapped file may shrink under us.* Files are checked to be long enough and sealed where the
//! peer allows it. Where not, [`sigbus`] makes zeros and a poisoned map of the signal, which costs
//! its own port only. Where no zeros can be mapped, the accesses themselves go on without memory.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod bytes;
mod cell;
mod copy;
mod dirty_log;
mod fixup;
mod lines;
mod map;
mod mapping;
pub mod sigbus;
mod slice;
#[cfg(test)]
mod tests;
mod window;

pub use dirty_log::DirtyLog;
pub use lines::{Lines, Noting};
pub use map::{Map, Region};
pub use mapping::{MapError, Mapping, page_size};
pub use slice::{Slice, SliceMut, prefetch, recycle};
pub use window::{Window, full_fence};
