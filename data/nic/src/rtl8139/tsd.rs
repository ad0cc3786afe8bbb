//! Transmit descriptors of classic mode: four pairs of registers, TSD0-3 and TSAD0-3, that are used
//! in turn. To [`crate::ring::Transmitter`] they are a ring like any other: of eight, each of the
//! four twice, so that a ring that is all ours differs from an empty one.
//!
//! The driver writes TSDn with OWN as 0: the frame at TSADn is ours, of as many bytes as SIZE says.
//! When it is sent, OWN and TOK are set. Whatever a driver writes, no more than SIZE bytes (13
//! bits) are read, and a frame of more than 1,792 is not sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::{MIN_FRAME, Offload, Reason};
use vmlan_ram::Map;

use super::buffer::LONGEST;
use super::chip::Rtl8139;
use super::regs::{Registers, TCR, TSAD0, TSD0, tcr, tsd};
use crate::bits::low32;
use crate::chip::csb::{Csb, CsbSide, Direction};
use crate::chip::held::{Held, Left, Line, Remains, Said};
use crate::chip::state::Fields;
use crate::chip::{Fault, StateError};
use crate::realtek::isr;
use crate::ring::{
    DescriptorRing, Found, Look, Plan, Revived, SIZE, Setup, Transmit, Want, add, distance, halves,
    is_memory,
};

const PAIRS: u32 = 4; // Pairs of registers.
const RING: u32 = 2 * PAIRS; // And descriptors, to the walker.
const LINE: usize = 3; // Whose line is which: C+ mode has the first three.

const LONG: u64 = 1 << 62; // In a descriptor's word, above TSD: it is longer than the chip sends.
const HAS_FCS: u64 = 1 << 63; // The frame brings its FCS.

/// The four descriptors.
pub struct Pairs {
    regs: Arc<Registers>,
    map: Arc<Map>,
    /// Never placed: there is a CSB in C+ mode only.
    csb: CsbSide,
    /// The pair that index 0 is.
    first: u32,
    /// The first that is not written back.
    head: u32,
    /// Where it outlives the process, as if the first pair were TSD0.
    line: Option<Line>,
}

impl Pairs {
    pub fn new(regs: &Arc<Registers>) -> Self {
        let csb = CsbSide::new(Direction::Transmit);
        Self { regs: Arc::clone(regs), map: Arc::default(), csb, first: 0, head: 0, line: None }
    }

    /// As after a reset: the next is TSD0.
    pub fn rewind(&mut self) {
        (self.first, self.head) = (0, 0);
        self.note_head();
    }

    fn note_head(&mut self) {
        let head = (self.first + self.head) % RING;
        self.line.iter_mut().for_each(|line| line.begin_at(head, false));
    }

    /// What was sent of `head..to` is about to be said.
    fn mark_all(&mut self, head: u32, to: u32) {
        let Some(line) = &mut self.line else { return };
        for n in 0..distance(head, to, RING) {
            let [pair, ..] = ((head + n + self.first) % PAIRS).to_le_bytes();
            self.regs.mark(TSD0 + 4 * pair);
        }
        let [a, b] = [head, to].map(|index| (index + self.first) % RING);
        line.open((a, b), None, false);
    }

    /// Says what has become of the frame at `index`. Returns the cause.
    fn report(&self, index: u32) -> u32 {
        let (address, word) = self.read(index);
        let (status, cause) = match self.is_good(address, word) {
            true => (tsd::TOK, isr::TOK),
            false => (tsd::TUN, isr::TER),
        };
        let at = self.registers(index).0;
        self.regs.set(at, self.regs.get(at) & tsd::WRITABLE | tsd::OWN | status);
        cause
    }

    /// The first that is not ours.
    fn tail(&self) -> u32 {
        let mut tail = self.head;
        while distance(self.head, tail, RING) < PAIRS
            && self.regs.get(self.registers(tail).0) & tsd::OWN == 0
        {
            tail = add(tail, 1, RING);
        }
        tail
    }

    /// TSD and TSAD of the descriptor at `index`.
    #[inline]
    fn registers(&self, index: u32) -> (u8, u8) {
        let [pair, ..] = ((index + self.first) % PAIRS).to_le_bytes();
        let at = 4 * pair;
        (TSD0 + at, TSAD0 + at)
    }

    /// All of the frame can be sent: it is neither too short nor too long, and in memory.
    fn is_good(&self, address: u64, word: u64) -> bool {
        let len = Tsd::len(word) as usize;
        (MIN_FRAME..=LONGEST).contains(&len) && is_memory(&self.map, address, len)
    }
}

impl DescriptorRing for Pairs {
    type Chip = Rtl8139;

