//! Benchmarks: the switch alone, and vmlan beside its peers.
//!
//! [`peers`] is the program behind `make bench-peers`, [`e1000`] that behind `make bench-e1000`; the micro-benchmarks of the switch are in `benches/`.
#![forbid(unsafe_code)]

pub mod e1000;
pub mod peers;
