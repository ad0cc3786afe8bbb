//! Transmit, the beginning: descriptors become frames of the batch.

use vmlan_frame::{BATCH, Batch, Reason, work};
use vmlan_ram::{Slice, recycle};

use super::transmit::{CHUNK, ChipOf, Flight, Setup, State, Transmit};
use super::tx_plan;
use super::tx_scan::{Found, MAX_PIECES, Scan, Span, Want, scan};
use super::{DescriptorRing, Look, SIZE, add, distance};
use crate::bits::small;
use crate::chip::Chip;
use crate::chip::frame_totals::SHORTEST;

/// One pull.
pub struct Pass<'q, T: Transmit> {
    pub ring: &'q T::Ring,
    pub look: Look,
    pub setup: Setup,
    pub chip: &'q ChipOf<T>,
    /// Descriptors that may still be read.
    pub budget: usize,
    /// Work that may still be lent.
    pub work: usize,
    pub dropped: usize,
}

impl<'q, T: Transmit> Pass<'q, T> {
    /// Puts frames into the batch, a chunk at a time, in two passes: the first reads descriptors
    /// and asks for the frames' first bytes, so that their cache misses overlap; the second looks
    /// at them.
    pub fn collect(&mut self, state: &mut State<T>, batch: &mut Batch<'q>, limit: usize) {
        state.lent.clear();
        state.stalled = None;
        let mut pieces: Vec<Slice<'q>> = recycle(std::mem::take(&mut state.pieces));
        if self.lend_held(state, batch, limit, &mut pieces) {
            while self.may_go_on(state, batch, limit) {
                if usize::from(self.singles(state, batch, limit)) == CHUNK {
                    continue;
                }
                if !self.may_go_on(state, batch, limit) {
                    break;
                }
                pieces.clear();
                state.found.clear();
                let more = self.find(state, limit, &mut pieces);
                self.add(state, batch, &mut pieces);
                if !more {
                    break;
                }
            }
        }
        state.pieces = recycle(pieces);
    }

    #[inline]
    fn may_go_on(&self, state: &State<T>, batch: &Batch<'q>, limit: usize) -> bool {
        state.lent.len() < limit
            && state.has_room(&self.look)
            && self.work > 0
            && self.budget > 0
            && state.next != self.look.tail
            && batch.has_room(CHUNK + MAX_PIECES)
    }

    /// Descriptors not looked at.
    #[inline]
    fn posted(&self, state: &State<T>) -> u32 {
        distance(state.next, self.look.tail, self.look.size)
    }

    /// Lends again what was held. False if not all of it: what follows must wait.
    fn lend_held(
        &mut self,
        state: &mut State<T>,
        batch: &mut Batch<'q>,
        limit: usize,
        pieces: &mut Vec<Slice<'q>>,
    ) -> bool {
        for index in 0..state.flights.len() {
            let Some(flight) = state.flights.get(index).filter(|f| f.held).copied() else {
                continue;
            };
            let most = state.lent.len() < limit && self.work > 0 && self.budget > 0;
            if !most || !batch.has_room(CHUNK + MAX_PIECES) {
                return false;
            }
            state.found.clear();
            pieces.clear();
            let want = Want { context: flight.context, ..Want::default() };
            let number = small(index);
            let mut found = Found { flight: number, want, ..Found::default() };
            let first = self.ring.read(flight.at);
            let span = Span { at: flight.at, first, posted: flight.count, size: self.look.size };
            if scan::<T>(self.ring, span, pieces, &mut found) != Scan::Frame(flight.count) {
                found.bad = Some(Reason::BadDescriptor);
            }
            self.budget = self.budget.saturating_sub(flight.count as usize);
            self.charge(&found);
            state.found.push(found);
            self.add(state, batch, pieces);
        }
        true
    }

    /// Both passes for the usual case: descriptors each with a whole frame about which nothing is
    /// to be said. Returns how many there were before another kind, up to a chunk.
    #[inline]
    fn singles(&mut self, state: &mut State<T>, batch: &mut Batch<'q>, limit: usize) -> u16 {
        if state.skipping || !T::has_plain(self.setup) {
            return 0;
        }
        let mut pieces = [Slice::from_bytes(&[]); CHUNK];
        let room = (limit - state.lent.len()).min(BATCH - state.flights.len()).min(CHUNK);
        let n = self.find_singles(state, room, &mut pieces);
        let first = small(state.flights.len());
        state.lent.extend(first..first + n);
        state.flights.extend((0..n).scan(state.next, |next, _| {
            let at = std::mem::replace(next, add(*next, 1, self.look.size));
            Some(Flight { at, count: 1, ..Flight::default() })
        }));
        state.next = add(state.next, n.into(), self.look.size);
        for (number, piece) in (first..).zip(pieces.get(..usize::from(n)).unwrap_or_default()) {
            if let Err(reason) = batch.add_plain(*piece) {
                state.lent.retain(|lent| *lent != number);
                self.drop(reason);
            }
        }
        n
    }

