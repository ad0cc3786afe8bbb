//! The receive queue.

use super::{NetHeader, Queue};
use crate::stats::QueueStats;
use crate::virtio::virtqueue::WHOLE;
use crate::virtio::virtqueue::either::Ring;

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
    pub fn place(&self, batch: &RxBatch, frame: RxFrame) -> usize {
        self.queue.offset(batch.buffers[frame.first].0)
    }

    /// The virtio-net header of a frame.
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

    /// Gives the buffers of the first `count` frames back; the other frames move up.
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
    pub fn outstanding(&self) -> u16 {
        self.queue.ring.outstanding()
    }

    /// Is there something to poll?
    #[inline]
    pub fn ready(&mut self) -> bool {
        self.queue.ring.has_used()
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
