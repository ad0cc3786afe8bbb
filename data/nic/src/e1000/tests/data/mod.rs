//! The chip against a tiny guest.
#![allow(clippy::cast_possible_truncation)]
/// A guest with this chip.
pub mod guest {
    pub use crate::intel::guest::*;

    pub type Guest = GuestOf<crate::e1000::I82540>;
}
mod known_faults;
mod mapped;
mod proofs;
mod property;
mod rx;
mod tx;
