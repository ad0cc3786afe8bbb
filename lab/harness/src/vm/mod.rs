//! A Linux guest in stock QEMU: its image, its hardware, and the line to its agent.

mod base64;
mod boot;
mod cpio;
mod guest;
mod image;
pub mod qemu;

pub use boot::Boot;
pub use guest::Guest;
pub use image::{Extras, Image};
