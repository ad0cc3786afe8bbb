//! The chip against a tiny guest.
#![allow(clippy::cast_possible_truncation)]
pub mod guest;
mod mapped;
mod property;
mod rows;
mod rx;
mod tx;
