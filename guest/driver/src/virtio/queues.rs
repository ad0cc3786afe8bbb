//! Transmit and receive queues of a virtio-net device (virtio 1.2, 5.1.6): fixed buffers, batches,
//! one doorbell for a batch.
//!
//! Transmit: [`TxQueue::next`] → [`TxQueue::write`] → [`TxQueue::send`] ... [`TxQueue::flush`].
//! Receive: [`RxQueue::poll`] → [`RxQueue::read`] ... → [`RxQueue::release`].
//! No call allocates. Neither queue blocks: [`crate::virtio::VirtioNet::wait`] does.

mod header;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::stats::QueueStats;
use crate::virtio::virtqueue::{Segment, SplitRing, WHOLE};
pub use header::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HDR_F_DATA_VALID, HDR_F_NEEDS_CSUM, NetHeader,
};
use vmlan_transport::memory::{Pool, Ram};
use vmlan_transport::numbers::narrow32;
use vmlan_transport::sys::EventFd;

/// What both directions have: a ring over fixed buffers, and the two eventfds.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) ring: SplitRing,
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
        ring: SplitRing,
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
    fn describe(&self, slot: u16, writable: bool, len: usize) {
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
    #[must_use]
    pub fn room(&self) -> usize {
        self.queue.stride - self.queue.header
    }

    /// How many slots there are.
    #[must_use]
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
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.queue.ring.outstanding()
    }

    /// The slot that [`Self::next`] gives after `ahead` others, of which there are fewer than
    /// [`Self::free_slots`].
    #[inline]
    #[must_use]
    pub fn slot_ahead(&self, ahead: u16) -> u16 {
        self.queue.ring.free_ahead(ahead)
    }

    /// Slots that [`Self::next`] can give now.
    #[must_use]
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
    #[must_use]
    pub fn ring(&self) -> &SplitRing {
        &self.queue.ring
    }

    /// Rings the doorbell whether the device wants it or not, for tests.
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats
    }
}

/// A frame in an [`RxBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxFrame {
    first: usize,
    buffers: usize,
    /// Bytes of the Ethernet frame.
    pub len: usize,
}

/// Received frames and the slots they lie in. Made once for a queue, filled by each poll.
#[derive(Debug)]
pub struct RxBatch {
    frames: Vec<RxFrame>,
    buffers: Vec<(u16, u32)>,
    /// Buffers at the end of `buffers` that belong to a frame whose other buffers are not used yet.
    missing: usize,
    complete: usize,
}

impl RxBatch {
    /// The frames of the last poll.
    #[must_use]
    pub fn frames(&self) -> &[RxFrame] {
        &self.frames
    }
}

/// The driver's end of a receive queue: all slots are posted from the start, and posted again when
/// released.
#[derive(Debug)]
pub struct RxQueue {
    pub(crate) queue: Queue,
    buffer: usize,
    mergeable: bool,
}

impl RxQueue {
    pub(crate) fn new(queue: Queue, buffer: usize, mergeable: bool) -> Self {
        let mut rx = Self { queue, buffer, mergeable };
        rx.post_all();
        rx
    }

    pub(crate) fn post_all(&mut self) {
        for slot in 0..self.queue.ring.options().slots() {
            self.queue.describe(slot, true, self.buffer);
        }
        while let Some(slot) = self.queue.ring.take() {
            self.queue.ring.post(slot);
        }
    }

    /// Shows the posted buffers to a device that has just been attached.
    pub(crate) fn start(&mut self) {
        self.queue.publish();
    }

    /// A batch for this queue, with room for every slot.
    #[must_use]
    pub fn batch(&self) -> RxBatch {
        let slots = usize::from(self.queue.ring.options().slots());
        RxBatch {
            frames: Vec::with_capacity(slots),
            buffers: Vec::with_capacity(slots),
            missing: 0,
            complete: 0,
        }
    }

    /// Adds received frames to a batch until it holds `most`; returns how many frames it holds.
    pub fn poll(&mut self, batch: &mut RxBatch, most: usize) -> usize {
        let (before, room) = (batch.frames.len(), batch.frames.capacity().min(most));
        while batch.frames.len() < room {
            let Some((slot, len)) = self.queue.ring.next_used() else { break };
            let len = self.written(len);
            batch.buffers.push((slot, len));
            if batch.missing > 0 {
                batch.missing -= 1;
            } else {
                batch.missing = self.more_buffers(slot, len);
            }
            if batch.missing == 0 {
                self.finish_frame(batch);
            }
        }
        self.queue.stats.batches += u64::from(batch.frames.len() > before);
        batch.frames.len()
    }

