//! Transmit and receive queues of a virtio-net device (virtio 1.2, 5.1.6): fixed buffers, batches,
//! one doorbell for a batch.
//!
//! Transmit: [`TxQueue::next`] → [`TxQueue::write`] → [`TxQueue::send`] ... [`TxQueue::flush`].
//! Receive: [`RxQueue::poll`] → [`RxQueue::read`] ... → [`RxQueue::release`].
//! No call allocates. Neither queue blocks: [`crate::virtio::VirtioNet::wait`] does.

mod header;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;

use crate::stats::QueueStats;
use crate::virtio::virtqueue::Segment;
use crate::virtio::virtqueue::either::Ring;
pub use header::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HDR_F_DATA_VALID, HDR_F_NEEDS_CSUM, NetHeader,
};
pub use rx::{RxBatch, RxFrame, RxQueue};
pub use tx::TxQueue;
use vmlan_transport::memory::{Pool, Ram};
use vmlan_transport::numbers::narrow32;
use vmlan_transport::sys::EventFd;

/// What both directions have: a ring over fixed buffers, and the two eventfds.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) ring: Ring,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) stats: QueueStats,
    ram: Arc<Ram>,
    first: usize,
    stride: usize,
    header: usize,
}

/// How long a buffer is and how the virtio-net header lies in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of one buffer, header included.
    pub(crate) buffer: usize,
    /// 10 or 12 (5.1.6.1): 12 when VERSION_1 or MRG_RXBUF was negotiated.
    pub(crate) header: usize,
}

impl Shape {
    /// Distance of two buffers. Not a power of two: otherwise all headers would share a few sets of
    /// the L1 cache.
    pub(crate) fn stride(self) -> usize {
        let lines = self.buffer.div_ceil(64);
        64 * (lines + 1 - lines % 2)
    }
}

impl Queue {
    pub(crate) fn new(
        ram: &Arc<Ram>,
        ring: Ring,
        high: &mut Pool,
        shape: Shape,
    ) -> std::io::Result<Self> {
        let stride = shape.stride();
        let first = high.take(stride * usize::from(ring.options().slots()), 64);
        Ok(Self {
            ring,
            kick: EventFd::new()?,
            call: EventFd::new()?,
            stats: QueueStats::default(),
            ram: Arc::clone(ram),
            first,
            stride,
            header: shape.header,
        })
    }

    #[inline]
    fn offset(&self, slot: u16) -> usize {
        self.first + usize::from(slot) * self.stride
    }

    /// Describes the first `len` bytes of a slot's buffer: in one segment, or with the header in
    /// one of its own, as a device without ANY_LAYOUT demands (5.1.6.6), and the rest cut evenly.
    fn describe(&mut self, slot: u16, writable: bool, len: usize) {
        let start = self.ram.guest_phys(self.offset(slot));
        let piece = |at: usize, len: usize| Segment {
            guest_phys: start + at as u64,
            len: narrow32(len as u64),
        };
        let most = usize::from(self.ring.options().segments);
        if most == 1 || len <= self.header {
            return self.ring.write_slot(slot, writable, &[piece(0, len)]);
        }
        let mut segments = [piece(0, self.header); 8];
        let step = (len - self.header).div_ceil(most - 1);
        let mut count = 1;
        for at in (self.header..len).step_by(step) {
            segments[count] = piece(at, step.min(len - at));
            count += 1;
        }
        self.ring.write_slot(slot, writable, &segments[..count]);
    }

    fn publish(&mut self) {
        if self.ring.publish() {
            self.ring_doorbell();
        } else {
            self.stats.doorbells_saved += 1;
        }
    }

    pub(crate) fn ring_doorbell(&mut self) {
        self.stats.doorbells += 1;
        self.kick.signal();
    }

    pub(crate) fn take_interrupts(&mut self) -> u64 {
        let count = self.call.take();
        self.stats.interrupts += count;
        self.stats.wakeups += u64::from(count > 0);
        count
    }
}
