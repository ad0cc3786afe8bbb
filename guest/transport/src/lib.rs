//! How a user-space driver reaches its NIC: guest RAM that it shares with the device, and the way
//! to the device's registers, rings and interrupts.
//!
//! Over vhost-user and vfio-user this crate plays the VMM: it owns the guest's RAM, a sealed memfd,
//! and speaks as the *front end* or the *client*. Inside a VM it takes the chip from the kernel. It
//! shares no code and no constant with the device's side of the project, so a misread specification
//! cannot cancel itself out.
//!
//! - [`address`]: where a NIC is and how it is driven, as users write it
//! - [`memory`]: guest RAM: one memfd seen as two regions, with checked views
//! - [`vhost_user`]: messages of the front end (QEMU `docs/interop/vhost-user.rst`)
//! - [`vfio_user`]: messages of a client, and the VMM's part for one chip (QEMU
//!   `docs/interop/vfio-user.rst`)
//! - [`pci`]: a chip inside a VM: VFIO, UIO, sysfs (`linux/vfio.h`)
//! - [`Bus`]: what the driver of a chip needs of any of them
//!
//! Panic contract: nothing a device writes into shared memory or a socket makes this crate panic.
#![deny(unsafe_code)]

pub mod address;
mod bus;
mod mac;
mod mapping;
pub mod memory;
mod model;
pub mod numbers;
mod options;
pub mod pci;
pub mod socket;
pub mod sys;
pub mod vfio_user;
pub mod vhost_user;

pub use address::{Address, AddressError};
pub use bus::{Bus, BusError, Irq, Wake, Watched, Width};
pub use mac::{Mac, MacError};
pub use model::{Bars, Model};
pub use options::{Completion, Conflict, Interrupts, Options, Reception};
