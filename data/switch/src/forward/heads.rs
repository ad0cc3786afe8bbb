//! For whom a source's lanes are held up.
//!
//! Buffers are given back in order, so a ring of which a frame is held for one receiver cannot go
//! on for others without end either. What counts is the *head*: the first frame that a ring lends,
//! if it is held. A lane may have several rings (queues that share it, or a chip's), each of which
//! lends batches of its own.

use super::{Pass, State};
use crate::PortId;
use crate::full_wait::Waits;

/// How many receivers a lane's heads may be held for by turns: beyond it the one that was seen
/// least lately is forgotten.
const PLACES: usize = 8;

/// A receiver for which heads of a ring are held.
#[derive(Clone, Copy, Debug)]
struct Head {
    ring: u8,
    receiver: PortId,
    /// For how long, less what the receiver has taken of the ring meanwhile, in nanoseconds.
    waited: u64,
    /// When one was held or taken last.
    seen: u64,
    /// It was taken, and none has been seen since.
    gone: bool,
}

impl Head {
    /// It is still held, or was until now. What is held is looked at again before `most` is over:
    /// if it was not, it was not the receiver that it waited for.
    fn wait(&mut self, most: u64, now: u64) {
        if !self.gone {
            self.waited += now.saturating_sub(self.seen).min(most);
        }
        self.seen = now;
    }
}

/// All of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heads([Option<Head>; PLACES]);

impl Heads {
    /// Forgets what has not been seen for long; true if there are others.
    fn refresh(&mut self, waits: &Waits, now: u64) -> bool {
        for place in &mut self.0 {
            *place = place.filter(|head| now.saturating_sub(head.seen) < waits.period());
        }
        self.0.iter().any(Option::is_some)
    }

    fn are_for(&self, receiver: PortId) -> bool {
        self.0.iter().flatten().any(|head| head.receiver == receiver)
    }

    fn of(&mut self, ring: u8, receiver: PortId) -> Option<&mut Head> {
        let mut heads = self.0.iter_mut().flatten();
        heads.find(|head| (head.ring, head.receiver) == (ring, receiver))
    }

    /// The receiver has taken `frames` of the usual length from the ring.
    fn served(&mut self, ring: u8, receiver: PortId, frames: usize, waits: &Waits, now: u64) {
        if let Some(head) = self.of(ring, receiver) {
            head.wait(waits.most(), now);
            head.waited = head.waited.saturating_sub(Waits::earned(frames));
            head.gone = true;
        }
    }

    /// One is held for `receiver`, which is full. True if they have been for too long.
    fn held(&mut self, ring: u8, receiver: PortId, waits: &Waits, now: u64) -> bool {
        let Some(head) = self.of(ring, receiver) else {
            let seen = |place: &Option<Head>| place.map_or(0, |head| head.seen);
            if let Some(place) = self.0.iter_mut().min_by_key(|place| seen(place)) {
                *place = Some(Head { ring, receiver, waited: 0, seen: now, gone: false });
            }
            return false;
        };
        head.wait(waits.most(), now);
        head.gone = false;
        let too_long = waits.is_too_long(head.waited);
        if too_long {
            let is_it = |head: &Head| (head.ring, head.receiver) == (ring, receiver);
            self.0.iter_mut().for_each(|place| *place = place.filter(|head| !is_it(head)));
        }
        too_long
    }
}

/// The bit of a lane; those behind the 63rd share one.
fn bit(lane: usize) -> u64 {
    1 << lane.min(63)
}

impl State {
    fn heads(&mut self, source: PortId, lane: usize) -> Option<&mut Heads> {
        self.heads.get_mut(source.index())?.get_mut(lane)
    }

    /// True if heads of the lane are held, or were not long ago.
    #[inline]
    pub(super) fn has_heads(
        &mut self,
        (source, lane): (PortId, usize),
        waits: &Waits,
        now: u64,
    ) -> bool {
        let lanes = self.has_heads.get(source.index()).copied().unwrap_or(0);
        lanes & bit(lane) != 0 && self.refresh_heads(source, lane, waits, now)
    }

    #[cold]
    fn refresh_heads(&mut self, source: PortId, lane: usize, waits: &Waits, now: u64) -> bool {
        let has = self.heads(source, lane).is_some_and(|heads| heads.refresh(waits, now));
        if let Some(lanes) = self.has_heads.get_mut(source.index()).filter(|_| !has && lane < 63) {
            *lanes &= !bit(lane);
        }
        has
    }

    /// True if heads of somebody who has frames for `to` in this joint breath are held for it, or
    /// were not long ago.
    #[cold]
    fn are_some_held_for(&self, to: PortId) -> bool {
        let heads = |source: PortId| self.heads.get(source.index())?.first();
        let mut senders = self.senders.iter().filter(|sender| sender.worth > 0);
        senders.any(|sender| heads(sender.source).is_some_and(|heads| heads.are_for(to)))
    }
}

impl Pass<'_> {
    /// True if the frames of all who have some for `to` in this joint breath may be handed to it
    /// together: none of them waits for it for long, or does not wait any more.
    #[inline]
    pub(super) fn none_waits_long_for(&self, to: PortId) -> bool {
        let (waits, now) = (&self.switch.waits, self.now);
        let gives_up = |source| waits.is_given_up(to, source, now);
        let mut senders = self.state.senders.iter().filter(|sender| sender.worth > 0);
        let given_up = waits.are_some_given_up(now) && senders.any(|s| gives_up(s.source));
        let held = self.has_heads && self.state.are_some_held_for(to);
        !given_up && !held
    }

    /// The receiver took so many frames of the usual length.
    #[cold]
    pub(super) fn note_served(&mut self, to: PortId, frames: usize) {
        if let Some(heads) = self.state.heads(self.source, self.lane) {
            heads.served(self.ring, to, frames, &self.switch.waits, self.now);
        }
    }

    /// Frame `i` is held for `to`, which is full. If heads have been for too long, their source
    /// does not wait for that receiver any more, whatever it takes from others.
    #[cold]
    pub(super) fn note_full(&mut self, i: usize, to: PortId) {
        let (waits, now) = (&self.switch.waits, self.now);
        let head = match self.mixed {
            false => (i == self.first).then_some((self.source, self.lane, self.ring)),
            true => {
                let sender = self.state.senders.iter().find(|sender| sender.first == i);
                sender.map(|sender| (sender.source, 0, sender.ring))
            }
        };
        let Some((source, lane, ring)) = head else { return };
        if let Some(lanes) = self.state.has_heads.get_mut(source.index()) {
            *lanes |= bit(lane);
        }
        let heads = self.state.heads(source, lane);
        if heads.is_some_and(|heads| heads.held(ring, to, waits, now)) {
            waits.give_up(to, source, now);
        }
    }
}
