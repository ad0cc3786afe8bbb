//! The e1000 measured: native guests (`vmlan pkt-gen` at both ends) in every way of ringing, and a real guest beside QEMU's own model.
//!
//! A *way* is how doorbells reach the switch and whether interrupts are moderated. Every way is measured in every round, forwards and
//! backwards in turn, so that a drift of the machine favours nobody; ratios are taken within a round.

mod args;
pub mod guest;
mod native;
mod report;
pub mod run;
mod stats;
mod way;

pub use args::Args;
