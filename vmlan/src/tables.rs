//! Statistics for people: what `vmlan stats` prints.

mod limits;
mod nics;
mod ports;
#[cfg(test)]
mod tests;

pub(crate) use nics::{csb_text, top_registers};
pub(crate) use ports::{rates, table};
