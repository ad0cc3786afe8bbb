//! What a driver does with C+ rings, for the fuzz targets of both chips.
#![allow(clippy::indexing_slicing)]

use super::desc::{EOR, FS, LS, OWN};
use crate::chip::fuzz::{BUFFER, FRAME, Fuzzed, RING, RX_RING, Run};

/// Where a set-up driver has its normal priority ring. (At 0 there is none.)
pub const NORMAL_RING: u32 = 0x200;
/// And that of high priority.
pub const HIGH_RING: u32 = 0x500;
/// By the numbers that steps have for them.
const RINGS: [u32; 3] = [NORMAL_RING, HIGH_RING, RX_RING];
const SIZE: u32 = 16;

/// Fills all three: each transmit descriptor is a frame, each receive descriptor a buffer.
pub fn fill_rings<C: Fuzzed>(run: &mut Run<'_, C>) {
    for i in 0..RING {
        let eor = if i + 1 == RING { EOR } else { 0 };
        let transmit = [OWN | FS | LS | 60 | eor, 0, FRAME, 0];
        let receive = [OWN | 2048 | eor, 0, BUFFER, 0];
        for (ring, words) in RINGS.iter().zip([transmit, [eor, 0, 0, 0], receive]) {
            for (at, word) in (0..).step_by(4).zip(words) {
                run.poke(ring + SIZE * i + at, word);
            }
        }
    }
}

/// Gives the next descriptors of a ring to the chip: `n` 3:2 says of which (3: also of the receive ring), 1:0 how many.
pub fn give<C: Fuzzed>(run: &mut Run<'_, C>, n: u8) {
    let ring = usize::from(n >> 2 & 3).min(2);
    for _ in 0..[1, 2, 7, RING - 1][usize::from(n & 3)] {
        let at = RINGS[ring] + SIZE * run.next[ring];
        run.poke(at, run.peek(at) | OWN);
        run.next[ring] = (run.next[ring] + 1) % RING;
    }
}

/// Changes bits 31:24 of a descriptor, whoever owns it: `n` 3:2 says of which ring. Operands: which one, which bits.
pub fn flip<C: Fuzzed>(run: &mut Run<'_, C>, n: u8) {
    let (index, bits) = (run.byte(), run.byte());
    let ring = RINGS[usize::from(n >> 2 & 3).min(2)];
    let at = ring + SIZE * (u32::from(index) % (RING + 8));
    run.poke(at, run.peek(at) ^ u32::from(bits) << 24);
}
