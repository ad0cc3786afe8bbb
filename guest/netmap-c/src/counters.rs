//! What passes through a port, and what cuts a sync short.

use std::ops::AddAssign;

use vmlan_tools::netmap::NetmapError;

/// `struct vmlan_netmap_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were handed to the driver, the kernel's stack or the other end of a pipe.
    pub tx_frames: u64,
    /// Frames that the program got.
    pub rx_frames: u64,
    /// Copies from a buffer to memory of the device or the kernel.
    pub tx_copies: u64,
    /// Copies from memory of the device or the kernel to a buffer.
    pub rx_copies: u64,
    /// Slots that the program gave back with another buffer in them.
    pub swapped: u64,
    /// Resets of rings.
    pub resets: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.tx_frames += other.tx_frames;
        self.rx_frames += other.rx_frames;
        self.tx_copies += other.tx_copies;
        self.rx_copies += other.rx_copies;
        self.swapped += other.swapped;
        self.resets += other.resets;
    }
}

/// Why a sync did not do all it should.
#[derive(Debug)]
pub(crate) enum SyncError {
    /// The program wrote nonsense, and its ring was reset.
    Reset,
    /// The NIC or the TAP device is gone, or failed.
    Nic,
}

impl From<NetmapError> for SyncError {
    fn from(_: NetmapError) -> Self {
        Self::Nic
    }
}

/// What a sync answers whose rings were all sound, or not.
pub(crate) fn answer(sound: bool) -> Result<(), SyncError> {
    if sound { Ok(()) } else { Err(SyncError::Reset) }
}
