//! A gateway with guests made of frames, simulated time, and servers on this host's loopback.

mod dhcp;
mod dns;
mod dns_tcp;
mod forwards;
mod fragments;
mod guest;
mod ipv6;
mod nat;
mod tcp;
