//! The guest's side of a measurement.

use std::time::Instant;
use vmlan_harness::{Result, Stop};

/// MAC addresses of the guest's two ports.
pub const MAC: [&str; 2] = ["02:00:00:00:00:00", "02:00:00:00:00:01"];

/// What the guest has counted so far, both ports together.
#[derive(Debug, Clone, Copy)]
pub struct GuestCounters {
    /// When it was asked.
    pub at: Instant,
    /// Frames received from the switch: the deliveries that a figure is made of.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Frames given to the switch.
    pub tx_frames: u64,
    /// Frames received for each second since it was last asked, by its own clock.
    pub rx_pps: f64,
}

/// Something that bounces every frame received on one of its ports out of the other one.
pub trait Guest {
    /// The process its CPU time is charged to.
    fn pid(&self) -> u32;

    /// Puts frames into the loop; called again when none came through.
    ///
    /// # Errors
    /// When the guest has ended or does not answer.
    fn start(&mut self, stop: &Stop) -> Result<()>;

    /// Its counters now.
    ///
    /// # Errors
    /// When the guest has ended or does not answer.
    fn seen(&mut self, stop: &Stop) -> Result<GuestCounters>;
}
