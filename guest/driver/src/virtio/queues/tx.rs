//! The transmit queue.

use super::{NetHeader, Queue};
use crate::stats::QueueStats;
use crate::virtio::virtqueue::either::Ring;

/// The driver's end of a transmit queue. A frame is built in a slot, and a batch of slots is sent
/// with one doorbell at most.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) queue: Queue,
    lens: Box<[u32]>,
    pending: u32,
}

impl TxQueue {
    pub(crate) fn new(queue: Queue) -> Self {
        let slots = usize::from(queue.ring.options().slots());
        let header = NetHeader::default().encode();
        for slot in 0..queue.ring.options().slots() {
            queue.ram.write(queue.offset(slot), &header[..queue.header]);
        }
        Self { queue, lens: vec![0; slots].into(), pending: 0 }
    }

    /// Longest frame that fits a slot, in bytes.
    pub fn room(&self) -> usize {
        self.queue.stride - self.queue.header
    }

    /// How many slots there are.
    pub fn slots(&self) -> u16 {
        self.queue.ring.options().slots()
    }

    /// Takes sent slots back; returns how many slots are free now.
    #[inline]
    pub fn reap(&mut self) -> u16 {
        while let Some((slot, _)) = self.queue.ring.next_used() {
            self.queue.ring.release(slot);
        }
        self.queue.ring.free_slots()
    }

    /// Slots published and not yet taken back.
    pub fn outstanding(&self) -> u16 {
        self.queue.ring.outstanding()
    }

    /// The slot that [`Self::next`] gives after `ahead` others, of which there are fewer than
    /// [`Self::free_slots`].
    #[inline]
    pub fn slot_ahead(&self, ahead: u16) -> u16 {
        self.queue.ring.free_ahead(ahead)
    }

    /// Slots that [`Self::next`] can give now.
    pub fn free_slots(&self) -> u16 {
        self.queue.ring.free_slots()
    }

    /// A slot to fill; None when all are under way (counted as `full`).
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<u16> {
        let slot = self.queue.ring.take();
        self.queue.stats.full += u64::from(slot.is_none());
        slot
    }

    /// Writes `bytes` of the frame from byte `at` on into the buffer of a slot.
    ///
    /// # Panics
    /// When they do not fit [`Self::room`].
    #[inline]
    pub fn write(&self, slot: u16, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room(), "{} bytes at {at} leave the slot", bytes.len());
        self.queue.ram.write(self.queue.offset(slot) + self.queue.header + at, bytes);
    }

    /// Writes the virtio-net header of a slot; until then it asks for no offload.
    pub fn write_header(&self, slot: u16, header: NetHeader) {
        let bytes = header.encode();
        self.queue.ram.write(self.queue.offset(slot), &bytes[..self.queue.header]);
    }

    /// Posts a slot with a frame of `len` bytes; the device sees it after [`Self::flush`]. The
    /// descriptor is written only when the length differs from the slot's last frame.
    ///
    /// # Panics
    /// When `len` exceeds [`Self::room`] or the slot was not taken by [`Self::next`].
    #[inline]
    pub fn send(&mut self, slot: u16, len: u32) {
        if self.lens[usize::from(slot)] != len {
            self.describe(slot, len);
        }
        self.queue.ring.post(slot);
        self.queue.stats.frames += 1;
        self.queue.stats.bytes += u64::from(len);
        self.pending += 1;
    }

    #[cold]
    fn describe(&mut self, slot: u16, len: u32) {
        assert!(len as usize <= self.room(), "a frame of {len} bytes leaves the slot");
        self.queue.describe(slot, false, self.queue.header + len as usize);
        self.lens[usize::from(slot)] = len;
    }

    /// Posts up to `count` free slots whose buffers were filled before, all with `len` bytes;
    /// returns how many.
    #[inline]
    pub fn send_filled(&mut self, count: u32, len: u32) -> u32 {
        let count = count.min(self.queue.ring.free_slots().into());
        for _ in 0..count {
            if let Some(slot) = self.queue.ring.take() {
                self.send(slot, len);
            }
        }
        count
    }

    /// Shows the device everything posted since the last flush and rings the doorbell if it wants
    /// that. Returns the frames.
    #[inline]
    pub fn flush(&mut self) -> u32 {
        let count = std::mem::take(&mut self.pending);
        if count > 0 {
            self.queue.stats.batches += 1;
            self.queue.publish();
        }
        count
    }

    /// Counts a moment in which the caller had frames and no slot.
    pub fn count_full(&mut self) {
        self.queue.stats.full += 1;
    }

    /// The ring, for its places and its audit.
    pub fn ring(&self) -> &Ring {
        &self.queue.ring
    }

    /// Rings the doorbell whether the device wants it or not, for tests.
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
    }

    /// The counters.
    pub fn stats(&self) -> QueueStats {
        self.queue.stats
    }
}
