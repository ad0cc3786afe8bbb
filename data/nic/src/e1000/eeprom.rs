//! The EEPROM: 64 words behind a Microwire bus that the driver drives by hand through EECD, and a register that reads it
//! in one go, EERD (SDM 5.3, 5.4, 5.6, 13.4.3, 13.4.4).

use vmlan_frame::Mac;

/// Words of 16 bits.
pub const WORDS: usize = 64;
/// Where the checksum is (SDM 5.6.36): all words together sum to [`SUM`].
const CHECKSUM: usize = 0x3f;
const SUM: u16 = 0xbaba;

/// Bits of EECD.
pub mod eecd {
    /// Clock.
    pub const SK: u32 = 1;
    /// Chip select.
    pub const CS: u32 = 1 << 1;
    /// Data to the EEPROM.
    pub const DI: u32 = 1 << 2;
    /// Data from the EEPROM.
    pub const DO: u32 = 1 << 3;
    /// Flash write enable, kept and without effect: there is no flash.
    pub const FWE: u32 = 3 << 4;
    /// Software asks for the bus.
    pub const REQ: u32 = 1 << 6;
    /// It has it.
    pub const GNT: u32 = 1 << 7;
    /// An EEPROM is there. Bit 9 (SIZE) is 0: 64 words.
    pub const PRES: u32 = 1 << 8;
}

/// What the chip on the bus is doing, while it is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bus {
    /// Waits for the start bit.
    Idle,
    /// Takes the opcode (2 bits) and the address (6 bits).
    Command { bits: u32, value: u16 },
    /// Gives a word, highest bit first, then the next word.
    Read { address: usize, bit: u32 },
    /// Takes a word.
    Write { address: Option<usize>, bits: u32, value: u16 },
}

/// The EEPROM and its bus.
#[derive(Debug)]
pub struct Eeprom {
    words: [u16; WORDS],
    /// EECD as written last.
    pins: u32,
    bus: Bus,
    dout: bool,
    /// EWEN was sent.
    writable: bool,
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
            // Initialization control word 1 (5.6.9): signature, power management, subsystem ids from here.
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
        Self { words, pins: 0, bus: Bus::Idle, dout: false, writable: false }
    }

    /// A word; addresses wrap, for the chip has 6 address bits.
    pub fn word(&self, address: usize) -> u16 {
        self.words.get(address % WORDS).copied().unwrap_or(0)
    }

    /// The address in it, as RAL0 and RAH0 get it after reset (SDM 13.5.2).
    pub fn address(&self) -> (u32, u32) {
        let word = |i| u32::from(self.word(i));
        (word(0) | word(1) << 16, word(2) | 1 << 31)
    }

    /// EECD as read.
    pub fn read(&self) -> u32 {
        let grant = if self.pins & eecd::REQ != 0 { eecd::GNT } else { 0 };
        let data = if self.dout { eecd::DO } else { 0 };
        self.pins | grant | data | eecd::PRES
    }

    /// EECD as written.
    pub fn write(&mut self, value: u32) {
        let pins = value & (eecd::SK | eecd::CS | eecd::DI | eecd::FWE | eecd::REQ);
        let before = std::mem::replace(&mut self.pins, pins);
        if pins & eecd::CS == 0 {
            if before & eecd::CS != 0 {
                self.deselect();
            }
        } else if before & eecd::CS == 0 {
            self.bus = Bus::Idle;
        } else if pins & eecd::SK != 0 && before & eecd::SK == 0 {
            self.clock(pins & eecd::DI != 0);
        }
    }

    /// EERD: the word at bits 15:8 in bits 31:16, with DONE (bit 4), at once. Without START (bit 0) nothing is read.
    pub fn read_word(&self, eerd: u32) -> u32 {
        if eerd & 1 == 0 {
            return eerd & 0xff00;
        }
        let address = (eerd >> 8 & 0xff) as usize;
        u32::from(self.word(address)) << 16 | eerd & 0xff00 | 1 << 4
    }

    /// The bus is let go by a reset. What is stored stays.
    pub fn reset(&mut self) {
        self.pins = 0;
        self.bus = Bus::Idle;
        self.dout = false;
    }

    /// Chip select falls: a whole word is programmed now. It is done at once: DO says ready.
    fn deselect(&mut self) {
        if let Bus::Write { address, bits: 16, value } = self.bus {
            match address {
                _ if !self.writable => {}
                Some(address) => self.store(address, value),
                None => self.words = [value; WORDS],
            }
        }
        self.bus = Bus::Idle;
        self.dout = true;
    }

    fn store(&mut self, address: usize, value: u16) {
        if let Some(word) = self.words.get_mut(address % WORDS) {
            *word = value;
        }
    }

    /// The clock rises while the chip is selected.
    fn clock(&mut self, di: bool) {
        let shift = |value: u16| value << 1 | u16::from(di);
        self.bus = match self.bus {
            Bus::Idle if di => Bus::Command { bits: 0, value: 0 },
            Bus::Idle => Bus::Idle,
            Bus::Command { bits: 7, value } => self.command(shift(value)),
            Bus::Command { bits, value } => Bus::Command { bits: bits + 1, value: shift(value) },
            Bus::Read { address, bit } => {
                self.dout = self.word(address) >> bit & 1 != 0;
                match bit.checked_sub(1) {
                    Some(bit) => Bus::Read { address, bit },
                    None => Bus::Read { address: (address + 1) % WORDS, bit: 15 },
                }
            }
            Bus::Write { address, bits, value } if bits < 16 => {
                Bus::Write { address, bits: bits + 1, value: shift(value) }
            }
            done @ Bus::Write { .. } => done,
        };
    }

    /// A whole command: opcode in bits 7:6, address in 5:0.
    fn command(&mut self, command: u16) -> Bus {
        let address = usize::from(command & 0x3f);
        match (command >> 6, address >> 4) {
            (0b10, _) => {
                // One 0 comes before the data.
                self.dout = false;
                Bus::Read { address, bit: 15 }
            }
            (0b01, _) => Bus::Write { address: Some(address), bits: 0, value: 0 },
            (0b11, _) => Bus::Write { address: Some(address), bits: 16, value: 0xffff },
            (_, 0b11) => self.enable(true),
            (_, 0b00) => self.enable(false),
            (_, 0b10) => Bus::Write { address: None, bits: 16, value: 0xffff },
            _ => Bus::Write { address: None, bits: 0, value: 0 },
        }
    }

    /// EWEN, EWDS.
    fn enable(&mut self, writable: bool) -> Bus {
        self.writable = writable;
        Bus::Idle
    }
}
