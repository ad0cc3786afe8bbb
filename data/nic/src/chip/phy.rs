//! A PHY for 10, 100 and 1000BASE-T (IEEE 802.3 clause 22). Chips differ in how they reach it, in
//! its id, and in registers from 16 on.
//!
//! Autonegotiation takes no time. Its other end is the switch: 1000BASE-T full duplex, without
//! PAUSE.

use super::state::{Fields, Stateful};

pub mod reg {
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
    pub const STATUS: usize = 17;
}

pub mod bmcr {
    pub const RESET: u16 = 1 << 15;
    pub const LOOPBACK: u16 = 1 << 14;
    pub const SPEED_LOW: u16 = 1 << 13;
    pub const AUTONEG: u16 = 1 << 12;
    pub const POWER_DOWN: u16 = 1 << 11;
    pub const RESTART: u16 = 1 << 9;
    pub const DUPLEX: u16 = 1 << 8;
    pub const SPEED_HIGH: u16 = 1 << 6;
}

/// Speed and duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// 0: 10, 1: 100, 2: 1000 Mbit/s.
    pub speed: u32,
    /// Both ways at once.
    pub full: bool,
}

/// Which PHY.
#[derive(Debug)]
pub struct Kind {
    /// ID1 and ID2.
    pub id: (u16, u16),
    /// Registers that are not 0 after a hardware reset.
    pub defaults: &'static [(usize, u16)],
    /// What a software reset (BMCR bit 15) sets.
    pub restored: &'static [(usize, u16)],
    /// Bits of a register that can be written.
    pub writable: fn(usize) -> u16,
}

#[derive(Debug)]
pub struct Phy {
    kind: &'static Kind,
    /// Registers that keep what is written.
    values: [u16; 32],
    cable: bool,
    /// The link was down since BMSR was last read (its link bit latches that).
    was_down: bool,
}

impl Phy {
    /// As after power-on, with the cable plugged in.
    pub fn new(kind: &'static Kind) -> Self {
        let mut phy = Self { kind, values: [0; 32], cable: true, was_down: false };
        phy.reset();
        phy
    }

    pub fn reset(&mut self) {
        self.values = [0; 32];
        self.set_all(self.kind.defaults);
        self.was_down = true;
    }

    fn set_all(&mut self, values: &[(usize, u16)]) {
        values.iter().for_each(|(number, value)| self.store(*number, *value));
    }

    pub fn value(&self, number: usize) -> u16 {
        self.values.get(number).copied().unwrap_or(0)
    }

    pub fn store(&mut self, number: usize, value: u16) {
        if let Some(slot) = self.values.get_mut(number) {
            *slot = value;
        }
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

    /// Autonegotiation is on and done.
    fn complete(&self) -> bool {
        self.link() && !self.loopback() && self.value(reg::BMCR) & bmcr::AUTONEG != 0
    }

    /// A register as read.
    pub fn read(&mut self, number: usize) -> u16 {
        let done = self.complete();
        let when_done = |value: u16| if done { value } else { 0 };
        match number {
            reg::BMSR => {
                let up = self.link() && !std::mem::take(&mut self.was_down);
                self.was_down |= !self.link();
                0x7949 | when_done(0x20) | if up { 0x04 } else { 0 }
            }
            reg::ID1 => self.kind.id.0,
            reg::ID2 => self.kind.id.1,
            reg::ANLPAR => when_done(0x41e1),
            reg::ANER => 0x0004 | when_done(0x0009),
            reg::GBSR => when_done(0x3c00),
            reg::GBESR => 0x3000,
            reg::STATUS => self.specific_status(),
            _ => self.value(number),
        }
    }

    /// As the 88E1011 and Realtek's PHYs have it.
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
    pub fn write(&mut self, number: usize, value: u16) -> bool {
        let mask = (self.kind.writable)(number);
        self.store(number, self.value(number) & !mask | value & mask);
        if number != reg::BMCR {
            return false;
        }
        let reset = value & bmcr::RESET != 0;
        if reset {
            let restored = self.kind.restored;
            self.set_all(restored);
        }
        let restarts = reset || value & bmcr::RESTART != 0 && value & bmcr::AUTONEG != 0;
        // Self-clearing, both.
        self.store(reg::BMCR, self.value(reg::BMCR) & !(bmcr::RESET | bmcr::RESTART));
        self.was_down |= restarts || !self.link();
        restarts
    }
}

impl Stateful for Phy {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { kind: _, values, cable, was_down } = self;
        values.fields(io);
        [cable, was_down].into_iter().for_each(|flag| io.flag(flag));
    }
}
