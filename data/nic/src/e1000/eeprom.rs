//! The EEPROM: 64 words behind a Microwire bus that the driver drives by hand through EECD, and a
//! register that reads it in one go, EERD (SDM 5.3, 5.4, 5.6, 13.4.3, 13.4.4).

use vmlan_frame::Mac;

use crate::chip::microwire::{Microwire, WORDS};
use crate::chip::state::{Fields, Stateful};

/// Where the checksum is (SDM 5.6.36): all words together sum to [`SUM`].
const CHECKSUM: usize = 0x3f;
const SUM: u16 = 0xbaba;

pub mod eecd {
    pub const SK: u32 = 1; // Clock.
    pub const CS: u32 = 1 << 1; // Chip select.
    pub const DI: u32 = 1 << 2; // Data to the EEPROM.
    pub const DO: u32 = 1 << 3; // Data from the EEPROM.
    /// Flash write enable, kept, without effect: the model has no flash.
    pub const FWE: u32 = 3 << 4;
    pub const REQ: u32 = 1 << 6; // Software asks for the bus.
    pub const GNT: u32 = 1 << 7; // It has it.
    pub const PRES: u32 = 1 << 8; // An EEPROM is there. Bit 9 (SIZE) is 0: 64 words.
}

/// Bits of EECD that keep what is written to them.
const PINS: u32 = eecd::SK | eecd::CS | eecd::DI | eecd::FWE | eecd::REQ;

/// The EEPROM and EECD.
#[derive(Debug)]
pub struct Eeprom {
    chip: Microwire,
    /// EECD as written last.
    pins: u32,
}

impl Eeprom {
    /// As it leaves the factory: SDM 5.6, with `mac` and a right checksum.
    pub fn new(mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.octets();
        let mut words = [0u16; WORDS];
        let content: [(usize, u16); 13] = [
            (0x00, u16::from_le_bytes([a, b])),
            (0x01, u16::from_le_bytes([c, d])),
            (0x02, u16::from_le_bytes([e, f])),
            // LED defaults (5.6.5).
            (0x04, 0x8911),
            // Initialization control word 1 (5.6.9): signature, power management, subsystem ids
            // from here.
            (0x0a, 0x400b),
            (0x0b, 0x001e),
            (0x0c, 0x8086),
            (0x0d, 0x100e),
            (0x0e, 0x8086),
            // Initialization control word 2 (5.6.14): both kinds of PAUSE.
            (0x0f, 0x3000),
            // No option ROM, no wake-up.
            (0x24, 0x0000),
            (0x30, 0x0000),
            (0x32, 0xffff),
        ];
        for (at, word) in content {
            if let Some(slot) = words.get_mut(at) {
                *slot = word;
            }
        }
        let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        if let Some(slot) = words.get_mut(CHECKSUM) {
            *slot = SUM.wrapping_sub(sum);
        }
        Self { chip: Microwire::new(words), pins: 0 }
    }

    /// The address in it, as RAL0 and RAH0 get it after reset (SDM 13.5.2).
    pub fn address(&self) -> (u32, u32) {
        let word = |i| u32::from(self.chip.word(i));
        (word(0) | word(1) << 16, word(2) | 1 << 31)
    }

    /// EECD as read.
    pub fn read(&self) -> u32 {
        let grant = if self.pins & eecd::REQ != 0 { eecd::GNT } else { 0 };
        let data = if self.chip.dout() { eecd::DO } else { 0 };
        self.pins | grant | data | eecd::PRES
    }

    /// EECD as written.
    pub fn write(&mut self, value: u32) {
        let pins = value & PINS;
        self.pins = pins;
        self.chip.pins(pins & eecd::CS != 0, pins & eecd::SK != 0, pins & eecd::DI != 0);
    }

    /// EERD: the word at bits 15:8 in bits 31:16, with DONE (bit 4), at once. Without START (bit 0)
    /// nothing is read.
    pub fn read_word(&self, eerd: u32) -> u32 {
        if eerd & 1 == 0 {
            return eerd & 0xff00;
        }
        let address = (eerd >> 8 & 0xff) as usize;
        u32::from(self.chip.word(address)) << 16 | eerd & 0xff00 | 1 << 4
    }

    /// A reset releases the bus. What is stored stays.
    pub fn reset(&mut self) {
        self.pins = 0;
        self.chip.release();
    }
}

impl Stateful for Eeprom {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { chip, pins } = self;
        chip.fields(io);
        io.u32(pins);
        io.check(*pins & !PINS == 0);
    }
}
