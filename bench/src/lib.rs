//! Benchmarks: the switch alone, and vmlan beside its peers.
//!
//! [`peers`] is the program behind `make bench-peers`, [`e1000`] that behind `make bench-e1000`, [`kvm`] that behind `make bench-kvm`; the micro-benchmarks of the switch (`make bench-switch`) are in
//! `benches/`. What native guests show is measured by the program itself: `vmlan bench`.
#![forbid(unsafe_code)]

pub mod e1000;
pub mod kvm;
pub mod peers;
