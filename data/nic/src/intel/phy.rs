//! The PHY, reached through MDIC (SDM 13.4.7).

use std::ops::{Deref, DerefMut};

use crate::chip::phy::{self, Kind};
use crate::chip::state::{Fields, Stateful};

const ADDRESS: u32 = 1; // The PHY's address on the bus.

/// Registers of Marvell's PHYs, which both chips have inside.
pub mod reg {
    pub use crate::chip::phy::reg::*;
    pub const PSCR: usize = 16; // PHY Specific Control.
    pub const IER: usize = 18; // Interrupt Enable.
    pub const EPSCR: usize = 20; // Extended PHY Specific Control.
    pub const PAGE: usize = 22; // Which page registers 16 to 31 are of, where they have pages.
}

mod mdic {
    pub const OP_WRITE: u32 = 1;
    pub const OP_READ: u32 = 2;
    pub const READY: u32 = 1 << 28;
    pub const INTERRUPT: u32 = 1 << 29;
    pub const ERROR: u32 = 1 << 30;
}

/// What a write to MDIC brought about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// MDIC as it reads now.
    pub mdic: u32,
    /// Software wanted MDAC.
    pub interrupt: bool,
    /// The link went down and up again.
    pub flapped: bool,
}

/// The PHY behind MDIC.
#[derive(Debug)]
pub struct Phy {
    phy: phy::Phy,
    /// Registers 16 to 31 have pages. Only the first has any: the others read as 0.
    pages: bool,
}

impl Deref for Phy {
    type Target = phy::Phy;

    fn deref(&self) -> &phy::Phy {
        &self.phy
    }
}

impl DerefMut for Phy {
    fn deref_mut(&mut self) -> &mut phy::Phy {
        &mut self.phy
    }
}

impl Phy {
    /// As after power-on.
    pub fn new(kind: &'static Kind, pages: bool) -> Self {
        Self { phy: phy::Phy::new(kind), pages }
    }

    /// The register `number` is on a page where there is nothing.
    fn is_void(&self, number: usize) -> bool {
        self.pages && number >= 16 && number != reg::PAGE && self.value(reg::PAGE) != 0
    }

    /// MDIC is written: the transfer is done at once.
    pub fn transfer(&mut self, value: u32) -> Done {
        let interrupt = value & mdic::INTERRUPT != 0;
        let kept = value & (mdic::INTERRUPT | 0x0fff_ffff);
        let number = (value >> 16 & 31) as usize;
        let [low, high, ..] = value.to_le_bytes();
        let answer = match (value >> 26 & 3, value >> 21 & 31) {
            (mdic::OP_READ | mdic::OP_WRITE, ADDRESS) if self.is_void(number) => Some((0, false)),
            (mdic::OP_READ, ADDRESS) => Some((self.read(number), false)),
            (mdic::OP_WRITE, ADDRESS) => {
                let data = u16::from_le_bytes([low, high]);
                Some((data, self.write(number, data)))
            }
            _ => None,
        };
        let (mdic, flapped) = match answer {
            Some((data, flapped)) => (kept & !0xffff | u32::from(data), flapped),
            None => (kept | mdic::ERROR, false),
        };
        Done { mdic: mdic | mdic::READY, interrupt, flapped }
    }
}

impl Stateful for Phy {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { phy, pages: _ } = self;
        phy.fields(io);
    }
}