    #[inline]
    fn find_singles(
        &mut self,
        state: &State<T>,
        room: usize,
        pieces: &mut [Slice<'q>; CHUNK],
    ) -> u16 {
        let shortest = if self.setup.pad { SHORTEST } else { vmlan_frame::MIN_FRAME };
        let posted = self.posted(state).min(self.look.size - state.next) as usize;
        let mut words = [[0; SIZE]; CHUNK];
        let words = words.get_mut(..posted.min(room).min(self.budget)).unwrap_or_default();
        self.ring.copy(state.next, words);
        let (mut found, mut bytes) = (0u16, 0);
        for (place, desc) in pieces.iter_mut().zip(words) {
            let (addr, word) = T::Ring::split(desc);
            let len = T::len(word) as usize;
            if word & T::MASK != T::PLAIN || len < shortest || !T::has_data(addr, word) {
                break;
            }
            // What is not in one region is left to the thorough way.
            let Some(piece) = self.ring.map().slice(addr, len) else { break };
            piece.prefetch();
            piece.sub(64, 1).prefetch();
            *place = piece;
            (found, bytes) = (found + 1, bytes + len);
            if bytes >= self.work {
                break;
            }
        }
        self.budget -= usize::from(found);
        self.work = self.work.saturating_sub(bytes);
        found
    }

    /// First pass: reads up to a chunk of frames. False at the end of what can be read now.
    #[inline(never)]
    fn find(&mut self, state: &mut State<T>, limit: usize, pieces: &mut Vec<Slice<'q>>) -> bool {
        let room = (limit - state.lent.len()).min(BATCH - state.flights.len()).min(CHUNK);
        while state.found.len() < room && pieces.len() < CHUNK && self.work > 0 {
            if state.next == self.look.tail || self.budget == 0 {
                return false;
            }
            let (addr, word) = self.ring.read(state.next);
            if state.skipping {
                self.pass_over(state, 1);
                state.skipping = !T::is_last(word);
            } else if T::between(&mut state.memory, addr, word) {
                self.pass_over(state, 1);
            } else if !self.find_one(state, (addr, word), pieces) {
                return false;
            }
        }
        true
    }

    /// What the frame costs beside its descriptors, whether or not it is dropped.
    fn charge(&mut self, found: &Found<T>) {
        self.budget = self.budget.saturating_sub(found.crossed.into());
        let size = T::segments(&found.want).unwrap_or(0);
        self.work = self.work.saturating_sub(work(found.len as usize, size));
    }

    fn pass_over(&mut self, state: &mut State<T>, n: u32) {
        state.next = add(state.next, n, self.look.size);
        self.budget = self.budget.saturating_sub(n as usize);
    }

    /// Reads the frame that begins with the next descriptor, `first`. False if its end is not
    /// posted.
    #[inline]
    fn find_one(
        &mut self,
        state: &mut State<T>,
        first: (u64, u64),
        pieces: &mut Vec<Slice<'q>>,
    ) -> bool {
        let context = T::context(&state.memory, first.1);
        let flight = small(state.flights.len());
        let mut found =
            Found { flight, want: Want { context, ..Want::default() }, ..Found::default() };
        let posted = self.posted(state);
        let span = Span { at: state.next, first, posted, size: self.look.size };
        match scan::<T>(self.ring, span, pieces, &mut found) {
            Scan::Frame(count) => {
                state.flights.push(Flight { at: state.next, count, held: false, context });
                self.pass_over(state, count);
                self.charge(&found);
                state.found.push(found);
                true
            }
            // A ring can hold no more than this of it.
            Scan::Open if posted + 1 < self.look.size => {
                state.stalled = Some((self.look.tail, self.look.size));
                false
            }
            Scan::Open | Scan::Endless => {
                state.skipping = true;
                self.charge(&found);
                self.drop(Reason::TooLong);
                true
            }
        }
    }

    /// Second pass: looks at the frames, adds them to the batch.
    #[inline(never)]
    fn add(&mut self, state: &mut State<T>, batch: &mut Batch<'q>, pieces: &mut [Slice<'q>]) {
        for found in &state.found {
            let range = usize::from(found.first)..usize::from(found.first + found.count);
            let bytes = pieces.get_mut(range).unwrap_or_default();
            if let Some(flight) = state.flights.get_mut(usize::from(found.flight)) {
                flight.held = false;
            }
            match tx_plan::add(found, bytes, self.setup, batch) {
                Ok(()) => state.lent.push(found.flight),
                Err(reason) => {
                    if T::segments(&found.want).is_some() {
                        T::stats(self.ring, self.chip).failed.add(1);
                    }
                    self.drop(reason);
                }
            }
        }
    }

    #[cold]
    fn drop(&mut self, reason: Reason) {
        self.dropped += 1;
        self.chip.core().counters.input.drop(reason, 1);
    }
}
