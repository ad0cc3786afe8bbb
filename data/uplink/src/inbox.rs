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
    done: bool,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    buf: Vec<u8>,
    parsed: usize,
    end: usize,
    frames: Vec<Pending>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        let frames = Vec::with_capacity(BATCH);
        Self { buf: vec![0; SIZE], parsed: 0, end: 0, frames }
    }

    /// Frames that wait.
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
        self.frames.push(Pending { start: self.parsed, len, offload, done: false });
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

    /// Lends up to `limit` of the frames, oldest first; returns how many were finished. What fails
    /// the batch's check is dropped.
    pub(crate) fn lend(
        &mut self,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
        input: &Direction,
    ) -> usize {
        let mut batch = Batch::take(spare);
        let mut lent = [0usize; BATCH];
        for (i, f) in self.frames.iter_mut().enumerate() {
            let Some(slot) = lent.get_mut(batch.len()) else { break };
            if batch.len() >= limit {
                break;
            }
            let bytes = self.buf.get(f.start..f.start + f.len).unwrap_or_default();
            match batch.add(&[Slice::from_bytes(bytes)], f.offload) {
                Ok(()) => *slot = i,
                Err(reason) => {
                    f.done = true;
                    input.drop(reason, 1);
                }
            }
        }
        if !batch.is_empty() {
            sink.deliver(&mut batch);
        }
        let finished = finish(&mut self.frames, &batch, &lent, input);
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

/// Takes out what the switch is done with and counts it; `lent` says which frame is which.
fn finish(
    frames: &mut Vec<Pending>,
    batch: &Batch<'_>,
    lent: &[usize],
    input: &Direction,
) -> usize {
    let (mut finished, mut bytes) = (0, 0);
    for (k, i) in lent.iter().enumerate().take(batch.len()) {
        if batch.verdict(k) == Verdict::Held {
            continue;
        }
        if let Some(f) = frames.get_mut(*i) {
            f.done = true;
            finished += 1;
            bytes += f.len as u64;
        }
    }
    input.count(finished, bytes);
    frames.retain(|f| !f.done);
    finished
}
