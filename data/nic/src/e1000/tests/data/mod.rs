//! The chip against a tiny guest.
#![allow(clippy::cast_possible_truncation)]
pub mod guest;
mod known_faults;
mod mapped;
mod proofs;
mod property;
mod rx;
mod tx;
