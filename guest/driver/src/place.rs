//! Any port a guest's NIC of ours can be on.

use std::str::FromStr;

use crate::address::AddressError;
use crate::{address, e1000, pci};

/// An address of either kind, by its first word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `vhost-user:`: virtio-net.
    Virtio(address::Address),
    /// `vfio-user:`: an Intel 82540EM.
    E1000(e1000::Address),
    /// `pci:`: an Intel 82540EM inside a VM.
    Pci(pci::Address),
}

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("vfio-user:") {
            text.parse().map(Self::E1000)
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

impl From<e1000::Address> for Place {
    fn from(address: e1000::Address) -> Self {
        Self::E1000(address)
    }
}

impl From<pci::Address> for Place {
    fn from(address: pci::Address) -> Self {
        Self::Pci(address)
    }
}
