//! What the RTL8139C+ and the RTL8169 have in common: registers of many widths, the EEPROM, the
//! timer, the receive filter, the descriptors whose rings say themselves who owns what, and the
//! statistics.

pub mod cplus;
pub mod desc;
pub mod eeprom;
pub mod filter;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
#[cfg(test)]
#[path = "tests/held.rs"]
mod held;
pub mod isr;
pub mod queues;
pub mod regs;
pub mod ring;
#[cfg(test)]
#[path = "tests/seeds.rs"]
pub mod seeds;
pub mod tally;
pub mod timer;
