//! The PHY, an 88E1011 inside the chip, reached through MDIC (SDM 13.4.7, and its tables of PHY
//! registers).

use std::ops::{Deref, DerefMut};

use crate::chip::phy::{self, Kind, bmcr};
use crate::chip::state::{Fields, Stateful};

const ADDRESS: u32 = 1; // The PHY's address on the bus.

mod reg {
    pub use crate::chip::phy::reg::*;
    pub const PSCR: usize = 16; // PHY Specific Control.
    pub const IER: usize = 18; // Interrupt Enable.
    pub const EPSCR: usize = 20; // Extended PHY Specific Control.
    pub const LED: usize = 24;
    pub const PAGE: usize = 29;
    pub const PAGED: usize = 30;
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

/// The 88E1011. A software reset keeps all its registers except the transmit clock's.
static KIND: Kind = Kind {
    id: (0x0141, 0x0c20),
    defaults: &[
        (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
        (reg::ANAR, 0x0de1),
        (reg::ANNPTR, 0x2001),
        (reg::GBCR, 0x0e00),
        (reg::PSCR, 0x0068),
        (reg::EPSCR, 0x0d60),
        (reg::LED, 0x4100),
    ],
    restored: &[(reg::EPSCR, 0x0d60)],
    writable,
};

/// Which bits of a register can be written.
fn writable(number: usize) -> u16 {
    match number {
        reg::BMCR => 0x7fc0,
        reg::ANAR => 0xbfff,
        reg::ANNPTR => 0xb7ff,
        reg::GBCR => 0xff00,
        reg::PSCR | reg::IER | reg::EPSCR | reg::LED | reg::PAGE | reg::PAGED => 0xffff,
        _ => 0,
    }
}

/// The PHY behind MDIC.
#[derive(Debug)]
pub struct Phy(phy::Phy);

impl Default for Phy {
    fn default() -> Self {
        Self(phy::Phy::new(&KIND))
    }
}

impl Deref for Phy {
    type Target = phy::Phy;

    fn deref(&self) -> &phy::Phy {
        &self.0
    }
}

impl DerefMut for Phy {
    fn deref_mut(&mut self) -> &mut phy::Phy {
        &mut self.0
    }
}

impl Phy {
    /// MDIC is written: the transfer is done at once.
    pub fn transfer(&mut self, value: u32) -> Done {
        let interrupt = value & mdic::INTERRUPT != 0;
        let kept = value & (mdic::INTERRUPT | 0x0fff_ffff);
        let number = (value >> 16 & 31) as usize;
        let [low, high, ..] = value.to_le_bytes();
        let answer = match (value >> 26 & 3, value >> 21 & 31) {
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
        self.0.fields(io);
    }
}
