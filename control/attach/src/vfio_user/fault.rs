//! Why a NIC stands still, as people are told.

use vmlan_nic::chip;

/// Why a NIC stands still, or does not do all that it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFault {
    /// What happened, and what to do if that is known.
    pub text: String,
    /// The guest address that it is about.
    pub address: Option<u64>,
    /// It stands still.
    pub stops: bool,
    /// The client's memory is gone, or its interrupt: it cannot be served any longer.
    pub fatal: bool,
}

impl From<chip::Fault> for PortFault {
    fn from(fault: chip::Fault) -> Self {
        Self {
            text: fault.to_string(),
            address: fault.address(),
            stops: fault.stops(),
            fatal: fault == chip::Fault::Truncated,
        }
    }
}
