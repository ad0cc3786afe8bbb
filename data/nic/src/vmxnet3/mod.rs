//! VMware's vmxnet3. There is no public specification: registers, structures and behaviour are
//! those that its drivers rely on (Linux, DPDK, the BSDs, iPXE), by their names there.
//!
//! The driver says where its rings are in a structure in its memory, DriverShared (`shared.rs`),
//! which is read when it activates the device, and for a command that says so (`life.rs`). Then
//! descriptors and completions tell by generation bits whose they are (`ring.rs`). Words in the
//! descriptors of queues say whether doorbells are wanted (`notify/deferred.rs`). Interrupts are
//! vectors that mask themselves (`vectors.rs`). Everything else is in [`crate::chip`] and
//! [`crate::ring`].
//!
//! Versions 1 to 3 are offered: version 4 would bring frames with encapsulation. A driver of
//! version 2 or 3 that wants LRO, and has buffers for 64 KiB, is given packets uncut.
//!
//! # Where it differs from VMware's
//!
//! - A transmit ring is looked at whenever the worker is awake, not only after a doorbell.
//! - A device that is activated while it is active begins again.
//! - No queue ever stops: a frame that breaks a rule is dropped, and its descriptors completed.
//! - Moderation holds interrupts off after one was delivered. The adaptive level holds back
//!   completed transmissions, and nothing else (`vectors.rs`).
//! - Nothing wakes the guest. There are no plug-ins. Data rings are memory as any other: the
//!   transmit data ring is reached by its addresses, that for reception is not used.
//! - QEMU sends register writes without waiting, unless a page of the device can be mapped: BAR2
//!   has one, which means nothing; or BAR0 itself is shared memory ([`Vmxnet3::mapped`]).

mod access;
mod chip;
mod coalesce;
mod desc;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod life;
mod pci;
mod regs;
mod ring;
mod rules;
mod rx;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod tx;
mod vectors;

pub use chip::Vmxnet3;
