//! Shares of an uplink's bandwidth: by bytes and weight, among those who wait for it.

use crate::PortId;

/// The queue before an uplink: frames stay in their senders' rings, and this says whose turn it is.
#[derive(Debug, Default)]
pub struct UplinkQueue {}

impl UplinkQueue {
    /// Bytes that `source` may send now; `u64::MAX` if nobody waits.
    #[must_use]
    pub fn grant(&self, source: PortId, weight: u16, now: u64) -> u64 {
        let _ = (source, weight, now);
        u64::MAX
    }

    /// `source` has sent `bytes`. `waits`: it has more, which found no room.
    pub fn sent(&self, source: PortId, weight: u16, bytes: u64, waits: bool, now: u64) {
        let _ = (source, weight, bytes, waits, now);
    }
}
