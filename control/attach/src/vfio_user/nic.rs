//! Why a NIC stands still, as the port's thread tells it.

use vmlan_nic::chip;

/// Why a NIC stands still, or does not do all that it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub text: String,
    /// The guest address that it is about.
    pub address: Option<u64>,
    /// It stands still.
    pub stops: bool,
    /// The client's memory is gone: it cannot be served any longer.
    pub fatal: bool,
}

impl From<chip::Fault> for Trouble {
    fn from(trouble: chip::Fault) -> Self {
        Self {
            text: trouble.to_string(),
            address: trouble.address(),
            stops: trouble.stops(),
            fatal: trouble == chip::Fault::Truncated,
        }
    }
}
