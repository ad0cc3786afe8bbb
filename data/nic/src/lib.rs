//! NIC models as pure state machines.
//!
//! - [`virtio`]: the device side of split virtqueues, and virtio-net's data path on it.
//! - [`chip`]: what chips with registers and descriptor rings share; `ring`: their rings.
//! - [`e1000`]: Intel's 82540EM; [`e1000e`]: the 82574L; `intel`: what they share.
//! - [`rtl8139`]: Realtek's RTL8139C+ and RTL8139C; `realtek`: what it shares with the RTL8169.
//! - [`r8169`]: Realtek's RTL8169SB.
//! - [`vmxnet3`]: the NIC of VMware's hypervisors.
//!
//! # Contract
//!
//! A NIC here owns no file descriptor, thread or clock: time is an argument, an interrupt is a call
//! on [`Interrupt`]. Whatever a guest writes into its memory, nothing here panics, every call does
//! bounded work, and only bytes that the guest named are read or written. A guest that breaks the
//! rules of its ring stops that ring ([`virtio::Fault`]) and nothing else.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

pub(crate) mod bits;
pub mod chip;
pub mod e1000;
pub mod e1000e;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub(crate) mod intel;
pub mod notify;
pub mod r8169;
pub(crate) mod realtek;
pub(crate) mod ring;
pub mod rtl8139;
pub mod virtio;
pub mod vmxnet3;

/// A wire to the guest's interrupt controller.
pub trait Interrupt: Send + Sync {
    /// Raises the interrupt. Must not block. False: a limit holds it back, and it will be raised,
    /// and counted, later.
    fn raise(&self) -> bool;
}
