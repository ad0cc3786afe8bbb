//! The way out: flows between guests and sockets of the host.

mod echo;
mod flows;
mod forwards;
mod names;
mod names_by_tcp;
mod rules;
mod sockets;
mod stack;
mod tcp;
mod udp;

pub(crate) use flows::{Io, Nat, To};
pub(crate) use forwards::{FIRST as FORWARDS, Forwards, Guests};
pub(crate) use sockets::leads_out_by_ipv6;
