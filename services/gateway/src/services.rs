//! What the gateway answers itself.

pub(crate) mod dhcp;
pub(crate) mod dhcpv6;
pub(crate) mod dns;
mod leases;
pub(crate) mod router;

pub(crate) use leases::{Change, Leases, Who};
pub(crate) use router::Router;
