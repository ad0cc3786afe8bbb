//! What the gateway answers itself.

pub(crate) mod dhcp;
pub(crate) mod dns;
mod leases;

pub(crate) use leases::{Change, Leases, Who};
