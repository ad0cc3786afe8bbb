//! The transmit side: descriptors between TDH and TDT become frames that are lent, and are written back when those are
//! finished with (SDM 3.3, 3.4).
//!
//! ```text
//!        TDH = head              next                    TDT
//!         │ in flight: lent or held │ not looked at yet   │
//!    ─────┴──────────────┬──────────┴─────────────────────┴──────► ring
//!      a flight: [ data ][ data EOP ]   write-back strictly in order, up to the first flight that is held
//! ```
//!
//! Context descriptors and those without data belong to no flight: they are passed with the flight before them.
//! Frames that the sink holds are found again by their first descriptor when they are lent again; descriptors that make another
//! frame then are the guest's fault, and the frame is dropped.
//!
//! What one pull does is bounded, whatever the ring holds: [`BUDGET`] descriptors, [`WORK`] bytes, 256 frames.

use std::sync::Arc;

use vmlan_frame::{BATCH, Batch, Gso, Offloads, Reason, Sink, Verdict};
use vmlan_ram::{Map, Slice, recycle};

use super::E1000;
use super::Trouble;
use super::desc::{CTRL_VME, Context, Kind, SIZE, data_len, kind, tctl, tx, upper};
use super::irq::cause;
use super::regs::{self, Registers};
use super::ring::{Look, Ring, TRANSMIT, add, distance};
use super::stats::{Cast, SHORTEST, Sums};
use super::tx_frame::{self, Setup};
use super::tx_scan::{Found, MAX_PIECES, Scan, Span, Want, scan};

/// Frames whose descriptors are read, and whose first bytes are asked for, before the first is looked at.
const CHUNK: usize = 32;
const CHUNK_U32: u32 = 32;

/// Descriptors one pull visits, whatever the guest posts; the last frame may exceed it.
const BUDGET: usize = 4096;

/// Work one pull lends, in bytes to copy; the last frame may exceed it.
const WORK: usize = 1 << 20;

/// What a segment costs whoever has to cut it off, in bytes to copy.
const SEGMENT: usize = 512;

/// A frame that was lent and whose descriptors are not written back.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    at: u32,
    count: u32,
    /// To be lent again.
    held: bool,
    context: Context,
}

/// What a pull did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames finished, those dropped here included.
    pub finished: usize,
    /// Interrupt causes to post, without locks.
    pub causes: u32,
    /// Every descriptor that reports its status had IDE set.
    pub delayed: bool,
}

/// The transmit side of a chip.
pub struct Tx {
    ring: Ring,
    state: State,
}

struct State {
    /// First descriptor that was not looked at.
    next: u32,
    /// The contexts for checksums and for segmentation (3.3.6).
    checksum: Context,
    segmentation: Context,
    /// Descriptors up to the next EOP belong to a frame that was dropped.
    skipping: bool,
    /// The tail at which a frame was found unfinished.
    stalled: Option<u32>,
    /// In ring order, at most 256.
    flights: Vec<Flight>,
    /// For each frame of the batch, its flight.
    lent: Vec<u16>,
    found: Vec<Found>,
    pieces: Vec<Slice<'static>>,
}

impl Default for Tx {
    fn default() -> Self {
        let state = State {
            next: 0,
            checksum: Context::default(),
            segmentation: Context::default(),
            skipping: false,
            stalled: None,
            flights: Vec::with_capacity(BATCH),
            lent: Vec::with_capacity(BATCH),
            found: Vec::with_capacity(CHUNK),
            pieces: Vec::with_capacity(CHUNK + MAX_PIECES),
        };
        Self { ring: Ring::new(&TRANSMIT), state }
    }
}

impl State {
    fn restart(&mut self, head: u32) {
        self.next = head;
        self.skipping = false;
        self.stalled = None;
        self.flights.clear();
    }
}

impl Tx {
    /// Replaces the map. No frame is lent.
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    /// Forgets everything about the ring but its registers: TDH stands at the first descriptor that is not written back.
    pub fn stop(&mut self) {
        self.ring.forget();
        self.state.restart(0);
    }

    /// As after power-on. The registers are the caller's.
    pub fn reset(&mut self) {
        self.stop();
        self.state.checksum = Context::default();
        self.state.segmentation = Context::default();
    }

    pub fn trouble(&self) -> Option<Trouble> {
        self.ring.trouble()
    }

    /// Reads the registers; `None` if there is no ring to serve.
    fn look(&mut self, regs: &Registers) -> Option<Look> {
        let look = self.ring.look(regs).ok().filter(|look| look.size > 0)?;
        let state = &mut self.state;
        let ahead = |to| distance(look.head, to, look.size);
        // A tail that went back behind what is in flight takes it out of the chip's hands.
        if look.moved || state.next >= look.size || ahead(look.tail) < ahead(state.next) {
            state.restart(look.head);
        }
        Some(look)
    }

