//! The fuzz target `e1000e`: see [`crate::intel::fuzz`].
#![allow(clippy::indexing_slicing)]

use super::model::I82574;
use super::table::{EEWR, EIAC, EITR, IAM, IVAR, PSRCTL, TARC0, TARC1};
use crate::chip::fuzz::Run;
use crate::intel::Intel;
use crate::intel::fuzz::{FuzzedModel, intel};
use crate::intel::regs::*;

/// Registers that the other chip does not have.
#[rustfmt::skip]
const REGISTERS: [u32; 16] = [
    RFCTL, PSRCTL, MRQC, RETA, RSSRK, IVAR, EIAC, IAM, EITR, EITR + 4, TARC0, TARC1, SWSM, EEWR,
    RDT1, TDT1,
];

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn e1000e(data: &[u8]) -> (u64, u64) {
    intel::<I82574>(data)
}

impl FuzzedModel for I82574 {
    /// Queue 0 has vectors 0 and 1, which clear their causes and mask themselves; the rest has
    /// vector 2. Descriptors are extended, or with bit 7 of the byte legacy.
    fn set_up(run: &mut Run<'_, Intel<Self>>, byte: u8) {
        run.configure(0xa2, &[0, 0x80]);
        run.write(IVAR, 0x800a_0908);
        run.write(EIAC, 0x0050_0000);
        run.write(IAM, u32::MAX);
        run.write(CTRL_EXT, 1 << 24);
        run.write(IMS, 0x0150_0000);
        run.write(RFCTL, u32::from(!byte >> 7) << 15);
    }

    fn step(run: &mut Run<'_, Intel<Self>>, n: u8) {
        let value = run.word();
        run.write(REGISTERS[usize::from(n)], value);
    }
}
