//! Counters that all drivers keep.

use serde::Serialize;

/// Counters of one queue, since it was made. A queue belongs to one thread, so they are plain
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Ethernet frames.
    pub frames: u64,
    /// Bytes of those frames, without virtio-net header and FCS.
    pub bytes: u64,
    /// Doorbells rung (writes to the kick eventfd).
    pub doorbells: u64,
    /// Doorbells saved because the device did not want one.
    pub doorbells_saved: u64,
    /// Interrupts sent by the device (sum of the call eventfd's counts).
    pub interrupts: u64,
    /// Times we were woken by the call eventfd.
    pub wakeups: u64,
    /// Batches that held at least one frame.
    pub batches: u64,
    /// Transmit: no free slot when one was wanted.
    pub full: u64,
    /// Frames that the device delivered in an invalid form (length beyond the buffer, no room for
    /// the header, ...).
    pub malformed: u64,
}

/// `part / whole`, 0 for an empty whole.
#[allow(clippy::cast_precision_loss)] // Figures for people: 53 bits are enough.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
