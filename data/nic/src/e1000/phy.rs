//! The PHY, an 88E1011 inside the chip, reached through MDIC (SDM 13.4.7; register layouts by IEEE 802.3 clause 22 and the
//! SDM's tables of PHY registers).
//!
//! Autonegotiation takes no time here. Its other end is the switch: 1000BASE-T full duplex, without PAUSE.

/// The PHY's address on the bus.
const ADDRESS: u32 = 1;

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
    pub const EXTSR: usize = 15;
    /// PHY Specific Control.
    pub const PSCR: usize = 16;
    /// PHY Specific Status.
    pub const PSSR: usize = 17;
    /// Interrupt Enable.
    pub const IER: usize = 18;
    /// Extended PHY Specific Control.
    pub const EPSCR: usize = 20;
    pub const LED: usize = 24;
    pub const PAGE: usize = 29;
    pub const PAGED: usize = 30;
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

/// Bits of MDIC.
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

/// Speed (as in STATUS: 2 is 1000 Mbit/s) and duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// 0: 10, 1: 100, 2: 1000 Mbit/s.
    pub speed: u32,
    /// Both ways at once.
    pub full: bool,
}

/// The PHY.
#[derive(Debug)]
pub struct Phy {
    /// Registers that keep what is written.
    values: [u16; 32],
    cable: bool,
    /// The link was down since BMSR was last read (its link bit latches that).
    was_down: bool,
}

impl Default for Phy {
    fn default() -> Self {
        let mut phy = Self { values: [0; 32], cable: true, was_down: false };
        phy.reset();
        phy
    }
}

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

impl Phy {
    /// Hardware reset (CTRL.PHY_RST, power-on).
    pub fn reset(&mut self) {
        self.values = [0; 32];
        let defaults: [(usize, u16); 8] = [
            (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
            (reg::ANAR, 0x0de1),
            (reg::ANNPTR, 0x2001),
            (reg::GBCR, 0x0e00),
            (reg::PSCR, 0x0068),
            (reg::EPSCR, 0x0d60),
            (reg::LED, 0x4100),
            (reg::PAGE, 0x0000),
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
    fn read(&mut self, number: usize) -> u16 {
        let done = self.complete();
        let when_done = |value: u16| if done { value } else { 0 };
        match number {
            reg::BMSR => {
                let up = self.link() && !std::mem::take(&mut self.was_down);
                self.was_down |= !self.link();
                0x7949 | when_done(0x20) | if up { 0x04 } else { 0 }
            }
            reg::ID1 => 0x0141,
            reg::ID2 => 0x0c20,
            reg::ANLPAR => when_done(0x41e1),
            reg::ANER => 0x0004 | when_done(0x0009),
            reg::GBSR => when_done(0x3c00),
            reg::EXTSR => 0x3000,
            reg::PSSR => self.specific_status(),
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
        let mask = writable(number);
        self.store(number, self.value(number) & !mask | value & mask);
        if number != reg::BMCR {
            return false;
        }
        if value & bmcr::RESET != 0 {
            // A software reset keeps the registers, but for the transmit clock.
            self.store(reg::EPSCR, 0x0d60);
        }
        let restarts =
            value & bmcr::RESET != 0 || value & bmcr::RESTART != 0 && value & bmcr::AUTONEG != 0;
        // Self-clearing, both.
        self.store(reg::BMCR, self.value(reg::BMCR) & !(bmcr::RESET | bmcr::RESTART));
        self.was_down |= restarts || !self.link();
        restarts
    }

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