    fn map(&self) -> &Arc<Map> {
        &self.map
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        std::mem::replace(&mut self.map, map)
    }

    fn csb(&mut self) -> &mut CsbSide {
        &mut self.csb
    }

    fn look(&mut self, _: &Rtl8139) -> Result<Look, Fault> {
        Ok(Look { size: RING, head: self.head, tail: self.tail(), moved: false })
    }

    fn fault(&self) -> Option<Fault> {
        self.map.poisoned().then_some(Fault::Truncated)
    }

    /// After a stop and a new start it goes on with the pair at which it stood.
    fn forget(&mut self, _: &Rtl8139) {
        (self.first, self.head) = ((self.first + self.head) % PAIRS, 0);
        self.note_head();
    }

    fn hold(&mut self, held: &Arc<Held>) {
        self.line = Some(Line::new(held, LINE));
    }

    fn revive(
        &mut self,
        chip: &Rtl8139,
        remains: &Remains<'_>,
    ) -> Result<Option<Revived>, StateError> {
        let left = Left::new(*remains, LINE);
        let intent = left.intent(RING);
        let (first, head) = intent.unwrap_or((left.head(), left.head()));
        if head >= RING {
            return Err(StateError::Lost("there is no such transmit descriptor"));
        }
        (self.first, self.head) = (0, head);
        for index in (0..distance(first, head, RING)).map(|n| add(first, n, RING)) {
            if self.regs.was_marked(self.registers(index).0, remains) {
                let _cause = self.report(index);
            }
        }
        self.note_head();
        let (due, _) = self.registers(self.tail());
        chip.due.store(due.into(), Ordering::Relaxed);
        Ok(Some(Revived { head, said: Said::default(), cut: false }))
    }

    fn publish_again(&self, _: &Rtl8139) {}

    fn replace_csb(&mut self, _: &Rtl8139, _: Option<Arc<Csb>>, _on: bool) {}

    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { regs: _, map: _, csb: _, first, head, line: _ } = self;
        io.below(first, PAIRS);
        io.below(head, RING);
        if io.restores() {
            self.note_head();
        }
    }

    fn extent(&self) -> Option<(u32, u32)> {
        Some((self.head, RING))
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        let (status, address) = self.registers(index);
        let status = self.regs.get(status);
        let long = if (status & tsd::SIZE) as usize > LONGEST { LONG } else { 0 };
        let fcs = if self.regs.get(TCR) & tcr::CRC != 0 { HAS_FCS } else { 0 };
        (self.regs.get(address).into(), u64::from(status) | long | fcs)
    }

    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        for (desc, index) in out.iter_mut().zip(index..) {
            let (address, word) = self.read(index);
            *desc = (u128::from(address) | u128::from(word) << 64).to_le_bytes();
        }
    }

    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        halves(desc)
    }
}

/// What the registers mean.
pub struct Tsd;

impl Transmit for Tsd {
    type Ring = Pairs;
    type Memory = ();
    type Context = ();
    const MASK: u64 = LONG | HAS_FCS;
    const PLAIN: u64 = 0;

    /// The chip pads nothing in this mode.
    fn setup(_: &Rtl8139) -> Setup {
        Setup::default()
    }

    fn len(word: u64) -> u32 {
        low32(word) & tsd::SIZE
    }

    fn is_last(_: u64) -> bool {
        true
    }

    fn between((): &mut (), _: u64, _: u64) -> bool {
        false
    }

    fn fits(_: u64, _: u64, _: u32) -> bool {
        true
    }

    fn has_data(_: u64, _: u64) -> bool {
        true
    }

    fn context((): &(), _: u64) {}

    fn segments(_: &Want<Self>) -> Option<u16> {
        None
    }

    fn as_it_is(found: &Found<Self>, _: Setup) -> Option<Offload> {
        (found.want.first & Self::MASK == Self::PLAIN).then_some(Offload::NONE)
    }

    fn plan(found: &Found<Self>, _: Setup) -> Result<Plan, Reason> {
        if found.want.first & LONG != 0 {
            return Err(Reason::TooLong);
        }
        Ok(Plan { fcs: found.want.first & HAS_FCS != 0, ..Plan::default() })
    }

    fn complete(pairs: &mut Pairs, _: &Rtl8139, look: Look, to: u32) -> (u32, bool) {
        pairs.mark_all(look.head, to);
        let all = (0..distance(look.head, to, RING)).map(|n| add(look.head, n, RING));
        let causes = all.fold(0, |causes, index| causes | pairs.report(index));
        pairs.head = to;
        let head = (pairs.first + to) % RING;
        pairs.line.iter_mut().for_each(|line| line.close_at(head));
        (causes, false)
    }
}
