//! The I/O window (SDM 13.3): IOADDR selects a register, and IODATA accesses it. The drivers
//! reset the chip through it.

use std::sync::atomic::Ordering;

use super::chip::Intel;
use super::model::Model;
use crate::chip::access;

const IOADDR: u32 = 0;
const IODATA: u32 = 4;

impl<M: Model> Intel<M> {
    /// Reads the window (IOADDR, IODATA; SDM 13.3.1). The rest is reserved and reads as 0.
    pub(crate) fn read_ports(&self, offset: u64, data: &mut [u8]) {
        access::read_words(offset, data, |at| match at {
            IOADDR => self.ioaddr.load(Ordering::Relaxed),
            IODATA => self.read_register(self.ioaddr.load(Ordering::Relaxed)),
            _ => 0,
        });
    }

    /// Writes it.
    pub(crate) fn write_ports(&self, offset: u64, data: &[u8]) {
        access::write_words(offset, data, |at, value| match at {
            IOADDR => self.set_ioaddr(value),
            IODATA => self.write_register(self.ioaddr.load(Ordering::Relaxed), value),
            _ => {}
        });
    }
}
