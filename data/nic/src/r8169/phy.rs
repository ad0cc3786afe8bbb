//! The PHY inside the chip, reached through PHYAR (60h; registers from 16 on as Realtek's PHYs have
//! them).
//!
//! Its id is that of the "RTL8211" which Linux's `realtek` knows: the driver of this chip insists
//! on a PHY that `realtek` has an entry for.

use std::ops::{Deref, DerefMut};

use crate::chip::phy::{self, Kind, bmcr};
use crate::chip::state::{Fields, Stateful};

mod reg {
    pub use crate::chip::phy::reg::*;
    /// Interrupt Status; reading clears it. Nothing is reported here, the chip has ISR.
    pub const INSR: usize = 19;
    /// Page Select. Everything else belongs to the page.
    pub const PAGE: usize = 31;
}

mod phyar {
    pub const FLAG: u32 = 1 << 31; // Write: 1 writes, 0 reads. Read: it is done.
    pub const KEPT: u32 = 0x001f_ffff; // Register number and data.
}

/// Extended pages that keep what is written to them. Drivers patch analog parts there, which the
/// model does not have.
const PAGES: usize = 7;

/// After a reset of either kind.
const DEFAULTS: &[(usize, u16)] = &[
    (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
    (reg::ANAR, 0x0de1),
    (reg::ANNPTR, 0x2001),
    (reg::GBCR, 0x0300),
];

/// The RTL8211.
static KIND: Kind = Kind { id: (0x001c, 0xc910), defaults: DEFAULTS, restored: DEFAULTS, writable };

/// Which bits of a register of page 0 can be written.
fn writable(number: usize) -> u16 {
    match number {
        reg::BMCR => 0x7fc0,
        reg::ANAR => 0xbfff,
        reg::ANNPTR => 0xb7ff,
        reg::GBCR => 0xff00,
        reg::BMSR | reg::ID1 | reg::ID2 | reg::ANLPAR | reg::ANER => 0,
        8 | reg::GBSR | reg::GBESR | reg::STATUS | reg::INSR => 0,
        _ => 0xffff,
    }
}

/// The PHY behind PHYAR.
#[derive(Debug)]
pub struct Phy {
    page0: phy::Phy,
    pages: [[u16; 32]; PAGES],
    /// PHYAR as it reads.
    access: u32,
}

impl Default for Phy {
    fn default() -> Self {
        Self { page0: phy::Phy::new(&KIND), pages: [[0; 32]; PAGES], access: 0 }
    }
}

impl Deref for Phy {
    type Target = phy::Phy;

    fn deref(&self) -> &phy::Phy {
        &self.page0
    }
}

impl DerefMut for Phy {
    fn deref_mut(&mut self) -> &mut phy::Phy {
        &mut self.page0
    }
}

impl Phy {
    /// Power-on.
    pub fn reset(&mut self) {
        self.page0.reset();
        self.pages = [[0; 32]; PAGES];
        self.access = 0;
    }

    /// A register of the page selected, if that is not page 0; `None`: it is.
    fn paged(&mut self, number: usize) -> Option<Option<&mut u16>> {
        let page = usize::from(self.value(reg::PAGE)).checked_sub(1)?;
        let slot = self.pages.get_mut(page).and_then(|page| page.get_mut(number));
        (number != reg::PAGE).then_some(slot)
    }

    /// PHYStatus (6Ch).
    pub fn status(&self) -> u32 {
        if !self.link() {
            return 0;
        }
        let mode = self.mode();
        0x02 | 4 << mode.speed | u32::from(mode.full)
    }

    fn read(&mut self, number: usize) -> u16 {
        match self.paged(number) {
            Some(slot) => slot.map_or(0, |value| *value),
            None => self.page0.read(number),
        }
    }

    /// True if the link went down and up again.
    fn write(&mut self, number: usize, value: u16) -> bool {
        let Some(slot) = self.paged(number) else { return self.page0.write(number, value) };
        if let Some(slot) = slot {
            *slot = value;
        }
        false
    }

    /// PHYAR as read.
    pub fn access(&self) -> u32 {
        self.access
    }

    /// PHYAR is written: the transfer is done at once. True if the link went down and up again.
    pub fn transfer(&mut self, value: u32) -> bool {
        let number = (value >> 16 & 31) as usize;
        let kept = value & phyar::KEPT;
        if value & phyar::FLAG == 0 {
            self.access = kept & !0xffff | u32::from(self.read(number)) | phyar::FLAG;
            return false;
        }
        self.access = kept;
        let [low, high, ..] = value.to_le_bytes();
        self.write(number, u16::from_le_bytes([low, high]))
    }
}

impl Stateful for Phy {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { page0, pages, access } = self;
        page0.fields(io);
        pages.fields(io);
        io.u32(access);
    }
}
