//! The EEPROM: 64 words, and a register that reads it in one go, EERD (SDM 5.3, 5.4, 5.6, 13.4.3,
//! 13.4.4). On some chips drivers also drive its bus by hand, through EECD.

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

/// What is on the board.
#[derive(Debug)]
pub struct Part {
    /// Words that are not 0, but for the address and the checksum.
    pub content: &'static [(usize, u16)],
    /// Bits of EECD that say what there is.
    pub eecd: u32,
    /// EERD: the bit that says that a word was read, and where the address begins.
    pub done: u32,
    /// See `done`.
    pub address: u32,
    /// EECD drives a Microwire bus.
    pub wired: bool,
}

/// Bits of EECD that keep what is written to them.
const PINS: u32 = eecd::SK | eecd::CS | eecd::DI | eecd::FWE | eecd::REQ;

/// The EEPROM and EECD.
#[derive(Debug)]
pub struct Eeprom {
    part: &'static Part,
    chip: Microwire,
    /// EECD as written last.
    pins: u32,
}

impl Eeprom {
    /// As it leaves the factory, with `mac` and a right checksum.
    pub fn new(part: &'static Part, mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.octets();
        let mut words = [0u16; WORDS];
        let address = [[a, b], [c, d], [e, f]].map(u16::from_le_bytes);
        let content = (0..).zip(address).chain(part.content.iter().copied());
        for (at, word) in content {
            if let Some(slot) = words.get_mut(at) {
                *slot = word;
            }
        }
        let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        if let Some(slot) = words.get_mut(CHECKSUM) {
            *slot = SUM.wrapping_sub(sum);
        }
        Self { part, chip: Microwire::new(words), pins: 0 }
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
        self.pins | grant | data | self.part.eecd
    }

    /// EECD as written.
    pub fn write(&mut self, value: u32) {
        let pins = value & PINS;
        self.pins = pins;
        if !self.part.wired {
            return;
        }
        self.chip.pins(pins & eecd::CS != 0, pins & eecd::SK != 0, pins & eecd::DI != 0);
    }

    /// EERD: the word at the address in bits 31:16, and that it is done, at once. Without START
    /// (bit 0) nothing is read.
    pub fn read_word(&self, eerd: u32) -> u32 {
        let kept = self.address_bits() & eerd;
        if eerd & 1 == 0 {
            return kept;
        }
        u32::from(self.chip.word(self.place(eerd))) << 16 | kept | self.part.done
    }

    /// As EERD, but bits 31:16 are stored (EEWR of the 82574L).
    pub fn write_word(&mut self, eewr: u32) -> u32 {
        let [_, _, a, b] = eewr.to_le_bytes();
        if eewr & 1 != 0 {
            self.chip.store(self.place(eewr), u16::from_le_bytes([a, b]));
        }
        eewr & !1 | self.part.done
    }

    fn address_bits(&self) -> u32 {
        0xffff << self.part.address & 0xffff
    }

    fn place(&self, register: u32) -> usize {
        ((register & 0xffff) >> self.part.address) as usize
    }

    /// A reset releases the bus. What is stored stays.
    pub fn reset(&mut self) {
        self.pins = 0;
        self.chip.release();
    }
}

impl Stateful for Eeprom {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { part: _, chip, pins } = self;
        chip.fields(io);
        io.u32(pins);
        io.check(*pins & !PINS == 0);
    }
}
