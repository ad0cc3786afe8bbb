//! The 93C46 EEPROM, 64 words, and register 9346CR (50h), by which drivers drive its bus by hand,
//! have it loaded, and unlock the configuration registers (RTL8139C+ and RTL8169 datasheets,
//! "9346CR" and "EEPROM contents"; the places of the words are those that drivers read).

use vmlan_frame::Mac;

use crate::chip::microwire::{Microwire, WORDS};
use crate::chip::state::{Fields, Stateful};

pub mod ee {
    pub const EEDO: u8 = 1; // Data from the EEPROM.
    pub const EEDI: u8 = 1 << 1; // Data to the EEPROM.
    pub const EESK: u8 = 1 << 2; // Clock.
    pub const EECS: u8 = 1 << 3; // Nic select.
    pub const EEM: u8 = 3 << 6; // Operating mode: EEM1 and EEM0.
    /// Auto-load: the EEPROM is read as after reset; then the mode is normal again.
    pub const LOAD: u8 = 1 << 6;
    pub const PROGRAM: u8 = 2 << 6; // The bus is driven by hand.
    pub const UNLOCK: u8 = 3 << 6; // Configuration registers can be written.
}

/// The EEPROM and 9346CR.
#[derive(Debug)]
pub struct Eeprom {
    chip: Microwire,
    /// 9346CR as written last.
    pins: u8,
}

impl Eeprom {
    /// As it leaves the factory: signature, ids, `mac`. `device` is the PCI device id.
    pub fn new(mac: Mac, device: u16) -> Self {
        let [a, b, c, d, e, f] = mac.octets();
        let mut words = [0; WORDS];
        let content = [
            // The signature, then vendor and device, subsystem's vendor and device.
            0x8129,
            0x10ec,
            device,
            0x10ec,
            device,
            // MNGNT and MXLAT, in 250 ns.
            0x4020,
            0,
            // The address, at byte 0Eh.
            u16::from_le_bytes([a, b]),
            u16::from_le_bytes([c, d]),
            u16::from_le_bytes([e, f]),
        ];
        words.iter_mut().zip(content).for_each(|(word, value)| *word = value);
        Self { chip: Microwire::new(words), pins: 0 }
    }

    /// The address in it, as IDR0-3 and IDR4-5 get it.
    pub fn address(&self) -> (u32, u32) {
        let word = |i| u32::from(self.chip.word(i));
        (word(7) | word(8) << 16, word(9))
    }

    /// Configuration registers can be written.
    pub fn unlocked(&self) -> bool {
        self.pins & ee::EEM == ee::UNLOCK
    }

    /// 9346CR as read.
    pub fn read(&self) -> u8 {
        self.pins | if self.chip.dout() { ee::EEDO } else { 0 }
    }

    /// 9346CR as written. True: the EEPROM is to be loaded again.
    #[must_use]
    pub fn write(&mut self, value: u8) -> bool {
        let mode = value & ee::EEM;
        if mode == ee::LOAD {
            self.reset();
            return true;
        }
        self.pins = value & !ee::EEDO;
        let select = mode == ee::PROGRAM && value & ee::EECS != 0;
        self.chip.pins(select, value & ee::EESK != 0, value & ee::EEDI != 0);
        false
    }

    /// The bus is released, and the lock is off. What is stored stays.
    pub fn reset(&mut self) {
        self.pins = 0;
        self.chip.release();
    }
}

impl Stateful for Eeprom {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { chip, pins } = self;
        chip.fields(io);
        io.u8(pins);
        io.check(*pins & ee::EEDO == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: u8 = ee::PROGRAM;
    const ON: u8 = ee::PROGRAM | ee::EECS;

    fn clock(eeprom: &mut Eeprom, di: bool) -> bool {
        let pins = ON | if di { ee::EEDI } else { 0 };
        for value in [pins, pins | ee::EESK] {
            assert!(!eeprom.write(value));
        }
        let bit = eeprom.read() & ee::EEDO != 0;
        assert!(!eeprom.write(pins));
        bit
    }

    fn send(eeprom: &mut Eeprom, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            clock(eeprom, value >> bit & 1 != 0);
        }
    }

    /// As Linux's 8139too reads: leading zeros, then the command with `width` address bits.
    fn word(eeprom: &mut Eeprom, address: u32, width: u32) -> u16 {
        assert!(!eeprom.write(IDLE) && !eeprom.write(ON));
        send(eeprom, 0b110 << width | address, 5 + width);
        let word = (0..16).fold(0, |word, _| word << 1 | u16::from(clock(eeprom, false)));
        assert!(!eeprom.write(IDLE));
        word
    }

    fn command(eeprom: &mut Eeprom, value: u32, bits: u32) {
        assert!(!eeprom.write(IDLE) && !eeprom.write(ON));
        send(eeprom, value, bits);
        assert!(!eeprom.write(IDLE) && !eeprom.write(ON));
        assert_ne!(eeprom.read() & ee::EEDO, 0, "ready");
        assert!(!eeprom.write(0));
    }

    fn new() -> Eeprom {
        Eeprom::new(Mac::new([0x52, 0x54, 0, 1, 2, 3]), 0x8169)
    }

    #[test]
    fn drivers_find_its_width_and_the_address() {
        let mut eeprom = new();
        assert_ne!(word(&mut eeprom, 0, 8), 0x8129, "not a 93C56");
        let words = [0, 1, 2, 7, 8, 9].map(|at| word(&mut eeprom, at, 6));
        assert_eq!(words, [0x8129, 0x10ec, 0x8169, 0x5452, 0x0100, 0x0302]);
        assert_eq!(eeprom.address(), (0x0100_5452, 0x0302));
    }

    #[test]
    fn it_is_written_only_when_enabled() {
        let mut eeprom = new();
        command(&mut eeprom, 0b101 << 22 | 0x3f << 16 | 0xbeef, 25);
        assert_eq!(word(&mut eeprom, 0x3f, 6), 0);
        command(&mut eeprom, 0b1_0011_0000, 9);
        command(&mut eeprom, 0b101 << 22 | 0x3f << 16 | 0xbeef, 25);
        assert_eq!(word(&mut eeprom, 0x3f, 6), 0xbeef);
        command(&mut eeprom, 0b111 << 6 | 0x3f, 9);
        assert_eq!(word(&mut eeprom, 0x3f, 6), 0xffff);
        // A word that was cut short is not programmed.
        command(&mut eeprom, 0b101 << 21 | 0x3f << 15, 24);
        assert_eq!(word(&mut eeprom, 0x3f, 6), 0xffff);
    }

    #[test]
    fn modes() {
        let mut eeprom = new();
        assert!(!eeprom.unlocked());
        assert!(!eeprom.write(ee::UNLOCK));
        assert!(eeprom.unlocked());
        assert_eq!(eeprom.read() & ee::EEM, ee::UNLOCK);
        assert!(eeprom.write(ee::LOAD), "to be loaded");
        assert_eq!((eeprom.read(), eeprom.unlocked()), (0, false));
        // Only in program mode are the pins the bus's.
        for mode in [0, ee::UNLOCK] {
            for pins in [ee::EECS, ee::EECS | ee::EESK | ee::EEDI, ee::EECS] {
                assert!(!eeprom.write(mode | pins));
            }
            assert_eq!(eeprom.read() & ee::EEDO, 0);
        }
    }
}
