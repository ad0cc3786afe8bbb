//! Benchmarks: the switch alone, and vmlan beside its peers.
//!
//! [`peers`] is the program behind `make bench-peers`; the micro-benchmarks of the switch are in `benches/`.
#![forbid(unsafe_code)]

pub mod peers;
