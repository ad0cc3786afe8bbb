//! A gateway with guests made of frames, simulated time, and servers on this host's loopback.

mod dhcp;
mod dns;
mod guest;
mod nat;
