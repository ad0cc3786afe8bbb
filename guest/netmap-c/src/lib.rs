//! `libvmlan_netmap`: netmap's C interface over [`vmlan_tools::netmap::Port`], so that programs
//! written for netmap compile, link and run unchanged. The headers in `include/` have netmap's
//! structures, macros and calls; what they need of us is in [`ffi`], seven functions.
//!
//! ```text
//!   program      struct netmap_ring, buffers: one region for all ports of the process
//!                    | head, cur, slots          ^ tail, slots
//!   sync         Ring: checks what the program wrote
//!                NicPort: a copy   Host: a copy      Pipe: the slot goes to the
//!                for each frame    by the kernel     ring of the other end
//!                    v   |             v   |
//!   below        netmap::Port: in  a TAP device
//!                memory that the
//!                device shares
//! ```
//!
//! Buffers may be exchanged between any two rings of the process, whatever NICs they belong to. A
//! device reaches its own memory alone, never the region: so a frame is copied once on its way in
//! and once on its way out, and what a program moves by exchanging indexes is not copied.
//!
//! What the program writes is not trusted beyond its own memory: positions, indexes and lengths are
//! read once and checked, and a ring with nonsense is reset, as netmap does.

mod adapter;
mod counters;
pub mod ffi;
mod host;
mod interface;
mod name;
mod nic_port;
mod pipe;
mod region;
mod ring;
mod sys;
mod table;
#[cfg(test)]
mod tests;
