//! Addresses of ports as the guest's side writes them: `KIND:PLACE[,key=value...]`.

pub mod pci;
pub mod vfio_user;
pub mod vhost_user;

use std::str::FromStr;

pub use pci::{Bdf, Pci, Via};
use vfio_user::KEYS as VFIO_USER_KEYS;
pub use vfio_user::{Doorbell, Unmask, VfioUser};
use vhost_user::KEYS as VHOST_USER_KEYS;
pub use vhost_user::VhostUser;

/// Where a NIC is and how it is driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `vhost-user:`: virtio-net behind a socket.
    VhostUser(VhostUser),
    /// `vfio-user:`: a chip with registers behind a socket.
    VfioUser(VfioUser),
    /// `pci:`: a chip on the PCI bus of this machine, usually a VM.
    Pci(Pci),
}

/// Why an address is not understood; each names the value and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AddressError {
    #[error(
        "'{0}' is not an address of a guest's NIC: write vhost-user:/path/to/socket, \
         vfio-user:/path/to/socket or, inside a VM, pci:0000:00:03.0"
    )]
    Kind(String),
    #[error(
        "the address has no path: write vhost-user:/path/to/socket or vfio-user:/path/to/socket"
    )]
    NoPath,
    #[error("'{0}' is not a key of a vhost-user address: valid: {VHOST_USER_KEYS}")]
    Key(String),
    #[error("'{0}' is not a key of a vfio-user address: valid: {VFIO_USER_KEYS}")]
    VfioKey(String),
    #[error(transparent)]
    Conflict(#[from] crate::Conflict),
    #[error(
        "'{0}' is not a PCI address: write one like pci:0000:00:03.0 (see ls /sys/bus/pci/devices)"
    )]
    Bdf(String),
    #[error(
        "'{0}' is not a key of a pci address: valid: via, and of these all but writes, doorbell, \
         unmask and mmap_timeout: {VFIO_USER_KEYS}"
    )]
    PciKey(String),
    #[error("{key}={value}: {wanted} is expected")]
    Value { key: String, value: String, wanted: &'static str },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("vfio-user:") {
            text.parse().map(Self::VfioUser)
        } else if text.starts_with("pci:") {
            text.parse().map(Self::Pci)
        } else {
            text.parse().map(Self::VhostUser)
        }
    }
}

impl From<VhostUser> for Address {
    fn from(address: VhostUser) -> Self {
        Self::VhostUser(address)
    }
}

impl From<VfioUser> for Address {
    fn from(address: VfioUser) -> Self {
        Self::VfioUser(address)
    }
}

impl From<Pci> for Address {
    fn from(address: Pci) -> Self {
        Self::Pci(address)
    }
}

fn on_off(key: &str, value: &str) -> Result<bool, AddressError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => {
            let (key, value) = (key.into(), value.into());
            Err(AddressError::Value { key, value, wanted: "on or off" })
        }
    }
}
