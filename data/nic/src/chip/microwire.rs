//! A 93C46 EEPROM: 64 words behind a Microwire bus of three wires and an answer.

use super::state::{Fields, Stateful};

/// Words of 16 bits.
pub const WORDS: usize = 64;

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
pub struct Microwire {
    words: [u16; WORDS],
    selected: bool,
    clocked: bool,
    bus: Bus,
    dout: bool,
    /// EWEN was sent.
    writable: bool,
}

impl Microwire {
    /// With these words in it; the bus is let go.
    pub fn new(words: [u16; WORDS]) -> Self {
        let (selected, clocked, dout, writable) = Default::default();
        Self { words, selected, clocked, bus: Bus::Idle, dout, writable }
    }

    /// A word; addresses wrap, for the chip has 6 address bits.
    pub fn word(&self, address: usize) -> u16 {
        self.words.get(address % WORDS).copied().unwrap_or(0)
    }

    /// The data line from the EEPROM.
    pub fn dout(&self) -> bool {
        self.dout
    }

    /// The three lines to it: chip select, clock, data.
    pub fn pins(&mut self, select: bool, clock: bool, di: bool) {
        let rises = !std::mem::replace(&mut self.clocked, clock) && clock;
        match (std::mem::replace(&mut self.selected, select), select) {
            (true, false) => self.deselect(),
            (false, true) => self.bus = Bus::Idle,
            (true, true) if rises => self.clock(di),
            _ => {}
        }
    }

    /// The bus is released. What is stored stays, and so does EWEN.
    pub fn release(&mut self) {
        (self.selected, self.clocked, self.bus, self.dout) = (false, false, Bus::Idle, false);
    }

    /// Chip select falls: a whole word is programmed now, at once, and EEDO says ready.
    fn deselect(&mut self) {
        if let Bus::Write { address, bits: 16, value } = self.bus {
            match address {
                _ if !self.writable => {}
                Some(address) => self.store(address, value),
                None => self.words = [value; WORDS],
            }
        }
        (self.bus, self.dout) = (Bus::Idle, true);
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

impl Stateful for Microwire {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { words, selected, clocked, bus, dout, writable } = self;
        words.fields(io);
        [selected, clocked, dout, writable].into_iter().for_each(|flag| io.flag(flag));
        bus.fields(io);
    }
}

/// In a state: a write to all words.
const EVERYWHERE: u32 = 0xff;

impl Stateful for Bus {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let place = |address: &usize| u32::try_from(*address).unwrap_or(EVERYWHERE);
        let (mut kind, mut at, mut count, mut word) = match self {
            Self::Idle => (0u8, 0, 0, 0),
            Self::Command { bits, value } => (1, 0, *bits, *value),
            Self::Read { address, bit } => (2, place(address), *bit, 0),
            Self::Write { address, bits, value } => {
                (3, address.as_ref().map_or(EVERYWHERE, place), *bits, *value)
            }
        };
        io.u8(&mut kind);
        [&mut at, &mut count].into_iter().for_each(|number| io.u32(number));
        io.u16(&mut word);
        let address = Some(at as usize).filter(|at| *at < WORDS);
        *self = match (kind, address, count) {
            (0, Some(0), 0) => Self::Idle,
            (1, Some(0), bits @ 0..8) => Self::Command { bits, value: word },
            (2, Some(address), bit @ 0..16) => Self::Read { address, bit },
            (3, _, bits @ 0..=16) if address.is_some() || at == EVERYWHERE => {
                Self::Write { address, bits, value: word }
            }
            _ => return io.check(false),
        };
    }
}
