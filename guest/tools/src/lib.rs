//! Packet programs on the user-space drivers of [`vmlan_driver`], over any NIC that it drives
//! ([`vmlan_driver::nic::Nic`]).
//!
//! - [`netmap`]: [`netmap::Port`]: any NIC as netmap-like rings, for packet programs of your own
//! - [`pktgen`]: `tx`, `rx`, `ping`, `pong` with counters and a summary
//! - [`output`]: what programs print
//! - [`stack`]: UDP and TCP sockets, streams, request-response, livelock (RFC 768, 791, 9293
//!   (smoltcp))
//! - [`load`]: the same workloads on the kernel's sockets
//! - [`workload`]: what the two share
#![forbid(unsafe_code)]

mod any_nic;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod load;
pub mod netmap;
pub mod output;
pub mod pktgen;
pub mod stack;
pub mod workload;

pub use any_nic::{AnyBatch, AnyNic};
