//! A guest with an e1000: see [`crate::wired`].

use std::path::Path;

use vmlan_driver::chip::{Address, Chip};
use vmlan_driver::e1000;

use crate::wired::{self, Wired};

/// Device control: VLAN mode enable (SDM 13.4.1).
pub const CTRL_VME: u32 = 1 << 30;

/// A guest on a bus.
pub type Intel<B> = Wired<e1000::Intel, B>;

/// As [`wired::address`].
///
/// # Panics
/// As there.
#[must_use]
pub fn address(path: &Path, keys: &str) -> Address {
    wired::address(e1000::Intel::MODEL, path, keys)
}
