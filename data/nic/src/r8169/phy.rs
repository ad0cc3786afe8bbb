//! The PHY inside the chip, reached through PHYAR (60h; layouts by IEEE 802.3 clause 22, the rest as Realtek's PHYs have it).
//!
//! Its id is that of the "RTL8211" which Linux's `realtek` knows: the driver of this chip insists on a PHY that `realtek` has an entry
//! for. Autonegotiation takes no time. Its other end is the switch: 1000BASE-T full duplex, without PAUSE.

/// Registers.
mod reg {
    pub const BMCR: usize = 0;
    pub const BMSR: usize = 1;
    pub const ID1: usize = 2;
    pub const ID2: usize = 3;
    pub const ANAR: usize = 4;
    pub const ANLPAR: usize = 5;
    pub const ANER: usize = 6;
    pub const ANNPTR: usize = 7;
    pub const GBCR: usize = 9;
    pub const GBSR: usize = 10;
    pub const GBESR: usize = 15;
    /// PHY Specific Status.
    pub const PHYSR: usize = 17;
    /// Interrupt Status; reading clears it. Nothing is reported here, the chip has ISR.
    pub const INSR: usize = 19;
    /// Page Select. Everything else belongs to the page.
    pub const PAGE: usize = 31;
}

/// Bits of the control register.
mod bmcr {
    pub const RESET: u16 = 1 << 15;
    pub const LOOPBACK: u16 = 1 << 14;
    pub const SPEED_LOW: u16 = 1 << 13;
    pub const AUTONEG: u16 = 1 << 12;
    pub const POWER_DOWN: u16 = 1 << 11;
    pub const RESTART: u16 = 1 << 9;
    pub const DUPLEX: u16 = 1 << 8;
    pub const SPEED_HIGH: u16 = 1 << 6;
}

/// Bits of PHYAR.
mod phyar {
    /// Write: 1 writes, 0 reads. Read: it is done.
    pub const FLAG: u32 = 1 << 31;
    /// Register number and data.
    pub const KEPT: u32 = 0x001f_ffff;
}

/// Extended pages that keep what is written to them. Drivers patch analog parts there, which are none.
const PAGES: usize = 7;

/// Speed (0: 10, 1: 100, 2: 1000 Mbit/s) and duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// See above.
    pub speed: u32,
    /// Both ways at once.
    pub full: bool,
}

/// The PHY.
#[derive(Debug)]
pub struct Phy {
    /// Registers of page 0 that keep what is written, and those of the others.
    values: [u16; 32],
    pages: [[u16; 32]; PAGES],
    cable: bool,
    /// The link was down since BMSR was last read (its link bit latches that).
    was_down: bool,
    /// PHYAR as it reads.
    access: u32,
}

impl Default for Phy {
    fn default() -> Self {
        let mut phy = Self {
            values: [0; 32],
            pages: [[0; 32]; PAGES],
            cable: true,
            was_down: false,
            access: 0,
        };
        phy.reset();
        phy
    }
}

/// Which bits of a register of page 0 can be written.
fn writable(number: usize) -> u16 {
    match number {
        reg::BMCR => 0x7fc0,
        reg::ANAR => 0xbfff,
        reg::ANNPTR => 0xb7ff,
        reg::GBCR => 0xff00,
        reg::BMSR | reg::ID1 | reg::ID2 | reg::ANLPAR | reg::ANER => 0,
        8 | reg::GBSR | reg::GBESR | reg::PHYSR | reg::INSR => 0,
        _ => 0xffff,
    }
}

impl Phy {
    /// Power-on.
    pub fn reset(&mut self) {
        self.restore();
        self.pages = [[0; 32]; PAGES];
        self.access = 0;
    }

