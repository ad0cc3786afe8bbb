//! Frames read from a device, waiting to be lent.
//!
//! ```text
//!  buf: │ frame │ frame │ pad │ frame │ bytes not understood yet │ free │
//!                                      parsed                     end
//! ```
//!
//! Frames lie back to back, so a burst of small ones stays in the cache although each read must
//! offer room for the longest. Frames that the switch holds stay; when room runs out, they move to
//! the front.

use std::collections::VecDeque;

use vmlan_frame::{BATCH, Batch, Direction, Offload, Reason, Sink, Verdict};
use vmlan_ram::Slice;

/// Bytes: a burst of 256 frames of 1514 bytes, or seven of 64 KiB, fits the second-level cache.
const SIZE: usize = 512 * 1024;

/// Where a read starts: keeps the next frame's header out of this one's last cache line.
const ALIGN: usize = 64;

#[derive(Debug)]
struct Pending {
    start: usize,
    len: usize,
    offload: Offload,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    buf: Vec<u8>,
    parsed: usize,
    end: usize,
    frames: VecDeque<Pending>,
    /// Frames that the switch held, while those behind them are taken out.
    held: Vec<Pending>,
}

impl Inbox {
    /// Room for [`SIZE`] bytes, and for so many frames without an allocation.
    pub(crate) fn new(frames: usize) -> Self {
        let (frames, held) = (VecDeque::with_capacity(frames), Vec::with_capacity(BATCH));
        Self { buf: vec![0; SIZE], parsed: 0, end: 0, frames, held }
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Room for at least `need` more bytes, if there is.
    pub(crate) fn free(&mut self, need: usize) -> Option<&mut [u8]> {
        if self.buf.len() - self.end < need {
            self.compact();
        }
        self.buf.get_mut(self.end..).filter(|room| room.len() >= need)
    }

    /// Notes that `n` bytes were read into the room that [`Inbox::free`] gave.
    pub(crate) fn filled(&mut self, n: usize) {
        self.end += n.min(self.buf.len() - self.end);
    }

    /// The bytes not understood yet.
    pub(crate) fn tail(&self) -> &[u8] {
        self.buf.get(self.parsed..self.end).unwrap_or_default()
    }

    /// Passes over `n` bytes of the tail.
    pub(crate) fn skip(&mut self, n: usize) {
        self.parsed += n.min(self.end - self.parsed);
    }

    /// Makes the next `n` bytes of the tail a frame.
    pub(crate) fn take(&mut self, n: usize, offload: Offload) {
        let len = n.min(self.end - self.parsed);
        self.frames.push_back(Pending { start: self.parsed, len, offload });
        self.parsed += len;
    }

    /// Starts the next read on a cache line of its own. Only where the tail is empty.
    pub(crate) fn align(&mut self) {
        self.parsed = self.end.next_multiple_of(ALIGN).min(self.buf.len());
        self.end = self.parsed;
    }

    /// Forgets everything; returns how many frames that were.
    pub(crate) fn clear(&mut self) -> usize {
        let n = self.frames.len();
        self.frames.clear();
        (self.parsed, self.end) = (0, 0);
        n
    }

    /// Moves the bytes not understood yet to an empty inbox; returns how many these are.
    pub(crate) fn move_tail(&mut self, to: &mut Self) -> usize {
        let n = self.end - self.parsed;
        if let Some((room, tail)) = to.buf.get_mut(..n).zip(self.buf.get(self.parsed..self.end)) {
            room.copy_from_slice(tail);
        }
        (to.parsed, to.end) = (0, n);
        self.end = self.parsed;
        n
    }

    /// Takes over all frames of `other`, whose tail is empty, if there is room for them behind our
    /// own; our tail is empty too.
    pub(crate) fn append(&mut self, other: &mut Self) -> bool {
        let frames = self.frames.len() + other.frames.len();
        if frames > self.frames.capacity() || self.free(other.end).is_none() {
            return false;
        }
        for f in other.frames.drain(..) {
            let place = self.buf.get_mut(self.end..self.end + f.len);
            if let Some((place, bytes)) = place.zip(other.buf.get(f.start..f.start + f.len)) {
                place.copy_from_slice(bytes);
            }
            self.frames.push_back(Pending { start: self.end, ..f });
            self.end += f.len;
        }
        self.parsed = self.end;
        (other.parsed, other.end) = (0, 0);
        true
    }

    fn compact(&mut self) {
        let mut to = 0;
        for f in &mut self.frames {
            self.buf.copy_within(f.start..f.start + f.len, to);
            f.start = to;
            to += f.len;
        }
        self.buf.copy_within(self.parsed..self.end, to);
        self.end = to + (self.end - self.parsed);
        self.parsed = to;
    }

    /// Lends up to `limit` of the frames, oldest first; returns how many were finished, among them
    /// those that failed the batch's check and are dropped.
    pub(crate) fn lend(
        &mut self,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
        input: &Direction,
    ) -> usize {
        let mut batch = Batch::take(spare);
        let mut lent = [false; BATCH];
        let mut looked = 0;
        for (f, lent) in self.frames.iter().zip(&mut lent) {
            if batch.len() >= limit {
                break;
            }
            looked += 1;
            let bytes = self.buf.get(f.start..f.start + f.len).unwrap_or_default();
            match batch.add(&[Slice::from_bytes(bytes)], f.offload) {
                Ok(()) => *lent = true,
                Err(reason) => input.drop(reason, 1),
            }
        }
        if !batch.is_empty() {
            sink.deliver(&mut batch);
        }
        let (frames, held) = (&mut self.frames, &mut self.held);
        let finished = finish(frames, held, &batch, lent.get(..looked).unwrap_or_default(), input);
        batch.give_back(spare);
        if self.frames.is_empty() && self.parsed == self.end {
            (self.parsed, self.end) = (0, 0);
        }
        finished
    }

    /// Drops all frames because their device is gone.
    pub(crate) fn lose(&mut self, input: &Direction) {
        let n = self.clear();
        if n > 0 {
            input.drop(Reason::LinkDown, n as u64);
        }
    }
}

/// Takes out the first frames, which the switch is done with, and counts them; `lent` says which of
/// them are in the batch. Those that it held stay at the front; `held` is storage for them.
fn finish(
    frames: &mut VecDeque<Pending>,
    held: &mut Vec<Pending>,
    batch: &Batch<'_>,
    lent: &[bool],
    input: &Direction,
) -> usize {
    let (mut passed, mut bytes, mut k) = (0, 0, 0);
    for (f, _) in frames.drain(..lent.len()).zip(lent).filter(|(_, lent)| **lent) {
        if batch.verdict(k) == Verdict::Held {
            held.push(f);
        } else {
            passed += 1;
            bytes += f.len as u64;
        }
        k += 1;
    }
    input.count(passed, bytes);
    let finished = lent.len() - held.len();
    while let Some(f) = held.pop() {
        frames.push_front(f);
    }
    finished
}
