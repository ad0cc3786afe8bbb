//! Sockets that VMs plug into, and the [`vmlan_frame::Port`] behind each.
//!
//! - [`vhost_user`]: virtio-net over vhost-user, for any VMM that speaks it.
//! - [`vfio_user`]: emulated NICs over vfio-user, for guests that have nothing but an old driver.
//!
//! # Contract
//!
//! Whatever arrives on a socket, nothing here panics, no descriptor leaks, and only the port's own
//! thread waits for its peer. A peer can harm its own port and nothing else.
#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod address_space;
mod attach_error;
mod budget;
mod bytes;
mod connection;
mod cpu_budget;
mod death;
mod eventfd;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod held;
mod interrupt_cost;
mod interrupt_eventfd;
mod irq_limit;
mod journal;
mod memory;
mod poll;
mod pool;
mod port_log;
mod send_recv;
mod socket;
#[allow(unsafe_code)]
mod sys;
mod thread;
mod timer;
pub mod vfio_user;
pub mod vhost_user;
mod waker;

pub use attach_error::AttachError;
pub use held::keep::ask_keepers;
pub use memory::Files;
pub use socket::{Place, SocketError, could_listen};
pub use thread::ADOPTION;
