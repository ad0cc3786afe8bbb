//! Unit tests, with packets built by another implementation (etherparse).
#![allow(clippy::cast_possible_truncation)]

mod finish;
mod joint;
mod known_faults;
mod packet;
mod parse;
mod proofs;
mod replay;
mod sample;
mod sums;