    /// What a software reset (BMCR bit 15) restores.
    fn restore(&mut self) {
        self.values = [0; 32];
        let defaults: [(usize, u16); 4] = [
            (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
            (reg::ANAR, 0x0de1),
            (reg::ANNPTR, 0x2001),
            (reg::GBCR, 0x0300),
        ];
        for (number, value) in defaults {
            self.store(number, value);
        }
        self.was_down = true;
    }

    fn value(&self, number: usize) -> u16 {
        self.values.get(number).copied().unwrap_or(0)
    }

    fn store(&mut self, number: usize, value: u16) {
        if let Some(slot) = self.values.get_mut(number) {
            *slot = value;
        }
    }

    /// A register of the page selected, if that is not page 0; `None`: it is.
    fn paged(&mut self, number: usize) -> Option<Option<&mut u16>> {
        let page = usize::from(self.value(reg::PAGE)).checked_sub(1)?;
        let slot = self.pages.get_mut(page).and_then(|page| page.get_mut(number));
        (number != reg::PAGE).then_some(slot)
    }

    /// The cable is plugged in, or pulled.
    pub fn set_cable(&mut self, plugged: bool) {
        self.was_down |= !plugged;
        self.cable = plugged;
    }

    /// Frames that the MAC sends come back.
    pub fn loopback(&self) -> bool {
        self.value(reg::BMCR) & (bmcr::LOOPBACK | bmcr::POWER_DOWN) == bmcr::LOOPBACK
    }

    /// What the PHY tells the MAC. In loopback it needs no cable.
    pub fn link(&self) -> bool {
        let on = self.value(reg::BMCR) & bmcr::POWER_DOWN == 0;
        on && (self.cable || self.loopback())
    }

    /// The mode that was negotiated, or forced.
    pub fn mode(&self) -> Mode {
        let control = self.value(reg::BMCR);
        if control & bmcr::AUTONEG != 0 {
            return self.negotiated();
        }
        let high = u32::from(control & bmcr::SPEED_HIGH != 0);
        let low = u32::from(control & bmcr::SPEED_LOW != 0);
        Mode { speed: (high << 1 | low).min(2), full: control & bmcr::DUPLEX != 0 }
    }

    /// The best of what is advertised: the other end can do all of it.
    fn negotiated(&self) -> Mode {
        let (base, gigabit) = (self.value(reg::ANAR), self.value(reg::GBCR));
        match () {
            () if gigabit & 0x200 != 0 => Mode { speed: 2, full: true },
            () if gigabit & 0x100 != 0 => Mode { speed: 2, full: false },
            () if base & 0x100 != 0 => Mode { speed: 1, full: true },
            () if base & 0x080 != 0 => Mode { speed: 1, full: false },
            () => Mode { speed: 0, full: base & 0x040 != 0 },
        }
    }

    /// PHYStatus (6Ch).
    pub fn status(&self) -> u32 {
        if !self.link() {
            return 0;
        }
        let mode = self.mode();
        0x02 | 4 << mode.speed | u32::from(mode.full)
    }

    /// Autonegotiation is on and done.
    fn complete(&self) -> bool {
        self.link() && !self.loopback() && self.value(reg::BMCR) & bmcr::AUTONEG != 0
    }

    /// A register as read.
    fn read(&mut self, number: usize) -> u16 {
        if let Some(slot) = self.paged(number) {
            return slot.map_or(0, |value| *value);
        }
        let done = self.complete();
        let when_done = |value: u16| if done { value } else { 0 };
        match number {
            reg::BMSR => {
                let up = self.link() && !std::mem::take(&mut self.was_down);
                self.was_down |= !self.link();
                0x7949 | when_done(0x20) | if up { 0x04 } else { 0 }
            }
            reg::ID1 => 0x001c,
            reg::ID2 => 0xc910,
            reg::ANLPAR => when_done(0x41e1),
            reg::ANER => 0x0004 | when_done(0x0009),
            reg::GBSR => when_done(0x3c00),
            reg::GBESR => 0x3000,
            reg::PHYSR => self.specific_status(),
            _ => self.value(number),
        }
    }

    fn specific_status(&self) -> u16 {
        let mode = self.mode();
        if !self.link() {
            return 0;
        }
        let speed = [0, 0x4000, 0x8000].get(mode.speed as usize).copied().unwrap_or(0);
        // Resolved, link up in real time.
        speed | if mode.full { 0x2000 } else { 0 } | 0x0c00
    }

    /// A register as written. True if the link went down and up again.
    fn write(&mut self, number: usize, value: u16) -> bool {
        if let Some(slot) = self.paged(number) {
            if let Some(slot) = slot {
                *slot = value;
            }
            return false;
        }
        let mask = writable(number);
        self.store(number, self.value(number) & !mask | value & mask);
        if number != reg::BMCR {
            return false;
        }
        let reset = value & bmcr::RESET != 0;
        if reset {
            self.restore();
        }
        let restarts = reset || value & bmcr::RESTART != 0 && value & bmcr::AUTONEG != 0;
        // Self-clearing, both.
        self.store(reg::BMCR, self.value(reg::BMCR) & !(bmcr::RESET | bmcr::RESTART));
        self.was_down |= restarts || !self.link();
        restarts
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
