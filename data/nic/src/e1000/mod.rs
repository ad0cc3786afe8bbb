//! Intel 82540EM, as the real driver sees it (Intel, *PCI/PCI-X Family of Gigabit Ethernet
//! Controllers Software Developer's Manual*, 317453; "SDM" here, cited by section).
//!
//! Most of it is in `intel`, which it shares with the 82574L; everything that is not Intel's is in
//! [`crate::chip`] and `ring`.
//!
//! The ring registers (BAR0 pages 0x2000 and 0x3000) lie in a [`Window`](vmlan_ram::Window) that
//! the guest may have mapped. They are hostile memory whether or not it has: each pass reads each
//! of them once and checks it.
//!
//! # Where it differs from the real chip
//!
//! - Moderation holds interrupts off after one was delivered, instead of delaying the first (see
//!   `chip/irq.rs`).
//! - Autonegotiation, PHY and EEPROM operations take no time. The other end of the wire does
//!   1000BASE-T without PAUSE.
//! - A register that the guest has mapped keeps bits that the chip would read as 0; they count for
//!   nothing.
//! - Registers that the manual leaves undefined after reset have the values that drivers write: VET
//!   8100h, TIPG for copper.
//! - RFCTL, MANC2H, SWSM and SW_FW_SYNC of later chips keep what is written: drivers of the whole
//!   family use them here as well.
//! - The packet buffer memory reads as 0. RXSEQ, RXCFG, GPI, TXD_LOW and SRPD are posted by ICS
//!   only. Nothing wakes the guest: WUS stays 0. There is no flash, and no PCI-X capability.

#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod model;
mod pci;
mod table;
#[cfg(test)]
mod tests;

pub use model::I82540;

use crate::intel::Intel;
#[cfg(test)]
use crate::intel::{cause, eeprom, link, regs, ring};

/// An 82540EM.
pub type E1000 = Intel<I82540>;
