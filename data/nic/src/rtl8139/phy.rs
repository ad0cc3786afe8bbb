//! The PHY, whose registers are among the chip's: BMCR, BMSR, ANAR, ANLPAR, ANER (IEEE 802.3 clause
//! 22).
//!
//! Autonegotiation takes no time here. Its other end is the switch: 100BASE-TX full duplex, without
//! PAUSE.

use super::regs::{ANAR, ANER, ANLPAR, BMCR, BMSR};
use crate::chip::state::{Fields, Stateful};

mod bmcr {
    pub const RESET: u16 = 1 << 15;
    pub const SPEED: u16 = 1 << 13;
    pub const AUTONEG: u16 = 1 << 12;
    pub const RESTART: u16 = 1 << 9;
    pub const DUPLEX: u16 = 1 << 8;
}

/// Speed and duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// 100 Mbit/s; else 10.
    pub fast: bool,
    /// Both ways at once.
    pub full: bool,
}

/// The PHY.
#[derive(Debug)]
pub struct Phy {
    control: u16,
    advertised: u16,
    cable: bool,
    /// The link was down since BMSR was last read (its link bit latches that).
    was_down: bool,
}

impl Default for Phy {
    fn default() -> Self {
        let mut phy = Self { control: 0, advertised: 0, cable: true, was_down: false };
        phy.reset();
        phy
    }
}

impl Phy {
    /// As after power-on, some time ago: the link is up.
    pub fn reset(&mut self) {
        self.control = bmcr::SPEED | bmcr::AUTONEG | bmcr::DUPLEX;
        self.advertised = 0x01e1;
        self.was_down = !self.cable;
    }

    pub fn set_cable(&mut self, plugged: bool) {
        self.was_down |= !plugged;
        self.cable = plugged;
    }

    pub fn link(&self) -> bool {
        self.cable
    }

    /// The mode that was negotiated, or forced.
    pub fn mode(&self) -> Mode {
        let has = |bit| self.control & bit != 0;
        if !has(bmcr::AUTONEG) {
            return Mode { fast: has(bmcr::SPEED), full: has(bmcr::DUPLEX) };
        }
        // The best of what is advertised: the other end can do all of it.
        match self.advertised {
            a if a & 0x100 != 0 => Mode { fast: true, full: true },
            a if a & 0x080 != 0 => Mode { fast: true, full: false },
            a => Mode { fast: false, full: a & 0x040 != 0 },
        }
    }

    pub fn read(&mut self, offset: u8) -> u32 {
        let done = self.cable && self.control & bmcr::AUTONEG != 0;
        let when_done = |value| if done { value } else { 0 };
        match offset {
            BMCR => self.control.into(),
            BMSR => {
                let up = self.cable && !std::mem::take(&mut self.was_down);
                self.was_down |= !self.cable;
                0x7809 | when_done(0x20) | if up { 0x04 } else { 0 }
            }
            ANAR => self.advertised.into(),
            ANLPAR => when_done(0x41e1),
            ANER => when_done(0x0003),
            _ => 0,
        }
    }

    /// A register as written; `mode`: the bits that choose the mode can be written (9346CR). True
    /// if the link went down and up again.
    pub fn write(&mut self, offset: u8, value: u32, mode: bool) -> bool {
        let [low, high, ..] = value.to_le_bytes();
        let value = u16::from_le_bytes([low, high]);
        match offset {
            BMCR if value & bmcr::RESET != 0 => {
                self.reset();
                self.was_down = true;
                true
            }
            BMCR => {
                let mask = bmcr::SPEED | bmcr::AUTONEG | bmcr::DUPLEX;
                let old = self.mode();
                if mode {
                    self.control = value & mask;
                }
                // RESTART clears itself.
                let restarts = value & bmcr::RESTART != 0 && self.control & bmcr::AUTONEG != 0;
                let flaps = restarts || self.mode() != old;
                self.was_down |= flaps;
                flaps
            }
            ANAR => {
                // The selector is fixed; PAUSE, and what 100BASE-TX and 10BASE-T can do.
                self.advertised = value & 0x25e0 | 1;
                false
            }
            _ => false,
        }
    }
}

impl Stateful for Phy {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { control, advertised, cable, was_down } = self;
        [control, advertised].into_iter().for_each(|value| io.u16(value));
        [cable, was_down].into_iter().for_each(|flag| io.flag(flag));
    }
}
