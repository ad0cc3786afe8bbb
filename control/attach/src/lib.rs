//! The doors VMs come in by: sockets that VMMs speak, and the [`vmlan_frame::Port`] behind each.
//!
//! - [`vhost_user`]: virtio-net over vhost-user, for any VMM that speaks it.
//! - [`vfio_user`]: emulated NICs over vfio-user, for guests that have nothing but an old driver.
//!
//! # Contract
//!
//! Whatever arrives on a socket, nothing here panics, no descriptor leaks, and no thread but the port's
//! own waits for its peer. A peer can fault its own port and nothing else.
#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod bytes;
mod complain;
mod eventfd;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod limit;
mod memory;
mod socket;
mod stream;
#[allow(unsafe_code)]
mod sys;
mod thread;
mod timer;
pub mod vfio_user;
pub mod vhost_user;
mod waker;
