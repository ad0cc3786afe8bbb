//! The gateway of a LAN: a guest on a port of the switch, which gives the other guests addresses
//! (DHCP), names (DNS) and a way out: their connections end here and go on by sockets of the host.
//! No privilege, no TUN device, no route of the host is needed.
//!
//! - [`gateway`]: what comes of a frame; [`process`]: the process around it
//! - `lan`: who is there: neighbours, which port a NIC is behind, what each port may still do
//! - `services`: DHCP with its leases, DNS
//! - `nat`: flows of TCP (ended by smoltcp, one small stack for each), UDP and ICMP echo, where
//!   they may go, ports of the host that lead to guests
//! - `link`: the NIC, frames
//!
//! Time is an argument everywhere but in [`process`].
//!
//! Panic contract: nothing that a guest, a server outside or the switch sends makes this crate
//! panic. What cannot be understood or may not be is dropped and counted by its reason.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

mod counters;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod gateway;
mod lan;
mod line;
mod link;
mod nat;
pub mod process;
mod services;
#[cfg(test)]
mod tests;

/// A number that nobody can guess.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Fewer come only from a system that has just begun.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