    /// True if descriptors wait that were never looked at. Frames that are held do not count.
    pub fn waiting(&mut self, regs: &Registers) -> bool {
        let Some(look) = self.look(regs) else { return false };
        let state = &self.state;
        look.tail != state.next && state.stalled != Some(look.tail) && state.flights.len() < BATCH
    }

    /// Lends up to `limit` frames to `sink`, those that were held first, and writes back the descriptors of what is
    /// finished. Storage for the frames is `spare`'s.
    pub fn transmit(
        &mut self,
        chip: &E1000,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        let Some(look) = self.look(&chip.regs) else { return Sent::default() };
        if look.tail == look.head {
            return Sent::default();
        }
        let Self { ring, state } = self;
        let vlan = chip.regs.get(regs::CTRL) & CTRL_VME != 0;
        let [v0, v1, ..] = chip.regs.get(regs::VET).to_le_bytes();
        let setup = Setup {
            vlan: vlan.then_some(u16::from_le_bytes([v0, v1])),
            pad: chip.regs.get(regs::TCTL) & tctl::PSP != 0,
        };
        let mut batch = Batch::take(spare);
        let mut pass =
            Pass { ring: &*ring, look, setup, chip, budget: BUDGET, work: WORK, dropped: 0 };
        pass.collect(state, &mut batch, limit.min(BATCH));
        let mut finished = pass.dropped;
        if !batch.is_empty() {
            sink.deliver(&mut batch);
            finished += count(chip, &batch);
        }
        let to = settle(state, &batch);
        batch.give_back(spare);
        let (causes, delayed) = self.complete(&chip.regs, look, to);
        Sent { finished, causes, delayed }
    }

    /// Writes back all descriptors before `to`, and publishes the head (3.3.3.1: STA).
    #[inline]
    fn complete(&mut self, regs: &Registers, look: Look, to: u32) -> (u32, bool) {
        let (mut at, mut left) = (look.head, distance(look.head, to, look.size));
        if left == 0 {
            return (0, false);
        }
        let (mut reported, mut delayed) = (false, true);
        let mut words = [[0; SIZE]; CHUNK];
        while left > 0 {
            let n = left.min(CHUNK_U32).min(look.size - at);
            let chunk = words.get_mut(..n as usize).unwrap_or_default();
            self.ring.copy(at, chunk);
            for (index, desc) in (at..).zip(chunk) {
                let (_, word) = split(desc);
                if word & (tx::RS | tx::RPS) != 0 {
                    self.ring.write_status(index, upper(word) & !tx::STA | tx::DD);
                    reported = true;
                    delayed &= word & tx::IDE != 0;
                }
            }
            at = add(at, n, look.size);
            left -= n;
        }
        self.ring.publish(regs, to);
        let written = if reported { cause::TXDW } else { 0 };
        let empty = if to == look.tail { cause::TXQE } else { 0 };
        (written | empty, reported && delayed)
    }
}

/// A descriptor's two quadwords.
#[inline]
fn split(desc: &[u8; SIZE]) -> (u64, u64) {
    let both = u128::from_le_bytes(*desc);
    let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or(0);
    (half(both), half(both >> 64))
}

/// The work that a frame can make for one receiver.
#[inline]
fn work(len: usize, gso_size: u16) -> usize {
    if gso_size == 0 { len } else { len + len / usize::from(gso_size) * SEGMENT }
}

/// Notes what is held. Returns the first descriptor that is not to be written back yet.
#[inline]
fn settle(state: &mut State, batch: &Batch<'_>) -> u32 {
    if batch.any_held() {
        for (i, flight) in state.lent.iter().enumerate() {
            if batch.verdict(i) == Verdict::Held
                && let Some(flight) = state.flights.get_mut(usize::from(*flight))
            {
                flight.held = true;
            }
        }
    }
    let Some(first) = state.flights.iter().position(|f| f.held) else {
        state.flights.clear();
        return state.next;
    };
    state.flights.drain(..first);
    state.flights.first().map_or(state.next, |f| f.at)
}

/// Counts the frames that are finished with; returns how many.
#[inline]
fn count(chip: &E1000, batch: &Batch<'_>) -> usize {
    let mut sums = Sums::default();
    let (mut frames, mut bytes) = (batch.len(), batch.bytes());
    if batch.any_held() || !Offloads::CSUM.covers(batch.needs()) {
        (frames, bytes) = count_mixed(chip, batch, &mut sums);
    } else {
        for i in 0..batch.len() {
            sums.add(Cast::of(batch.macs(i).0), batch.frame_len(i));
        }
    }
    chip.counters.input.count(frames, bytes);
    chip.stats.tx.count(sums);
    frames
}