    #[inline]
    fn written(&mut self, len: u32) -> u32 {
        let most = u32::try_from(self.buffer).unwrap_or(WHOLE);
        self.queue.stats.malformed += u64::from(len > most && len != WHOLE);
        len.min(most)
    }

    /// Buffers that follow the first one of a frame (num_buffers, 5.1.6.4).
    #[inline]
    fn more_buffers(&mut self, slot: u16, len: u32) -> usize {
        if !self.mergeable || (len as usize) < self.queue.header {
            return 0;
        }
        let mut count = [0; 2];
        self.queue.ram.read(self.queue.offset(slot) + 10, &mut count);
        let count = u16::from_le_bytes(count);
        if count == 0 || count > self.queue.ring.options().slots() {
            self.queue.stats.malformed += 1;
            return 0;
        }
        usize::from(count) - 1
    }

    /// The buffers since the last complete frame are one frame.
    #[inline]
    fn finish_frame(&mut self, batch: &mut RxBatch) {
        let first = std::mem::replace(&mut batch.complete, batch.buffers.len());
        let parts = &batch.buffers[first..];
        let total: usize = parts.iter().map(|(_, len)| *len as usize).sum();
        let Some(len) = total.checked_sub(self.queue.header) else {
            self.queue.stats.malformed += 1;
            return;
        };
        self.queue.stats.frames += 1;
        self.queue.stats.bytes += len as u64;
        batch.frames.push(RxFrame { first, buffers: parts.len(), len });
    }

    /// Copies bytes of a frame, from byte `at` on, into `bytes`; returns how many there were.
    #[inline]
    pub fn read(&self, batch: &RxBatch, frame: RxFrame, at: usize, bytes: &mut [u8]) -> usize {
        let mut skip = self.queue.header + at;
        let mut done = 0;
        for &(slot, len) in &batch.buffers[frame.first..frame.first + frame.buffers] {
            let len = len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let take = (len - skip).min(bytes.len() - done);
            let from = self.queue.offset(slot) + skip;
            self.queue.ram.read(from, &mut bytes[done..done + take]);
            (done, skip) = (done + take, 0);
        }
        done
    }

    /// Where the first buffer of a frame lies: an offset in the RAM.
    #[must_use]
    pub fn place(&self, batch: &RxBatch, frame: RxFrame) -> usize {
        self.queue.offset(batch.buffers[frame.first].0)
    }

    /// The virtio-net header of a frame.
    #[must_use]
    pub fn header(&self, batch: &RxBatch, frame: RxFrame) -> NetHeader {
        let mut bytes = [0; NetHeader::LEN];
        let (slot, _) = batch.buffers[frame.first];
        self.queue.ram.read(self.queue.offset(slot), &mut bytes[..self.queue.header]);
        NetHeader::decode(bytes)
    }

    /// Posts the batch's buffers again, tells the device if it wants that, and empties the batch.
    /// Buffers of a frame that is not complete yet stay.
    pub fn release(&mut self, batch: &mut RxBatch) {
        batch.frames.clear();
        let done = std::mem::take(&mut batch.complete);
        self.post_first(batch, done);
    }

    /// The same for the first `count` frames only; the others move up.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn release_first(&mut self, batch: &mut RxBatch, count: usize) {
        let Some(left) = batch.frames.get(count) else {
            assert!(count == batch.frames.len(), "{count} frames of {}", batch.frames.len());
            return self.release(batch);
        };
        let done = left.first;
        batch.frames.drain(..count);
        batch.frames.iter_mut().for_each(|frame| frame.first -= done);
        batch.complete -= done;
        self.post_first(batch, done);
    }

    fn post_first(&mut self, batch: &mut RxBatch, done: usize) {
        for (slot, _) in batch.buffers.drain(..done) {
            self.queue.ring.post(slot);
        }
        if done > 0 {
            self.queue.publish();
        }
    }

    /// Buffers the device has, as far as we know.
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.queue.ring.outstanding()
    }

    /// Is there something to poll?
    #[inline]
    pub fn ready(&mut self) -> bool {
        self.queue.ring.has_used()
    }

    /// The ring, for its places and its audit.
    #[must_use]
    pub fn ring(&self) -> &SplitRing {
        &self.queue.ring
    }

    /// Rings the doorbell whether the device wants it or not, for tests.
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats
    }
}
