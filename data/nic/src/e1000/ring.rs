//! A descriptor ring where its registers say it is. The registers are hostile memory: each pass
//! reads each once.

use std::sync::Arc;

use vmlan_ram::Map;

use super::E1000;
use super::desc::rx;
use super::regs::{self, Registers};
use crate::chip::Fault;
use crate::chip::csb::{Csb, CsbSide, Direction, Register};
use crate::chip::state::{Fields, Stateful};
use crate::ring::{DescriptorRing, Descriptors, Look, SIZE, distance, halves};

/// The registers of a ring.
#[derive(Debug)]
pub struct Names {
    ring: &'static str,
    low: u32,
    high: u32,
    len: u32,
    head: u32,
    tail: u32,
    direction: Direction,
}

/// The transmit ring's.
pub static TRANSMIT: Names = Names {
    ring: "transmit",
    low: regs::TDBAL,
    high: regs::TDBAH,
    len: regs::TDLEN,
    head: regs::TDH,
    tail: regs::TDT,
    direction: Direction::Transmit,
};

/// The receive ring's.
pub static RECEIVE: Names = Names {
    ring: "receive",
    low: regs::RDBAL,
    high: regs::RDBAH,
    len: regs::RDLEN,
    head: regs::RDH,
    tail: regs::RDT,
    direction: Direction::Receive,
};

/// Bits of TDLEN and RDLEN that exist: multiples of 128 below 1 MiB (13.4.38).
const LEN: u32 = 0xf_ff80;
const INDEX: u32 = 0xffff; // Bits of the heads and tails that exist.

/// The register that is a ring's tail.
struct Tail<'r>(&'r Registers, u32);

impl Register for Tail<'_> {
    #[inline]
    fn get(&self) -> u32 {
        self.raw() & INDEX
    }
    #[inline]
    fn raw(&self) -> u32 {
        self.0.get(self.1)
    }
    #[inline]
    fn replace(&self, old: u32, new: u32) -> bool {
        self.0.replace(self.1, old, new)
    }
}

/// One side's ring.
pub struct Ring {
    names: &'static Names,
    /// Where it is.
    pub memory: Descriptors,
    /// The head as last published; `None`: take over what the register says.
    head: Option<u32>,
    fault: Option<Fault>,
    /// Where the guest publishes its tail, if not in the register.
    pub csb: CsbSide,
    /// The head as the CSB has it. Unlike `head` it outlives a ring that is nowhere for a while.
    told: Option<u32>,
    /// Descriptors were written back since the ring was last stopped.
    wrote: bool,
}

impl Ring {
    pub fn new(names: &'static Names) -> Self {
        Self {
            names,
            memory: Descriptors::default(),
            head: None,
            fault: None,
            csb: CsbSide::new(names.direction),
            told: None,
            wrote: false,
        }
    }

    #[inline]
    fn check(&mut self, same: bool, base: u64, len: u32, index: u32) -> Result<(), Fault> {
        if !same {
            self.head = None;
        }
        let found = self.memory.find(base, len);
        let (ring, size) = (self.names.ring, len >> 4);
        if size == 0 {
            return Ok(());
        }
        if !found {
            return Err(Fault::BadRing { ring, base, len });
        }
        if index >= size { Err(Fault::BadIndex { ring, size, index }) } else { Ok(()) }
    }

    /// Publishes the head, after all write-backs.
    #[inline]
    pub fn publish(&mut self, regs: &Registers, head: u32) {
        (self.head, self.told, self.wrote) = (Some(head), Some(head), true);
        regs.set(self.names.head, head);
        self.csb.publish(head);
    }
}

impl DescriptorRing for Ring {
    type Chip = E1000;

    #[inline]
    fn map(&self) -> &Arc<Map> {
        self.memory.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.memory.set_map(map)
    }

    #[inline]
    fn csb(&mut self) -> &mut CsbSide {
        &mut self.csb
    }

    #[inline]
    fn look(&mut self, chip: &E1000) -> Result<Look, Fault> {
        let regs = &chip.regs;
        let base = regs.base(self.names.low, self.names.high);
        let len = regs.get(self.names.len) & LEN;
        let head = regs.get(self.names.head) & INDEX;
        let same = self.memory.is_at(base, len);
        let moved = !same || self.head != Some(head);
        let size = len >> 4;
        let register = Tail(regs, self.names.tail);
        let tail = match self.csb.is_placed() {
            false => register.get(),
            true => {
                let moved = !same || self.told.is_some_and(|told| told != head);
                self.csb.tail(&register, size, moved)
            }
        };
        let result = self.check(same, base, len, head.max(tail));
        self.fault = result.err();
        result?;
        self.head = Some(head);
        if self.told.replace(head) != Some(head) {
            self.csb.publish(head);
        }
        Ok(Look { size, head, tail, moved })
    }

    fn fault(&self) -> Option<Fault> {
        self.fault.or(self.map().poisoned().then_some(Fault::Truncated))
    }

    fn forget(&mut self, chip: &E1000) {
        (self.head, self.fault, self.told, self.wrote) = (None, None, None, false);
        self.csb.restart();
        self.publish_again(chip);
    }

    fn publish_again(&self, chip: &E1000) {
        self.csb.publish(chip.regs.get(self.names.head) & INDEX);
    }

    fn replace_csb(&mut self, chip: &E1000, csb: Option<Arc<Csb>>, on: bool) {
        self.csb.replace(csb, on);
        if on {
            self.publish_again(chip);
        } else {
            self.told = None;
        }
    }

    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { names: _, memory, head, fault, csb, told, wrote } = self;
        memory.fields(io);
        [head, told].into_iter().for_each(|index| io.option(index, Fields::u32));
        io.flag(wrote);
        csb.fields(io);
        if io.restores() {
            // The next look finds out.
            *fault = None;
        }
    }

    fn extent(&self) -> Option<(u32, u32)> {
        self.head.map(|head| (head, self.memory.size()))
    }

    /// If the CSB was turned on when nobody waited for room, the guest may have given back all that
    /// was taken by its word alone, before it was first looked at: nothing would move the word
    /// again. The proof is in the last descriptor that the word claims: we had set DD there, and
    /// the guest clears it when it gives the buffer back, in order.
    #[cold]
    fn reconsider(&mut self, look: Look) {
        let Look { size, head, tail, .. } = look;
        let Some(word) = self.csb.doubted().filter(|word| *word < size && self.wrote) else {
            return;
        };
        // The descriptor at the register's tail was never ours.
        let more = distance(head, word, size) > distance(head, tail, size) + 1;
        let last = if word == 0 { size - 1 } else { word - 1 };
        if more && self.memory.read(last).1 & rx::DD == 0 {
            self.csb.believe_word();
        }
    }

    #[inline]
    fn read(&self, index: u32) -> (u64, u64) {
        self.memory.read(index)
    }

    #[inline]
    fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        self.memory.copy(index, out);
    }

    #[inline]
    fn split(desc: &[u8; SIZE]) -> (u64, u64) {
        halves(desc)
    }
}