/// As [`count`], where frames may be held or segmented. Returns frames and bytes.
#[inline(never)]
fn count_mixed(chip: &E1000, batch: &Batch<'_>, sums: &mut Sums) -> (usize, u64) {
    let (mut frames, mut bytes) = (0, 0);
    for i in (0..batch.len()).filter(|i| batch.verdict(*i) == Verdict::Done) {
        let Some(frame) = batch.frame(i) else { break };
        frames += 1;
        bytes += frame.len as u64;
        let cast = Cast::of(batch.macs(i).0);
        if frame.offload.gso == Gso::None {
            sums.add(cast, frame.len);
            continue;
        }
        // The wire sees the segments (13.7: GPTC, TSCTC).
        let size = usize::from(frame.offload.gso_size).max(1);
        let headers = usize::from(frame.offload.hdr_len);
        let payload = frame.len.saturating_sub(headers);
        sums.add_many(cast, headers + size, (payload / size) as u64);
        if !payload.is_multiple_of(size) {
            sums.add(cast, headers + payload % size);
        }
        chip.stats.tx.special.add(1);
    }
    (frames, bytes)
}

/// One pull.
struct Pass<'q> {
    ring: &'q Ring,
    look: Look,
    setup: Setup,
    chip: &'q E1000,
    /// Descriptors that may still be read.
    budget: usize,
    /// Work that may still be lent.
    work: usize,
    dropped: usize,
}

