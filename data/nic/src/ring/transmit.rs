//! The transmit side: descriptors between head and tail become frames that are lent, and are
//! written back when those are finished with.
//!
//! ```text
//!           head               next                    tail
//!         │ in flight: lent or held │ not looked at yet   │
//!    ─────┴──────────────┬──────────┴─────────────────────┴──────► ring
//!      a flight: [ data ][ data, last ]
//!
//!      write-back: strictly in order, up to the first flight that is held
//! ```
//!
//! Descriptors between frames (contexts, those without data) belong to no flight: they are passed
//! with the flight before them. Frames that the sink holds are found again by their first
//! descriptor when they are lent again; descriptors that make another frame then are the guest's
//! fault, and the frame is dropped.
//!
//! What one pull does is bounded, whatever the ring holds: [`BUDGET`] descriptors, [`WORK`] bytes,
//! 256 frames.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use vmlan_frame::{BATCH, Batch, Offload, Reason, Sink, WORK};
use vmlan_ram::{Map, Slice};

use super::tx_collect::Pass;
use super::tx_complete::{count, settle};
use super::tx_plan::Plan;
use super::tx_scan::{Found, MAX_PIECES, Want};
use super::{DescriptorRing, Look, distance};
use crate::chip::csb::Csb;
use crate::chip::frame_totals::SideStats;
use crate::chip::held::{Held, Remains, Said};
use crate::chip::state::{Fields, Stateful};
use crate::chip::{Chip, Fault, Sent, StateError, TransmitSide};
use crate::notify::csb;

/// Frames whose descriptors are read, and whose first bytes are asked for, before the first is
/// looked at.
pub const CHUNK: usize = 32;

/// Descriptors one pull visits, whatever the guest posts; the last frame may exceed it.
pub const BUDGET: usize = 4096;

/// What the registers say about all frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Tags are inserted where descriptors ask for it: their EtherType.
    pub vlan: Option<u16>,
    /// Short frames are padded.
    pub pad: bool,
}

/// The chip of a kind of transmit descriptors.
pub type ChipOf<T> = <<T as Transmit>::Ring as DescriptorRing>::Chip;

/// What the words of a chip's transmit descriptors mean. Nothing here has state: what descriptors
/// between frames say is kept in a [`Self::Memory`].
pub trait Transmit: Sized {
    type Ring: DescriptorRing;
    /// What descriptors between frames say about those that follow.
    type Memory: Default + Send + Stateful;
    /// What of it holds for one frame.
    type Context: Copy + Default + Debug + Send + Stateful;
    /// Bits of the word that must be as in [`Self::PLAIN`] for the usual case: a whole frame about
    /// which nothing is to be said.
    const MASK: u64;
    /// See [`Self::MASK`].
    const PLAIN: u64;
    /// See [`TransmitSide::STATE`].
    const STATE: u16 = 1;

    /// What the registers say about all frames.
    fn setup(chip: &ChipOf<Self>) -> Setup;
    /// Bytes that it names.
    fn len(word: u64) -> u32;
    /// It is the last of its frame.
    fn is_last(word: u64) -> bool;
    /// A descriptor where a frame should begin: true if it belongs to none. What it says is kept in
    /// `memory`.
    fn between(memory: &mut Self::Memory, addr: u64, word: u64) -> bool;
    /// With these registers a descriptor as [`Self::PLAIN`] is the usual case.
    #[inline]
    fn has_plain(_setup: Setup) -> bool {
        true
    }
    /// The descriptor may stand in the frame that begins with `first`; `n`: how many of its before
    /// it.
    fn fits(first: u64, word: u64, n: u32) -> bool;
    /// It names data; else it is skipped.
    fn has_data(addr: u64, word: u64) -> bool;
    /// What holds for the frame that begins with `first`.
    fn context(memory: &Self::Memory, first: u64) -> Self::Context;
    /// Payload bytes of a segment, if segmentation is asked for.
    fn segments(want: &Want<Self>) -> Option<u16>;
    /// The offload of a frame to whose bytes nothing is to be done here; `None`: look at the plan.
    fn as_it_is(found: &Found<Self>, setup: Setup) -> Option<Offload>;
    /// What is to be done to a frame.
    fn plan(found: &Found<Self>, setup: Setup) -> Result<Plan, Reason>;

    /// What descriptors between frames have said, from quadwords that outlived a process.
    fn recall(_said: &Said) -> Self::Memory {
        Self::Memory::default()
    }
    /// What counts the frames of this ring.
    #[inline]
    fn stats<'c>(_ring: &Self::Ring, chip: &'c ChipOf<Self>) -> &'c SideStats {
        &chip.core().stats.tx
    }
    /// Writes back all descriptors before `to`, and publishes the head. Returns interrupt causes,
    /// and whether every descriptor that reports its status asked for delay.
    fn complete(ring: &mut Self::Ring, chip: &ChipOf<Self>, look: Look, to: u32) -> (u32, bool);
}

