//! Delivery to a receiver that did not negotiate all that the frames need: they are finished in
//! software first (checksums, segments) in a batch of our own, which still borrows the sender's
//! payload.

use std::cell::Cell;

use vmlan_frame::{BATCH, Batch, Finisher, FrameView, Offloads, Port, Reason};

use crate::frame_lists;

/// Segments that must find room before a frame's first one is sent, at most: a frame of more may
/// lose its tail to a full receiver, as a real wire would.
const WHOLE: usize = 128;

/// Lanes whose room is known apart; those of a port that has more share what is known.
const LANES: usize = 64;

/// A frame of Ethernet's usual length, with a tag: what ports count their room in.
const USUAL: usize = 1518;

/// Storage for finished frames.
pub(crate) struct Finished {
    frames: Batch<'static>,
    /// Finished frames that found no room.
    lost: usize,
}

impl Finished {
    pub(crate) fn new() -> Self {
        Self { frames: Batch::new(), lost: 0 }
    }

    /// As [`Port::push`], for frames of which some need more than the receiver `takes`. If it
    /// cannot be waited for (`may_wait`), it gets as many segments of a frame as it has room for.
    /// A guest that leaves one of its lanes full costs the frames of its other lanes nothing.
    pub(crate) fn push(
        &mut self,
        batch: &Batch<'_>,
        list: &mut [u16],
        (port, takes): (&dyn Port, Offloads),
        may_wait: bool,
    ) -> usize {
        self.frames.set_source(batch.source());
        let (frames, lanes) = (Batch::take(&mut self.frames), port.lanes() > 1);
        let whole = if may_wait { WHOLE } else { 1 };
        let mut out = Out { frames, port, whole, lane: 0, rooms: [None; LANES], lost: 0 };
        // Those dealt with move to the front, over places that were read before; the others are
        // kept aside. A lane that was once too full gets no more: frames would overtake others.
        let list = Cell::from_mut(list).as_slice_of_cells();
        let (mut places, mut full) = (list.iter(), 0u64);
        let (mut rest, mut held) = ([0; BATCH], 0);
        for number in list.iter().map(Cell::get) {
            let i = usize::from(number);
            if lanes {
                out.lane = port.lane_for(batch, i);
            }
            let bit = 1 << (out.lane % LANES);
            let fits = full & bit == 0 && batch.frame(i).is_none_or(|f| out.add(&f, takes));
            let place = if fits { places.next() } else { None };
            if let Some(place) = place {
                place.set(number);
            } else {
                full |= bit;
                if let Some(place) = rest.get_mut(held) {
                    *place = number;
                }
                held += 1;
            }
        }
        let done = list.len() - places.len();
        places.zip(rest).for_each(|(place, number)| place.set(number));
        out.flush();
        self.lost += out.lost;
        out.frames.give_back(&mut self.frames);
        done
    }

    /// How many finished frames found no room since this was last asked.
    pub(crate) fn take_lost(&mut self) -> usize {
        std::mem::take(&mut self.lost)
    }
}

/// Finished frames on their way to one port.
struct Out<'m, 'p> {
    frames: Batch<'m>,
    port: &'p dyn Port,
    /// As [`WHOLE`].
    whole: usize,
    /// The lane that the present frame goes to.
    lane: usize,
    /// What each lane had room for when last asked, less what was added since.
    rooms: [Option<u16>; LANES],
    lost: usize,
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
        let wanted = frames.min(self.whole);
        let known = self.rooms.get(self.lane % LANES).copied().flatten();
        let mut room = known.map_or(0, usize::from);
        if room < wanted {
            // Nothing was added for a lane of which nothing is known.
            if known.is_some() {
                self.flush();
            }
            room = self.port.room_in(self.lane, wanted);
        }
        let fits = room >= wanted;
        if fits {
            // A port whose ring is free promises room for a packet larger than the ring, but not
            // for two: what comes behind segments, or behind a frame that is longer than usual,
            // asks again.
            let alone = frames > 1 || len > USUAL;
            room = if alone { 0 } else { room.saturating_sub(1) };
        }
        if let Some(place) = self.rooms.get_mut(self.lane % LANES) {
            *place = Some(u16::try_from(room).unwrap_or(u16::MAX));
        }
        fits
    }

    /// Sends what has been added. What finds no room in spite of the reservation is lost: another
    /// worker was faster, or the receiver cannot be waited for.
    fn flush(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        let mut all = frame_lists::numbers();
        let list = all.get_mut(..self.frames.len()).unwrap_or_default();
        let done = self.port.push(&self.frames, list);
        let lost = self.frames.len().saturating_sub(done);
        if lost > 0 {
            self.port.counters().output.drop(Reason::ReceiverFull, lost as u64);
            self.lost += lost;
        }
        self.frames.clear();
    }
}
