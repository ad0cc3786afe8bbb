//! `libvmlan_netmap`: netmap's C interface over [`vmlan_tools::netmap::Port`], so that programs
//! written for netmap compile, link and run unchanged. The headers in `include/` have netmap's
//! structures, macros and calls; what they need of us is in [`ffi`], six functions.
//!
//! ```text
//!   program      struct netmap_ring, buffers: one region for all ports of the process
//!                    | head, cur, slots          ^ tail, slots
//!   sync         NicPort: checks what the program wrote; a copy for each frame
//!                    v                           |
//!   driver       netmap::Port: its rings are in memory that the device shares
//! ```
//!
//! Buffers may be exchanged between any two rings of the process, whatever NICs they belong to. A
//! device reaches its own memory alone, never the region: so a frame is copied once on its way in
//! and once on its way out, and what a program moves by exchanging indexes is not copied.
//!
//! What the program writes is not trusted beyond its own memory: positions, indexes and lengths are
//! read once and checked, and a ring with nonsense is reset, as netmap does.

pub mod ffi;
mod nic_port;
mod region;
mod ring;
mod table;
#[cfg(test)]
mod tests;
