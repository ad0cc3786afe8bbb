//! The fuzz target `e1000`: see [`crate::intel::fuzz`].

use super::model::I82540;
use crate::chip::fuzz::Run;
use crate::intel::Intel;
use crate::intel::fuzz::{FuzzedModel, intel};
use crate::intel::regs::EECD;

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn e1000(data: &[u8]) -> (u64, u64) {
    intel::<I82540>(data)
}

impl FuzzedModel for I82540 {
    fn step(run: &mut Run<'_, Intel<Self>>, n: u8) {
        run.write(EECD, u32::from(n) | 0x40);
    }
}
