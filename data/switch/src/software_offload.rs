//! Delivery to a receiver that did not negotiate all that the frames need: they are finished in
//! software first (checksums, segments) in a batch of our own, which still borrows the sender's
//! payload.

use vmlan_frame::{Batch, Finisher, FrameView, Offloads, Port, Reason};

use crate::frame_lists;

/// Segments that must find room before a frame's first one is sent, at most: a frame of more may
/// lose its tail to a full receiver, as a real wire would.
const WHOLE: usize = 128;

/// A frame of Ethernet's usual length, with a tag: what ports count their room in.
const USUAL: usize = 1518;

/// Storage for finished frames.
pub(crate) struct Finished {
    frames: Batch<'static>,
}

impl Finished {
    pub(crate) fn new() -> Self {
        Self { frames: Batch::new() }
    }

    /// As [`Port::push`], for frames of which some need more than the receiver `takes`.
    pub(crate) fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &[u16],
        port: &dyn Port,
        takes: Offloads,
    ) -> usize {
        self.frames.set_source(batch.source());
        let mut out = Out { frames: Batch::take(&mut self.frames), port, room: port.room() };
        let fits = |i: &&u16| batch.frame(usize::from(**i)).is_none_or(|f| out.add(&f, takes));
        let done = list.iter().take_while(fits).count();
        out.flush();
        out.frames.give_back(&mut self.frames);
        done
    }
}

/// Finished frames on their way to one port.
struct Out<'m, 'p> {
    frames: Batch<'m>,
    port: &'p dyn Port,
    /// What the port had room for when last asked, less what was added since.
    room: usize,
}

impl<'m> Out<'m, '_> {
    /// Adds what becomes of `frame`; false if the port has no room for it.
    fn add(&mut self, frame: &FrameView<'_, 'm>, takes: Offloads) -> bool {
        if takes.covers(frame.offload.needs()) {
            return self.reserve(1, frame.len) && self.add_as_is(frame);
        }
        let mut finisher = match Finisher::new(*frame, takes) {
            Ok(f) => f,
            Err(reason) => {
                self.port.counters().output.drop(reason, 1);
                return true;
            }
        };
        if !self.reserve(finisher.count(), frame.len) {
            return false;
        }
        loop {
            match finisher.fill(&mut self.frames) {
                Ok(false) => return true,
                // Full: send it and go on. A frame that does not fit an empty batch never will.
                Ok(true) if !self.frames.is_empty() => self.flush(),
                Ok(true) => {
                    self.port.counters().output.drop(Reason::TooLong, 1);
                    return true;
                }
                Err(reason) => {
                    self.port.counters().output.drop(reason, 1);
                    return true;
                }
            }
        }
    }

    fn add_as_is(&mut self, frame: &FrameView<'_, 'm>) -> bool {
        if !self.frames.has_room(frame.body.len()) {
            self.flush();
        }
        let body = frame.body.iter().copied();
        if let Err(reason) = self.frames.add_parts(frame.head, body, frame.offload) {
            self.port.counters().output.drop(reason, 1);
        }
        true
    }

    /// Makes sure of room for `frames`, of `len` bytes together but for their headers.
    fn reserve(&mut self, frames: usize, len: usize) -> bool {
        let wanted = frames.min(WHOLE);
        if self.room < wanted {
            self.flush();
            self.room = self.port.room();
        }
        let fits = self.room >= wanted;
        if fits {
            // A port whose ring is free promises room for a packet larger than the ring, but not
            // for two: what comes behind segments, or behind a frame that is longer than usual,
            // asks again.
            let alone = frames > 1 || len > USUAL;
            self.room = if alone { 0 } else { self.room.saturating_sub(1) };
        }
        fits
    }

    /// Sends what has been added. What finds no room in spite of the reservation is lost: another
    /// worker was faster.
    fn flush(&mut self) {
        let mut all = frame_lists::numbers();
        let list = all.get_mut(..self.frames.len()).unwrap_or_default();
        let done = self.port.push(&self.frames, list);
        let lost = self.frames.len().saturating_sub(done) as u64;
        if lost > 0 {
            self.port.counters().output.drop(Reason::ReceiverFull, lost);
        }
        self.frames.clear();
    }
}