/// A frame that was lent and whose descriptors are not written back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight<C> {
    pub at: u32,
    pub count: u32,
    /// To be lent again.
    pub held: bool,
    pub context: C,
}

/// The transmit side of a chip.
pub struct Transmitter<T: Transmit> {
    pub(crate) ring: T::Ring,
    state: State<T>,
}

/// What it remembers between pulls.
pub struct State<T: Transmit> {
    /// First descriptor that was not looked at.
    pub next: u32,
    pub memory: T::Memory,
    /// Descriptors up to the next that is last belong to a frame that was dropped.
    pub skipping: bool,
    /// The tail at which a frame was found unfinished, and the size of the ring: in another it may
    /// be too long.
    pub stalled: Option<(u32, u32)>,
    /// In ring order, at most 256.
    pub flights: Vec<Flight<T::Context>>,
    /// For each frame of the batch, its flight.
    pub lent: Vec<u16>,
    pub found: Vec<Found<T>>,
    pub pieces: Vec<Slice<'static>>,
}

impl<T: Transmit> State<T> {
    fn new() -> Self {
        Self {
            next: 0,
            memory: T::Memory::default(),
            skipping: false,
            stalled: None,
            flights: Vec::with_capacity(BATCH),
            lent: Vec::with_capacity(BATCH),
            found: Vec::with_capacity(CHUNK),
            pieces: Vec::with_capacity(CHUNK + MAX_PIECES),
        }
    }

    fn restart(&mut self, head: u32) {
        self.next = head;
        self.skipping = false;
        self.stalled = None;
        self.flights.clear();
    }

    /// Nothing has come since a frame was found unfinished.
    #[inline]
    fn is_stalled(&self, look: &Look) -> bool {
        self.stalled == Some((look.tail, look.size))
    }

    /// True if more descriptors may be taken in: what is held must not let those behind it pile up,
    /// for they are all written back in one pass.
    #[inline]
    pub fn has_room(&self, look: &Look) -> bool {
        let taken = distance(look.head, self.next, look.size) as usize;
        self.flights.is_empty() || self.flights.len() < BATCH && taken < BUDGET
    }
}

impl<T: Transmit> State<T> {
    /// Passes it, but for what one pull needs. `extent`: the ring's.
    fn fields(&mut self, extent: Option<(u32, u32)>, io: &mut Fields<'_>) {
        let Self { next, memory, skipping, stalled, flights, lent, found, pieces } = self;
        io.u32(next);
        memory.fields(io);
        io.flag(skipping);
        io.option(stalled, |io, (tail, size)| [tail, size].into_iter().for_each(|n| io.u32(n)));
        io.list(flights, BATCH, |io, flight| flight.fields(io));
        // Where nobody knows, the next look forgets them.
        io.check(
            extent
                .is_none_or(|(head, size)| flights.is_empty() || fits(flights, head..*next, size)),
        );
        if io.restores() {
            lent.clear();
            found.clear();
            pieces.clear();
        }
    }
}

/// The flights follow each other in a ring of `size`, from its head to the first descriptor that
/// was not looked at.
fn fits<C>(flights: &[Flight<C>], Range { start, end }: Range<u32>, size: u32) -> bool {
    let mut done = 0;
    let inside = start < size && end < size;
    inside
        && flights.iter().all(|flight| {
            let at = if flight.at < size { distance(start, flight.at, size) } else { size };
            let behind = u64::from(at) + u64::from(flight.count);
            let follows = at >= done && flight.count > 0;
            done = u32::try_from(behind).unwrap_or(u32::MAX);
            follows && done <= distance(start, end, size)
        })
}

impl<C: Stateful> Stateful for Flight<C> {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { at, count, held, context } = self;
        [at, count].into_iter().for_each(|n| io.u32(n));
        io.flag(held);
        context.fields(io);
    }
}

impl<T: Transmit> Transmitter<T> {
    /// A side whose ring is `ring`.
    pub fn new(ring: T::Ring) -> Self {
        Self { ring, state: State::new() }
    }

    /// Reads the registers; `None` if there is no ring to serve.
    fn look(&mut self, chip: &ChipOf<T>) -> Option<Look> {
        let look = self.ring.look(chip).ok().filter(|look| look.size > 0)?;
        let state = &mut self.state;
        let ahead = |to| distance(look.head, to, look.size);
        // A tail that went back behind what is in flight takes it out of the chip's hands.
        if look.moved || state.next >= look.size || ahead(look.tail) < ahead(state.next) {
            state.restart(look.head);
        }
        Some(look)
    }

