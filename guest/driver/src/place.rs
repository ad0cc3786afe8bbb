//! Any port a guest's NIC of ours can be on.

use std::str::FromStr;

use crate::address::AddressError;
use crate::{address, chip, pci};

/// An address of either kind, by its first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `vhost-user:`: virtio-net.
    Virtio(address::Address),
    /// `vfio-user:`: a chip with registers.
    Chip(chip::Address),
    /// `pci:`: one inside a VM.
    Pci(pci::Address),
}

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("vfio-user:") {
            text.parse().map(Self::Chip)
        } else if text.starts_with("pci:") {
            text.parse().map(Self::Pci)
        } else {
            text.parse().map(Self::Virtio)
        }
    }
}

impl From<address::Address> for Place {
    fn from(address: address::Address) -> Self {
        Self::Virtio(address)
    }
}

impl From<chip::Address> for Place {
    fn from(address: chip::Address) -> Self {
        Self::Chip(address)
    }
}

impl From<pci::Address> for Place {
    fn from(address: pci::Address) -> Self {
        Self::Pci(address)
    }
}
