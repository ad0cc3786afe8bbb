//! What a worker keeps of each of its ports.

use rustix::event::epoll;
use vmlan_frame::{BATCH, Doorbell, Port, WORK};
use vmlan_switch::{Breath, Entry, Forwarder, PortId, Table};

use super::idle_rings::IdleRings;
use super::naps::Naps;

/// Lanes whose frames passed in one turn, at most: each may have read many descriptors for them.
const SERVED: usize = 8;

/// How often it is told that a port's memory is slow, in nanoseconds.
const TOLD: u64 = 60_000_000_000;

/// A port of ours and the doorbells we watch for it. Holding them keeps their numbers from being
/// reused before we have let go.
pub(super) struct Own {
    pub(super) id: PortId,
    /// Those of its lanes that are ours: at least one, in ascending order. What we count of the
    /// port is counted for the first.
    pub(super) lanes: Vec<usize>,
    /// The place of the lane whose turn it is.
    pub(super) turn: usize,
    pub(super) version: Option<u64>,
    pub(super) watched: Vec<Doorbell>,
    /// It has no tokens before this time: it is neither looked at nor armed.
    pub(super) paused_until: u64,
    /// Frames of it waited for a full receiver when it was last looked at.
    pub(super) held: bool,
    /// They did, and the next breath got nothing from it: another worker may have been busy with
    /// it. Held frames ring no doorbell.
    pub(super) passed_by: bool,
    /// It has rung since rings were last counted.
    pub(super) rang: bool,
    pub(super) idle_rings: IdleRings,
    pub(super) naps: Naps,
    /// Until then nobody is told again that its memory is slow.
    pub(super) told_until: u64,
    /// Until then its breaths are measured in each round.
    pub(super) closely: u64,
}

impl Own {
    pub(super) fn new(id: PortId, lanes: Vec<usize>) -> Self {
        let (held, passed_by, rang) = (false, false, false);
        let (watched, idle_rings, naps) = Default::default();
        Self {
            id,
            lanes,
            turn: 0,
            version: None,
            watched,
            paused_until: 0,
            held,
            passed_by,
            rang,
            idle_rings,
            naps,
            told_until: 0,
            closely: 0,
        }
    }

    /// A breath of each of its lanes, from the one whose turn it is on, until together they had as
    /// much as one could have had, or half of its work, or several had frames that passed: others
    /// wait for all of them. It never ends early with nothing done: who waits for room at one
    /// receiver would hide those who wait for another.
    pub(super) fn breath(&mut self, forwarder: &mut Forwarder, table: &Table, now: u64) -> Breath {
        let mut all = Breath::default();
        let (count, mut served) = (self.lanes.len(), 0);
        for place in (self.turn..count).chain(0..self.turn) {
            let Some(lane) = self.lanes.get(place) else { continue };
            let one = forwarder.breath(table, self.id, *lane, now);
            all.frames += one.frames;
            all.work += one.work;
            served += usize::from(one.frames > 0);
            all.held_ns = all.held_ns.into_iter().chain(one.held_ns).min();
            all.wait_ns = all.wait_ns.into_iter().chain(one.wait_ns).min();
            all.paused |= one.paused;
            all.passed_over |= one.passed_over;
            let much = all.frames >= BATCH || all.work > WORK / 2 || served == SERVED;
            if much || one.paused {
                self.turn = (place + 1) % count;
                return all;
            }
        }
        // Whoever is looked at first finds most room.
        if all.held_ns.is_some() {
            self.turn = (self.turn + 1) % count.max(1);
        }
        all
    }

    /// The lane that is counted for.
    pub(super) fn lane(&self) -> usize {
        self.lanes.first().copied().unwrap_or(0)
    }

    /// Asks for doorbells of all its lanes; true if there is something already.
    pub(super) fn arm(&self, port: &dyn Port, forwarder: &mut Forwarder, now: u64) -> bool {
        let lanes = self.lanes.iter();
        forwarder.touches((self.id, port), now, |port| {
            lanes.fold(false, |any, lane| port.arm(*lane) | any)
        })
    }

    /// Takes that back.
    pub(super) fn disarm(&self, port: &dyn Port, forwarder: &mut Forwarder, now: u64) {
        let lanes = self.lanes.iter();
        forwarder.touches((self.id, port), now, |port| lanes.for_each(|lane| port.disarm(*lane)));
    }

    /// Its memory made a worker sleep, and it is not looked at for the next `ns` nanoseconds.
    #[cold]
    pub(super) fn tell_passed_over(&mut self, entry: &Entry, ns: u64, now: u64) {
        if self.told_until > now {
            return;
        }
        self.told_until = now.saturating_add(TOLD);
        log::warn!(
            "port {}: its memory kept a worker waiting, and the port waits for {} ms: were there \
             holes made in it, or is it swapped out?",
            entry.name,
            ns.div_ceil(1_000_000)
        );
    }

    /// What its doorbells say to the worker.
    pub(super) fn data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(self.id.index() as u64)
    }

    /// What is heard of its doorbells.
    pub(super) fn flags(&self) -> epoll::EventFlags {
        match self.idle_rings.is_muted() {
            true => epoll::EventFlags::empty(),
            false => epoll::EventFlags::IN | epoll::EventFlags::ET,
        }
    }
}
