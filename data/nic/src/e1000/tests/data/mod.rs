//! The chip against a tiny guest.
#![allow(clippy::cast_possible_truncation)]
mod guest;
mod property;
mod rows;
mod rx;
mod tx;
