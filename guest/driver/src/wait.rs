//! Waiting for a NIC: what for, and what came of it.

use std::time::Duration;

pub use vmlan_transport::Wake;

/// What getting ready to sleep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Sleeping would be wrong.
    Now(Wake),
    /// Nothing is there. The driver has work to do after this time in any case ([`Duration::MAX`]:
    /// none).
    Sleep(Duration),
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Received frames.
    pub rx: bool,
    /// Half of the transmit slots that are under way now come back.
    pub tx: bool,
}
