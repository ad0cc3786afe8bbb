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

use vmlan_frame::{BATCH, Batch, Sink};
use vmlan_ram::{Map, Slice};

use crate::notify::csb;

use super::E1000;
use super::Trouble;
use super::csb::Placed;
use super::desc::{CTRL_VME, Context, tctl};
use super::regs::{self, Registers};
use super::ring::{Look, Ring, TRANSMIT, distance};
use super::tx_collect::Pass;
use super::tx_done::{complete, count, settle};
use super::tx_frame::Setup;
use super::tx_scan::{Found, MAX_PIECES};

/// Frames whose descriptors are read, and whose first bytes are asked for, before the first is looked at.
pub const CHUNK: usize = 32;

/// Descriptors one pull visits, whatever the guest posts; the last frame may exceed it.
const BUDGET: usize = 4096;

/// Work one pull lends, in bytes to copy; the last frame may exceed it.
const WORK: usize = 1 << 20;

/// A frame that was lent and whose descriptors are not written back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight {
    pub at: u32,
    pub count: u32,
    /// To be lent again.
    pub held: bool,
    pub context: Context,
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
    /// The guest has turned its status block off: causes that were kept in are to come out.
    pub reopened: bool,
}

/// The transmit side of a chip.
pub struct Tx {
    pub(super) ring: Ring,
    /// The shared status block, as CSBAL was last written; for both sides.
    pub(super) block: Placed,
    state: State,
}

/// What it remembers between pulls.
pub struct State {
    /// First descriptor that was not looked at.
    pub next: u32,
    /// The contexts for checksums and for segmentation (3.3.6).
    pub checksum: Context,
    pub segmentation: Context,
    /// Descriptors up to the next EOP belong to a frame that was dropped.
    pub skipping: bool,
    /// The tail at which a frame was found unfinished.
    pub stalled: Option<u32>,
    /// In ring order, at most 256.
    pub flights: Vec<Flight>,
    /// For each frame of the batch, its flight.
    pub lent: Vec<u16>,
    pub found: Vec<Found>,
    pub pieces: Vec<Slice<'static>>,
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
        Self { ring: Ring::new(&TRANSMIT), block: Placed::default(), state }
    }
}

impl State {
    fn restart(&mut self, head: u32) {
        self.next = head;
        self.skipping = false;
        self.stalled = None;
        self.flights.clear();
    }

    /// True if more descriptors may be taken in: what is held must not let those behind it pile up, for they are all
    /// written back in one pass.
    #[inline]
    pub fn has_room(&self, look: &Look) -> bool {
        let taken = distance(look.head, self.next, look.size) as usize;
        self.flights.is_empty() || self.flights.len() < BATCH && taken < BUDGET
    }
}

impl Tx {
    /// Replaces the map. No frame is lent.
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    /// Forgets everything about the ring but its registers: TDH stands at the first descriptor that is not written back.
    pub fn stop(&mut self, regs: &Registers) {
        self.ring.forget(regs);
        self.state.restart(0);
    }

    /// As after power-on. The registers are the caller's.
    pub fn reset(&mut self, regs: &Registers) {
        self.stop(regs);
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

    /// The worker is about to sleep: asks to be kicked. True if it should not: `on`, and there is something to do.
    ///
    /// While it is off nothing is stored: the driver may have given the block's memory to others (FreeBSD 10.4 tells nobody).
    /// What turns it on again rings.
    pub fn arm(&mut self, chip: &E1000, on: bool) -> bool {
        if !on {
            return false;
        }
        match self.ring.csb.ask(&chip.wishes) {
            None => self.waiting(&chip.regs),
            Some(block) => csb::arm_transmit(&*block, || self.waiting(&chip.regs)),
        }
    }

    /// True if descriptors wait that were never looked at. Frames that are held do not count.
    fn waiting(&mut self, regs: &Registers) -> bool {
        let Some(look) = self.look(regs) else { return false };
        let state = &self.state;
        look.tail != state.next && state.stalled != Some(look.tail) && state.has_room(&look)
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
        self.ring.csb.wake();
        let look = self.look(&chip.regs);
        let reopened = self.ring.csb.take_off();
        let Some(look) = look.filter(|look| look.tail != look.head) else {
            return Sent { reopened, ..Sent::default() };
        };
        let Self { ring, state, .. } = self;
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
        let (causes, delayed) = complete(&mut self.ring, &chip.regs, look, to);
        Sent { finished, causes, delayed, reopened }
    }
}
