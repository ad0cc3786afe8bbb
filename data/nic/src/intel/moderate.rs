//! From the moderation registers to nanoseconds (SDM 13.4.18, 13.4.30, 13.4.31, 13.4.41, 13.4.44).

use super::cause;
use super::chip::Intel;
use super::model::{Block, Model};
use super::regs::{ITR, RADV, RDTR, TADV, TIDV};
use crate::chip::Delays;

const ITR_NS: u64 = 256; // Unit of ITR.
const DELAY_NS: u64 = 1024; // Unit of the others.

/// The shorter of two delays, 0 meaning none.
fn shorter(a: u64, b: u64) -> u64 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

impl<M: Model> Intel<M> {
    /// Windows of moderation, from the registers as they are now. Some of them lie in the shared
    /// pages: each is read once, and has 16 bits, so that no window is longer than 67 ms.
    #[inline]
    pub(crate) fn windows(&self) -> Delays {
        let get = |register| u64::from(self.regs.get(register) & 0xffff);
        let rdtr = get(RDTR);
        Delays {
            all: get(ITR) * ITR_NS,
            transmit: shorter(get(TIDV), get(TADV)) * DELAY_NS,
            receive: if rdtr == 0 { 0 } else { shorter(rdtr, get(RADV)) * DELAY_NS },
        }
    }

    /// Bit 31 of RDTR or TIDV was written as 1.
    pub(crate) fn flush(&self, register: u32) {
        let causes = if register == RDTR { cause::RECEIVE } else { cause::TRANSMIT };
        let core = &self.core;
        core.tell(core.irq.flush(causes, self.windows(), &*core.host));
    }
}
