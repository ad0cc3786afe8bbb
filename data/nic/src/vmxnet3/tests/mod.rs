//! The device against a small guest, which shares no constant with it.
#![allow(clippy::cast_possible_truncation)]

mod guest;
mod interrupts;
mod life;
mod receive;
mod registers;
mod transmit;
