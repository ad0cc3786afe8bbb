//! Unit tests, with packets built by another implementation (etherparse).
#![allow(clippy::cast_possible_truncation)]

mod finish;
mod packet;
mod parse;
mod replay;
mod rows;
mod sample;
mod sums;
