//! What can go wrong with a NIC of any kind.

use vmlan_transport::pci::PciError;
use vmlan_transport::socket::SocketError;
use vmlan_transport::vfio_user::ConnectError;

use crate::chip::ChipError;
use crate::virtio::VirtioError;

/// Why a NIC cannot be reached, or fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NicError {
    #[error(transparent)]
    Virtio(#[from] VirtioError),
    #[error(transparent)]
    Chip(#[from] ChipError),
    #[error(transparent)]
    Pci(#[from] PciError),
}

impl NicError {
    /// May the NIC be there later? Nobody listens yet, somebody else has the port, or its link is
    /// down.
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
