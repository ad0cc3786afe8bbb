//! Tests of the chip: [`guest`] is one on a bench, and the driver of it, with constants of its own.
#![allow(clippy::cast_possible_truncation)]

mod conformance;
mod csb;
mod effects;
mod guest;
mod interrupts;
mod known_faults;
mod pci;
mod phy;
mod property;
mod receive;
mod replay;
mod transmit;