impl<'q> Pass<'q> {
    /// Puts frames into the batch, a chunk at a time, in two passes: the first reads descriptors and asks for the frames'
    /// first bytes, so that their cache misses overlap; the second looks at them.
    fn collect(&mut self, state: &mut State, batch: &mut Batch<'q>, limit: usize) {
        state.lent.clear();
        state.stalled = None;
        let mut pieces: Vec<Slice<'q>> = recycle(std::mem::take(&mut state.pieces));
        if self.lend_held(state, batch, limit, &mut pieces) {
            while self.may_go_on(state, batch, limit) {
                if self.singles(state, batch, limit) == CHUNK {
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
    fn may_go_on(&self, state: &State, batch: &Batch<'q>, limit: usize) -> bool {
        state.lent.len() < limit
            && state.flights.len() < BATCH
            && self.work > 0
            && self.budget > 0
            && state.next != self.look.tail
            && batch.has_room(CHUNK + MAX_PIECES)
    }

    /// Descriptors not looked at.
    #[inline]
    fn posted(&self, state: &State) -> u32 {
        distance(state.next, self.look.tail, self.look.size)
    }

    /// Lends again what was held. False if not all of it: what follows must wait.
    fn lend_held(
        &mut self,
        state: &mut State,
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
            let number = u16::try_from(index).unwrap_or(0);
            let mut found = Found { flight: number, want, ..Found::default() };
            let first = self.ring.read(flight.at);
            let span = Span { at: flight.at, first, posted: flight.count, size: self.look.size };
            if scan(self.ring, span, pieces, &mut found) != Scan::Frame(flight.count) {
                found.bad = Some(Reason::BadDescriptor);
            }
            self.budget = self.budget.saturating_sub(flight.count as usize);
            self.charge(&found);
            state.found.push(found);
            self.add(state, batch, pieces);
        }
        true
    }

    /// Both passes for the usual case: legacy descriptors, each with a whole frame about which nothing is to be said.
    /// Returns how many there were before another kind, up to a chunk.
    #[inline]
    fn singles(&mut self, state: &mut State, batch: &mut Batch<'q>, limit: usize) -> usize {
        if state.skipping {
            return 0;
        }
        let mut pieces = [Slice::from_bytes(&[]); CHUNK];
        let room = (limit - state.lent.len()).min(BATCH - state.flights.len()).min(CHUNK);
        let n = self.find_singles(state, room, &mut pieces);
        // Both are at most 256.
        let small = |n| u16::try_from(n).unwrap_or(0);
        let first = small(state.flights.len());
        state.lent.extend(first..first + small(n));
        state.flights.extend((0..n).scan(state.next, |next, _| {
            let at = std::mem::replace(next, add(*next, 1, self.look.size));
            Some(Flight { at, count: 1, ..Flight::default() })
        }));
        state.next = add(state.next, small(n).into(), self.look.size);
        for (number, piece) in (first..).zip(pieces.get(..n).unwrap_or_default()) {
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
        state: &State,
        room: usize,
        pieces: &mut [Slice<'q>; CHUNK],
    ) -> usize {
        const PLAIN: u64 = tx::EOP | tx::IFCS;
        const MASK: u64 = PLAIN | tx::DEXT | tx::IC | tx::VLE;
        let shortest = if self.setup.pad { SHORTEST } else { vmlan_frame::MIN_FRAME };
        let posted = self.posted(state).min(self.look.size - state.next) as usize;
        let mut words = [[0; SIZE]; CHUNK];
        let words = words.get_mut(..posted.min(room).min(self.budget)).unwrap_or_default();
        self.ring.copy(state.next, words);
        let (mut found, mut bytes) = (0, 0);
        for (place, desc) in pieces.iter_mut().zip(words) {
            let (addr, word) = split(desc);
            let len = data_len(word) as usize;
            if word & MASK != PLAIN || len < shortest || addr == 0 {
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
        (self.budget, self.work) = (self.budget - found, self.work.saturating_sub(bytes));
        found
    }

    /// First pass: reads up to a chunk of frames. False at the end of what can be read now.
    #[inline(never)]
    fn find(&mut self, state: &mut State, limit: usize, pieces: &mut Vec<Slice<'q>>) -> bool {
        let room = (limit - state.lent.len()).min(BATCH - state.flights.len()).min(CHUNK);
        while state.found.len() < room && pieces.len() < CHUNK && self.work > 0 {
            if state.next == self.look.tail || self.budget == 0 {
                return false;
            }
            let (addr, word) = self.ring.read(state.next);
            let context = kind(word) == Kind::Context;
            if state.skipping {
                self.pass_over(state, 1);
                // Bit 24 of a context descriptor is not EOP.
                state.skipping = context || word & tx::EOP == 0;
            } else if context {
                self.pass_over(state, 1);
                let segments = word & tx::TSE != 0;
                let place = if segments { &mut state.segmentation } else { &mut state.checksum };
                *place = Context::from_words(addr, word);
            } else if is_null(addr, word) {
                self.pass_over(state, 1);
            } else if !self.find_one(state, (addr, word), pieces) {
                return false;
            }
        }
        true
    }

    fn charge(&mut self, found: &Found) {
        let size = if found.want.segments() { found.want.context.mss } else { 0 };
        self.work = self.work.saturating_sub(work(found.len as usize, size));
    }

    fn pass_over(&mut self, state: &mut State, n: u32) {
        state.next = add(state.next, n, self.look.size);
        self.budget = self.budget.saturating_sub(n as usize);
    }

    /// Reads the frame that begins with the next descriptor, `first`. False if its end is not posted.
    #[inline]
    fn find_one(
        &mut self,
        state: &mut State,
        first: (u64, u64),
        pieces: &mut Vec<Slice<'q>>,
    ) -> bool {
        let segments = Want { first: first.1, ..Want::default() }.segments();
        let context = if segments { state.segmentation } else { state.checksum };
        let flight = u16::try_from(state.flights.len()).unwrap_or(0);
        let mut found =
            Found { flight, want: Want { context, ..Want::default() }, ..Found::default() };
        let posted = self.posted(state);
        let span = Span { at: state.next, first, posted, size: self.look.size };
        match scan(self.ring, span, pieces, &mut found) {
            Scan::Frame(count) => {
                state.flights.push(Flight { at: state.next, count, held: false, context });
                self.pass_over(state, count);
                self.charge(&found);
                state.found.push(found);
                true
            }
            // A ring can hold no more than this of it.
            Scan::Open if posted + 1 < self.look.size => {
                state.stalled = Some(self.look.tail);
                self.budget = self.budget.saturating_sub(posted as usize);
                false
            }
            Scan::Open | Scan::Endless => {
                state.skipping = true;
                self.drop(Reason::TooLong);
                true
            }
        }
    }

    /// Second pass: looks at the frames, adds them to the batch.
    #[inline(never)]
    fn add(&mut self, state: &mut State, batch: &mut Batch<'q>, pieces: &mut [Slice<'q>]) {
        for found in &state.found {
            let range = usize::from(found.first)..usize::from(found.first + found.count);
            let bytes = pieces.get_mut(range).unwrap_or_default();
            if let Some(flight) = state.flights.get_mut(usize::from(found.flight)) {
                flight.held = false;
            }
            match tx_frame::add(found, bytes, self.setup, batch) {
                Ok(()) => state.lent.push(found.flight),
                Err(reason) => {
                    if found.want.segments() {
                        self.chip.stats.tx.failed.add(1);
                    }
                    self.drop(reason);
                }
            }
        }
    }

    #[cold]
    fn drop(&mut self, reason: Reason) {
        self.dropped += 1;
        self.chip.counters.input.drop(reason, 1);
    }
}

/// A descriptor between frames that names no data: it is written back and nothing else (3.3.3).
#[inline]
fn is_null(addr: u64, word: u64) -> bool {
    word & tx::EOP != 0 && (addr == 0 || data_len(word) == 0)
}
