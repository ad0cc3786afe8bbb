//! Registers (SDM chapter 13): names, offsets, and where their values live.
//!
//! Scalars live in atomics, so that the data path reads them without a lock. The pages 0x2000 and 0x3000 live in the
//! shared window.

use std::sync::atomic::{AtomicU32, Ordering};

use vmlan_ram::Window;

/// First byte of BAR0 that lies in the shared window.
pub const PAGES_START: u32 = 0x2000;
/// One past the last.
pub const PAGES_END: u32 = 0x4000;

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident = $offset:literal,)*) => {
        $($(#[$doc])* pub const $name: u32 = $offset;)*
    };
}

offsets! {
    /// Device Control (13.4.1).
    CTRL = 0x0000,
    /// Device Status (13.4.2).
    STATUS = 0x0008,
    /// EEPROM/Flash Control and Data (13.4.3).
    EECD = 0x0010,
    /// EEPROM Read (13.4.4).
    EERD = 0x0014,
    /// Extended Device Control (13.4.6).
    CTRL_EXT = 0x0018,
    /// MDI Control (13.4.8).
    MDIC = 0x0020,
    /// Interrupt Cause Read (13.4.17).
    ICR = 0x00c0,
    /// Interrupt Throttling (13.4.18).
    ITR = 0x00c4,
    /// Interrupt Cause Set (13.4.19).
    ICS = 0x00c8,
    /// Interrupt Mask Set/Read (13.4.20).
    IMS = 0x00d0,
    /// Interrupt Mask Clear (13.4.21).
    IMC = 0x00d8,
    /// Receive Control (13.4.22).
    RCTL = 0x0100,
    /// Transmit Control (13.4.33).
    TCTL = 0x0400,
    /// Receive Descriptor Base Low (13.4.25).
    RDBAL = 0x2800,
    /// Receive Descriptor Base High (13.4.26).
    RDBAH = 0x2804,
    /// Receive Descriptor Length (13.4.27).
    RDLEN = 0x2808,
    /// Receive Descriptor Head (13.4.28).
    RDH = 0x2810,
    /// Receive Descriptor Tail (13.4.29).
    RDT = 0x2818,
    /// Receive Delay Timer (13.4.30), 1.024 us.
    RDTR = 0x2820,
    /// Receive Interrupt Absolute Delay Timer (13.4.31), 1.024 us.
    RADV = 0x282c,
    /// Transmit Descriptor Base Low (13.4.36).
    TDBAL = 0x3800,
    /// Transmit Descriptor Base High (13.4.37).
    TDBAH = 0x3804,
    /// Transmit Descriptor Length (13.4.38).
    TDLEN = 0x3808,
    /// Transmit Descriptor Head (13.4.39).
    TDH = 0x3810,
    /// Transmit Descriptor Tail (13.4.40).
    TDT = 0x3818,
    /// Transmit Interrupt Delay Value (13.4.41), 1.024 us.
    TIDV = 0x3820,
    /// Transmit Interrupt Absolute Delay Value (13.4.43), 1.024 us.
    TADV = 0x382c,
    /// Receive Checksum Control (13.4.53).
    RXCSUM = 0x5000,
    /// Multicast Table Array, 128 words (13.5.1).
    MTA = 0x5200,
    /// Receive Address Low/High, 16 pairs (13.5.2, 13.5.3).
    RA = 0x5400,
    /// VLAN Filter Table Array, 128 words (13.5.4).
    VFTA = 0x5600,
}

/// Values of all registers of BAR0 that are plain words, by offset.
pub struct Registers {
    /// Offsets 0..0x2000 and 0x4000..0x8000, by word. Those with effects of their own keep nothing here.
    words: Box<[AtomicU32]>,
    pages: Window,
}

/// Registers end here; the rest of BAR0 reads as 0.
const END: u32 = 0x8000;

impl Registers {
    pub fn new(pages: Window) -> Self {
        Self { words: (0..END / 4).map(|_| AtomicU32::new(0)).collect(), pages }
    }

    /// The value of the register at `offset`, read once. The ring registers may change at any time.
    #[inline]
    pub fn get(&self, offset: u32) -> u32 {
        if (PAGES_START..PAGES_END).contains(&offset) {
            return self.pages.u32((offset - PAGES_START) as usize, Ordering::Acquire);
        }
        self.words.get((offset / 4) as usize).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Stores a value.
    #[inline]
    pub fn set(&self, offset: u32, value: u32) {
        if (PAGES_START..PAGES_END).contains(&offset) {
            self.pages.set_u32((offset - PAGES_START) as usize, value, Ordering::Release);
        } else if let Some(word) = self.words.get((offset / 4) as usize) {
            word.store(value, Ordering::Release);
        }
    }

    /// Two registers as one address: `low` with its 4 lowest bits cleared (descriptor rings are aligned to 16 bytes).
    #[inline]
    pub fn base(&self, low: u32, high: u32) -> u64 {
        u64::from(self.get(low) & !0xf) | u64::from(self.get(high)) << 32
    }
}
