//! For whom a source's lanes are held up.
//!
//! Buffers are given back in order, so a lane of which a frame is held for one receiver cannot go
//! on for others without end either. What counts is the *head*: the first frame of a batch, if it
//! is held. A lane may have several rings (queues that share it, or a chip's), each of which lends
//! batches of its own, and has a head.

use super::{Pass, State};
use crate::PortId;
use crate::full_wait::Waits;

/// Rings of a lane, at most: vmxnet3 has eight that send.
const RINGS: usize = 8;

/// A receiver for which heads of a lane are held.
#[derive(Clone, Copy, Debug)]
struct Head {
    receiver: PortId,
    /// Since when; later by what the receiver has taken of the source, and by time in which nobody
    /// looked.
    since: u64,
    /// When one was last held.
    seen: u64,
}

/// All of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heads([Option<Head>; RINGS]);

impl Heads {
    /// Forgets what has not been seen for long. True if there are others.
    fn refresh(&mut self, waits: &Waits, now: u64) -> bool {
        for place in &mut self.0 {
            *place = place.filter(|head| now.saturating_sub(head.seen) < waits.period());
        }
        self.0.iter().any(Option::is_some)
    }

    fn are_for(&self, receiver: PortId) -> bool {
        self.0.iter().flatten().any(|head| head.receiver == receiver)
    }

    fn of(&mut self, receiver: PortId) -> Option<&mut Head> {
        self.0.iter_mut().flatten().find(|head| head.receiver == receiver)
    }

    /// The receiver has taken `frames` of the usual length from the source.
    fn served(&mut self, receiver: PortId, frames: usize, now: u64) {
        if let Some(head) = self.of(receiver) {
            head.since = head.since.saturating_add(Waits::earned(frames)).min(now);
        }
    }

    /// One is held for `receiver`, which is full. True if they have been for too long.
    fn held(&mut self, receiver: PortId, waits: &Waits, now: u64) -> bool {
        let Some(head) = self.of(receiver) else {
            let is_over = |head: &Head| now.saturating_sub(head.seen) > waits.most();
            let place = self.0.iter_mut().find(|place| place.as_ref().is_none_or(is_over));
            if let Some(place) = place {
                *place = Some(Head { receiver, since: now, seen: now });
            }
            return false;
        };
        // Held frames are looked at again before `most` is over. If they were not, it was not this
        // receiver that they waited for.
        let unseen = now.saturating_sub(head.seen).saturating_sub(waits.most());
        head.since = head.since.saturating_add(unseen);
        head.seen = now;
        let too_long = waits.is_too_long(now.saturating_sub(head.since));
        if too_long {
            self.0.iter_mut().for_each(|at| *at = at.filter(|head| head.receiver != receiver));
        }
        too_long
    }
}

impl State {
    fn heads(&mut self, source: PortId, lane: usize) -> Option<&mut Heads> {
        self.heads.get_mut(source.index())?.get_mut(lane)
    }

    /// True if heads of the source are held, or were not long ago.
    #[inline]
    pub(super) fn has_heads(&mut self, source: PortId, waits: &Waits, now: u64) -> bool {
        let has = self.has_heads.get(source.index()).is_some_and(|has| *has);
        has && self.refresh_heads(source, waits, now)
    }

    #[cold]
    fn refresh_heads(&mut self, source: PortId, waits: &Waits, now: u64) -> bool {
        let lanes = self.heads.get_mut(source.index()).map_or(&mut [][..], Vec::as_mut_slice);
        let any = lanes.iter_mut().fold(false, |any, heads| heads.refresh(waits, now) | any);
        if let Some(has) = self.has_heads.get_mut(source.index()) {
            *has = any;
        }
        any
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
            heads.served(to, frames, self.now);
        }
    }

    /// Frame `i` is held for `to`, which is full. If heads have been for too long, their source
    /// does not wait for that receiver any more, whatever it takes from others.
    #[cold]
    pub(super) fn note_full(&mut self, i: usize, to: PortId) {
        let (waits, now) = (&self.switch.waits, self.now);
        let head = match self.mixed {
            false => (i == self.first).then_some((self.source, self.lane)),
            true => self.state.senders.iter().find(|s| s.first == i).map(|s| (s.source, 0)),
        };
        let Some((source, lane)) = head else { return };
        if let Some(has) = self.state.has_heads.get_mut(source.index()) {
            *has = true;
        }
        if self.state.heads(source, lane).is_some_and(|heads| heads.held(to, waits, now)) {
            waits.give_up(to, source, now);
        }
    }
}
