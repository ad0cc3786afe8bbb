//! What Intel's 82540EM (`e1000`) and 82574L (`e1000e`) have in common: most registers, the EEPROM,
//! MDIC, the transmit descriptors, the old kind of receive descriptors, filters and statistics.
//!
//! Sections are those of Intel, *PCI/PCI-X Family of Gigabit Ethernet Controllers Software
//! Developer's Manual*, 317453 ("SDM"). Where the chips differ, a [`Model`] says how.

mod access;
pub mod cause;
mod chip;
pub mod desc;
pub mod eeprom;
mod filter;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
#[cfg(test)]
#[path = "tests/guest.rs"]
pub mod guest;
#[cfg(test)]
#[path = "tests/held.rs"]
mod held;
mod io;
pub mod link;
pub mod model;
mod moderate;
pub mod phy;
pub mod regs;
mod reset;
pub mod ring;
pub mod rx;
mod stats;
pub mod table;
pub mod tx;

pub use self::chip::Intel;
pub use self::filter::Filter;
pub use self::model::Model;