    /// True if descriptors wait that were never looked at. Frames that are held do not count.
    pub fn waiting(&mut self, chip: &ChipOf<T>) -> bool {
        let Some(look) = self.look(chip) else { return false };
        let state = &self.state;
        look.tail != state.next && !state.is_stalled(&look) && state.has_room(&look)
    }
}

impl<T: Transmit> TransmitSide<ChipOf<T>> for Transmitter<T> {
    const STATE: u16 = T::STATE;

    fn map(&self) -> &Arc<Map> {
        self.ring.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        // Memory that was away, or cut short, reads as zeros: no frame ends there.
        self.state.stalled = None;
        self.ring.set_map(map)
    }

    fn place_csb(&mut self, chip: &ChipOf<T>, csb: Option<Arc<Csb>>) {
        self.ring.csb().place(csb);
        self.ring.publish_again(chip);
    }

    fn replace_csb(&mut self, chip: &ChipOf<T>, csb: Option<Arc<Csb>>, on: bool) {
        self.ring.replace_csb(chip, csb, on);
    }

    fn fields(&mut self, _: &ChipOf<T>, io: &mut Fields<'_>) {
        let Self { ring, state } = self;
        ring.fields(io);
        state.fields(ring.extent(), io);
        if io.restores() {
            let cut = ring.extent().is_some_and(|(head, _)| state.skipping && head == state.next);
            ring.note_said(cut);
        }
    }

    fn adopt_csb(&mut self, csb: Option<Arc<Csb>>) {
        self.ring.csb().adopt(csb);
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.ring.hold(held);
    }

    fn revive(&mut self, chip: &ChipOf<T>, remains: &Remains<'_>) -> Result<(), StateError> {
        let Some(found) = self.ring.revive(chip, remains)? else { return Ok(()) };
        self.state.restart(found.head);
        (self.state.memory, self.state.skipping) = (T::recall(&found.said), found.cut);
        Ok(())
    }

    /// The head stands at the first descriptor that is not written back.
    fn stop(&mut self, chip: &ChipOf<T>) {
        self.ring.forget(chip);
        self.state.restart(0);
    }

    fn reset(&mut self, chip: &ChipOf<T>) {
        self.stop(chip);
        self.state.memory = T::Memory::default();
        self.ring.forget_said();
    }

    fn fault(&self) -> Option<Fault> {
        self.ring.fault()
    }

    /// While the side is off nothing is stored: the driver may have given the CSB's memory to
    /// others (FreeBSD 10.4 does not say). Turning it on again rings.
    fn arm(&mut self, chip: &ChipOf<T>, on: bool) -> bool {
        if !on {
            return false;
        }
        match self.ring.csb().ask(&chip.core().wishes) {
            None => self.waiting(chip),
            Some(csb) => csb::arm_transmit(&*csb, || self.waiting(chip)),
        }
    }

    fn transmit(
        &mut self,
        chip: &ChipOf<T>,
        spare: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> Sent {
        self.ring.csb().wake();
        let look = self.look(chip);
        let reopened = self.ring.csb().take_off();
        // A frame without an end is not read again in each breath.
        let state = &self.state;
        let stalled = |look: &Look| state.is_stalled(look) && state.flights.is_empty();
        let Some(look) = look.filter(|look| look.tail != look.head && !stalled(look)) else {
            return Sent { reopened, ..Sent::default() };
        };
        let Self { ring, state } = self;
        let setup = T::setup(chip);
        let mut batch = Batch::take(spare);
        let mut pass =
            Pass { ring: &*ring, look, setup, chip, budget: BUDGET, work: WORK, dropped: 0 };
        pass.collect(state, &mut batch, limit.min(BATCH));
        let mut finished = pass.dropped;
        let work = WORK.saturating_sub(pass.work);
        let visited = BUDGET.saturating_sub(pass.budget);
        if !batch.is_empty() {
            sink.deliver(&mut batch);
            let stats = T::stats(&*ring, chip);
            finished += count(chip.core(), stats, &batch);
        }
        let to = settle(state, &batch);
        let cut = state.skipping && to == state.next;
        // Descriptors without a frame, or without its end, are work as well: a guest with nothing
        // else is charged for them as for a frame; its neighbours are not.
        if batch.is_empty() && limit > 0 {
            finished = finished.max(1);
        }
        batch.give_back(spare);
        self.ring.cut(cut);
        let (causes, delayed) = match distance(look.head, to, look.size) {
            0 => (0, false),
            _ => T::complete(&mut self.ring, chip, look, to),
        };
        Sent { finished, causes, delayed, reopened, work, visited }
    }
}
