//! Tests of the chip: its registers against the datasheet, its data path against a tiny guest.
#![allow(clippy::cast_possible_truncation)]

mod buffer;
mod conformance;
mod csb;
mod guest;
mod held;
mod interrupts;
mod known_faults;
mod plus;
mod property;
mod receive;
mod registers;
mod replay;
mod threads;
mod transmit;
