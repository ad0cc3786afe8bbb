//! A descriptor ring where its registers say it is. The registers are hostile memory: each pass reads each once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_ram::{Map, Window};

use super::Trouble;
use super::csb::{Block, Direction, Side};
use super::desc::{SIZE, rx};
use super::regs::{self, Registers};

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
/// Bits of the heads and tails that exist.
const INDEX: u32 = 0xffff;

/// What a look at the registers found.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Descriptors in the ring; 0: there is none.
    pub size: u32,
    /// Below `size`.
    pub head: u32,
    /// Below `size`.
    pub tail: u32,
    /// Somebody moved the ring or its head since this side last wrote it: what is known of it is void.
    pub moved: bool,
}

/// One side's ring.
pub struct Ring {
    names: &'static Names,
    map: Arc<Map>,
    window: Option<Window>,
    base: u64,
    len: u32,
    /// The head as last published; `None`: take over what the register says.
    head: Option<u32>,
    trouble: Option<Trouble>,
    /// Where the guest publishes its tail, if not in the register.
    pub csb: Side,
    /// The head as the block has it. Unlike `head` it outlives a ring that is nowhere for a while.
    told: Option<u32>,
    /// Descriptors were written back since the ring was last stopped.
    wrote: bool,
}

impl Ring {
    pub fn new(names: &'static Names) -> Self {
        let map = Arc::default();
        let csb = Side::new(names.direction, names.tail);
        Self {
            names,
            map,
            window: None,
            base: 0,
            len: 0,
            head: None,
            trouble: None,
            csb,
            told: None,
            wrote: false,
        }
    }

    /// Replaces the map; nothing of the old one is kept.
    pub fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.window = None;
        std::mem::replace(&mut self.map, map)
    }

    /// Forgets the head and what stood in the way.
    pub fn forget(&mut self, regs: &Registers) {
        (self.head, self.trouble, self.told, self.wrote) = (None, None, None, false);
        self.csb.restart();
        self.publish_again(regs);
    }

    /// Tells the head to a block that is new.
    pub fn publish_again(&self, regs: &Registers) {
        self.csb.publish(regs.get(self.names.head) & INDEX);
    }

    /// The block is in a new map: tells it the head, now or when this side is `on`.
    pub fn replace_block(&mut self, block: Option<Arc<Block>>, on: bool, regs: &Registers) {
        self.csb.replace(block, on);
        if on {
            self.publish_again(regs);
        } else {
            self.told = None;
        }
    }

    /// Why the last look failed.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.or(self.map.poisoned().then_some(Trouble::Truncated))
    }

    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Reads the registers, and checks that descriptors can be where they say.
    ///
    /// # Errors
    /// The rule that they break; the same is said again by [`Ring::trouble`].
    #[inline]
    pub fn look(&mut self, regs: &Registers) -> Result<Look, Trouble> {
        let base = regs.base(self.names.low, self.names.high);
        let len = regs.get(self.names.len) & LEN;
        let head = regs.get(self.names.head) & INDEX;
        let same = base == self.base && len == self.len;
        let moved = !same || self.head != Some(head);
        let size = len >> 4;
        let tail = match self.csb.is_placed() {
            false => regs.get(self.names.tail) & INDEX,
            true => {
                let moved = !same || self.told.is_some_and(|told| told != head);
                self.csb.tail(regs, size, moved)
            }
        };
        let result = self.check(same, base, len, head.max(tail));
        self.trouble = result.err();
        result?;
        self.head = Some(head);
        if self.told.replace(head) != Some(head) {
            self.csb.publish(head);
        }
        Ok(Look { size, head, tail, moved })
    }

    #[inline]
    fn check(&mut self, same: bool, base: u64, len: u32, index: u32) -> Result<(), Trouble> {
        if !same || self.window.is_none() {
            (self.base, self.len, self.head) = (base, len, None);
            self.window = self.map.window(base, len as usize, SIZE);
        }
        let (ring, size) = (self.names.ring, len >> 4);
        if size == 0 {
            return Ok(());
        }
        if self.window.is_none() {
            return Err(Trouble::BadRing { ring, base, len });
        }
        if index >= size { Err(Trouble::BadIndex { ring, size, index }) } else { Ok(()) }
    }

    /// The descriptor at `index`, as two quadwords, each read once.
    #[inline]
    pub fn read(&self, index: u32) -> (u64, u64) {
        self.window.as_ref().map_or((0, 0), |w| w.descriptor(at(index)))
    }

    /// The first quadword of the descriptor at `index`: a receive buffer's address.
    #[inline]
    pub fn address(&self, index: u32) -> u64 {
        self.window.as_ref().map_or(0, |w| w.u64(at(index), Ordering::Relaxed))
    }

    /// Copies out descriptors from `index` on, as many as `out` holds or the ring has before its end.
    #[inline]
    pub fn copy(&self, index: u32, out: &mut [[u8; SIZE]]) {
        let out = out.as_flattened_mut();
        if let Some(window) = &self.window {
            window.slice(at(index), out.len()).read(out);
        }
    }

    /// Writes the second quadword of the descriptor at `index`, after all that was written before.
    #[inline]
    pub fn write_back(&self, index: u32, word: u64) {
        if let Some(window) = &self.window {
            window.set_u64(at(index) + 8, word, Ordering::Release);
        }
    }

    /// Writes its last doubleword.
    #[inline]
    pub fn write_status(&self, index: u32, upper: u32) {
        if let Some(window) = &self.window {
            window.set_u32(at(index) + 12, upper, Ordering::Release);
        }
    }

    /// The ring has too little. If the block was turned on when nobody waited for room, the guest may have given back all that was
    /// taken by its word alone, before it was first looked at: nothing would move the word again. The proof is in the last
    /// descriptor that the word claims: we had set DD there, and the guest clears it when it gives the buffer back, in order.
    #[cold]
    pub fn reconsider(&mut self, look: Look) {
        let Look { size, head, tail, .. } = look;
        let Some(word) = self.csb.doubted().filter(|word| *word < size && self.wrote) else {
            return;
        };
        // The descriptor at the register's tail was never ours.
        let more = distance(head, word, size) > distance(head, tail, size) + 1;
        let last = if word == 0 { size - 1 } else { word - 1 };
        if more && self.read(last).1 & rx::DD == 0 {
            self.csb.believe_word();
        }
    }

    /// Publishes the head, after all write-backs.
    #[inline]
    pub fn publish(&mut self, regs: &Registers, head: u32) {
        (self.head, self.told, self.wrote) = (Some(head), Some(head), true);
        regs.set(self.names.head, head);
        self.csb.publish(head);
    }
}

/// The byte at which the descriptor `index` begins.
#[inline]
fn at(index: u32) -> usize {
    index as usize * SIZE
}

/// `index + n` in a ring of `size`; both are at most `size`.
#[inline]
pub fn add(index: u32, n: u32, size: u32) -> u32 {
    let sum = index + n;
    if sum >= size { sum - size } else { sum }
}

/// Steps from `from` to `to` in a ring of `size`.
#[inline]
pub fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}
