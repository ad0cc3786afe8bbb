//! The device against a small guest, which shares no constant with it.
#![allow(clippy::cast_possible_truncation)]

mod guest;
mod interrupts;
mod known_faults;
mod life;
mod property;
mod queues;
mod receive;
mod registers;
mod replay;
mod transmit;
