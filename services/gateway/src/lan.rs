//! Who is on the LAN.

mod addresses;
mod allowance;
mod neighbours;
mod stations;

pub(crate) use addresses::Addresses;
pub(crate) use allowance::{Allowance, Kind};
pub(crate) use neighbours::Neighbours;
pub(crate) use stations::{PortNo, Stations, Whose};
