//! What can go wrong with a NIC of any kind.

use vmlan_transport::pci::PciError;
use vmlan_transport::socket::SocketError;
use vmlan_transport::vfio_user::ConnectError;

use crate::chip::ChipError;
use crate::virtio::VirtioError;

/// Why a NIC cannot be reached, or fails.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// virtio-net.
    #[error(transparent)]
    Virtio(#[from] VirtioError),
    /// A chip with registers.
    #[error(transparent)]
    Chip(#[from] ChipError),
    /// One inside a VM.
    #[error(transparent)]
    Pci(#[from] PciError),
}

impl NicError {
    /// May the NIC be there later? Nobody listens yet, somebody else has the port, or its link is
    /// down.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Virtio(error) => matches!(
                error,
                VirtioError::Socket(SocketError::NobodyListens { .. })
                    | VirtioError::TurnedAway { .. }
            ),
            Self::Chip(ChipError::Connect(error)) => matches!(
                error,
                ConnectError::Socket(SocketError::NobodyListens { .. })
                    | ConnectError::TurnedAway { .. }
            ),
            Self::Chip(error) => matches!(error, ChipError::NoLink),
            Self::Pci(_) => false,
        }
    }
}
