//! What a driver does with C+ rings, for the fuzz targets of both chips.
#![allow(clippy::indexing_slicing)]

use super::cplus::Cplus;
use super::desc::{EOR, FS, LS, OWN, TAVA, tag};
use crate::chip::fuzz::{Filled, Fuzzed, Part, RING, RX_RING, Run};

/// Where a set-up driver has its normal priority ring. (At 0 there is none.)
pub const NORMAL_RING: u32 = 0x200;
/// And that of high priority.
pub const HIGH_RING: u32 = 0x500;
/// By the numbers that steps have for them.
const RINGS: [u32; 3] = [NORMAL_RING, HIGH_RING, RX_RING];
const SIZE: u32 = 16;

fn end(index: u32) -> u32 {
    if index + 1 == RING { EOR } else { 0 }
}

/// A descriptor of the normal priority ring.
pub fn put_part<C: Fuzzed>(run: &Run<'_, C>, index: u32, part: Part) {
    let first = if part.first { FS } else { 0 };
    let last = if part.last { LS } else { 0 };
    let desc = NORMAL_RING + SIZE * index;
    run.poke(desc + 8, part.at);
    run.poke(desc, OWN | first | last | part.len | end(index));
}

/// A descriptor of the receive ring.
pub fn put_buffer<C: Fuzzed>(run: &Run<'_, C>, index: u32, at: u32, len: u32) {
    let desc = RX_RING + SIZE * index;
    run.poke(desc + 8, at);
    run.poke(desc, OWN | len | end(index));
}

/// What it says when the chip has given it back.
pub fn written<C: Cplus + Fuzzed>(run: &Run<'_, C>, index: u32) -> Option<Filled> {
    let desc = RX_RING + SIZE * index;
    let (opts1, opts2) = (run.peek(desc), run.peek(desc + 4));
    let tag = (opts2 & TAVA != 0).then(|| tag(opts2));
    let filled = Filled { len: opts1 & C::STATUS.len, whole: true, last: opts1 & LS != 0, tag };
    (opts1 & OWN == 0).then_some(filled)
}

/// Gives the next descriptors of a ring to the chip: `n` 3:2 says of which (3: also of the receive
/// ring), 1:0 how many.
pub fn give<C: Fuzzed>(run: &mut Run<'_, C>, n: u8) {
    let ring = usize::from(n >> 2 & 3).min(2);
    for _ in 0..[1, 2, 7, RING - 1][usize::from(n & 3)] {
        let at = RINGS[ring] + SIZE * run.next[ring];
        run.poke(at, run.peek(at) | OWN);
        run.next[ring] = (run.next[ring] + 1) % RING;
    }
}

/// Changes bits 31:24 of a descriptor, whoever owns it: `n` 3:2 says of which ring. Operands: which
/// one, which bits.
pub fn flip<C: Fuzzed>(run: &mut Run<'_, C>, n: u8) {
    let (index, bits) = (run.byte(), run.byte());
    let ring = RINGS[usize::from(n >> 2 & 3).min(2)];
    let at = ring + SIZE * (u32::from(index) % (RING + 8));
    run.poke(at, run.peek(at) ^ u32::from(bits) << 24);
}
