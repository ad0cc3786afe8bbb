//! A Linux guest in stock QEMU: its image, its hardware, and the line to its agent.

mod base64;
mod cpio;
mod guest;
mod image;
mod migration;
mod monitor;
pub mod qemu;
mod qemu_command;

pub use guest::Guest;
pub use image::{Extras, Image, kernel_headers};
pub use migration::Destination;
pub use qemu_command::Boot;
