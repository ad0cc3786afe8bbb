//! Intel 82574L, the default NIC of QEMU's q35 machines, as its drivers see it: Linux' e1000e,
//! FreeBSD's em, DPDK's net_e1000_em, iPXE. (Intel, *82574 GbE Controller Family Datasheet*,
//! 318694; where that was not at hand, what these drivers rely on, and QEMU's model.)
//!
//! Most of it is the 82540EM's, in `intel`. Its own are: MSI-X, with a vector for each queue and
//! one for the rest (`vectors.rs`); a second queue each way, by RSS; receive descriptors with room
//! for the hash, and those with several buffers (`rx.rs`); some registers (`table.rs`, `model.rs`).
//!
//! The ring registers, both queues', lie in pages that the guest may have mapped. With MSI-X, QEMU
//! leaves them mapped.
//!
//! # Where it differs from the real chip
//!
//! What [`crate::e1000`] says of moderation, the link, mapped registers and statistics holds here
//! as well. Further:
//!
//! - It is a conventional PCI function: no driver needs its PCI Express capability. There is no
//!   flash (BAR1) and no management firmware.
//! - The EEPROM is read and written by EERD and EEWR; the pins of EECD lead nowhere. PHY registers
//!   16 to 31 exist on page 0; those of other pages read as 0.
//! - Time stamps stand still: all registers for them read as 0.
//! - Both transmit queues have the same weight. Descriptors of queue 1 are moderated by the timers
//!   of queue 0.
//! - Packet split does not look for headers: the first buffer gets the first bytes.
//! - With MSI-X a cause in IAM masks itself when its message is sent (CTRL_EXT.EIAME).

#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod model;
mod pci;
mod queues;
mod rx;
mod table;
#[cfg(test)]
mod tests;
mod vectors;

pub use model::I82574;

use crate::intel::Intel;

/// An 82574L.
pub type E1000e = Intel<I82574>;
