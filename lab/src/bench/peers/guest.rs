//! The guest's side of a measurement.

use std::time::Instant;
use vmlan_harness::{Result, Stop};

/// MAC addresses of the guest's two ports.
pub(super) const MAC: [&str; 2] = ["02:00:00:00:00:00", "02:00:00:00:00:01"];

/// What the guest has counted so far, both ports together.
#[derive(Debug, Clone, Copy)]
pub(super) struct GuestCounters {
    /// In the middle between asking and being told.
    pub(super) at: Instant,
    /// Frames received from the switch: the deliveries that a figure is made of.
    pub(super) rx_frames: u64,
    /// Bytes in them.
    pub(super) rx_bytes: u64,
    /// Frames given to the switch.
    pub(super) tx_frames: u64,
}

/// Something that bounces every frame received on one of its ports out of the other one.
pub(super) trait Guest {
    /// Puts frames of so many bytes into the loop, and bounces them.
    ///
    /// # Errors
    /// When the guest has ended or does not answer.
    fn start(&mut self, stop: &Stop, bytes: u32) -> Result<()>;

    /// Bounces no more, and uses no CPU.
    ///
    /// # Errors
    /// When the guest has ended or does not answer.
    fn pause(&mut self, stop: &Stop) -> Result<()>;

    /// Its counters now.
    ///
    /// # Errors
    /// When the guest has ended or does not answer.
    fn seen(&mut self, stop: &Stop) -> Result<GuestCounters>;
}
