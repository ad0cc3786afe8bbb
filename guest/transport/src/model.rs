//! The chips that there are drivers for.

use std::fmt;

/// A chip, and the way in which it is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// Intel's 82540EM.
    #[default]
    E1000,
    /// Realtek's RTL8169.
    R8169,
    /// Realtek's RTL8139C+ with its descriptor rings.
    Rtl8139Plus,
    /// Any RTL8139 in classic mode: four transmit registers and one receive buffer.
    Rtl8139Classic,
}

/// The base address registers of a chip.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Which one has the registers, in memory space.
    pub registers: u16,
    /// Bytes of that one.
    pub len: u64,
    /// Which one is in I/O space.
    pub io: u16,
}

impl Model {
    /// PCI vendor and device ID as the first word of configuration space shows them.
    pub fn pci_id(self) -> u32 {
        match self {
            Self::E1000 => 0x100e_8086,
            Self::R8169 => 0x8169_10ec,
            Self::Rtl8139Plus | Self::Rtl8139Classic => 0x8139_10ec,
        }
    }

    /// The least PCI revision that can be driven in this way: an RTL8139 before the C+ has no
    /// rings, but is the same otherwise.
    pub fn least_revision(self) -> u8 {
        if self == Self::Rtl8139Plus { 0x20 } else { 0 }
    }

    /// Where its registers are.
    pub fn bars(self) -> Bars {
        match self {
            Self::E1000 => Bars { registers: 0, len: 0x2_0000, io: 1 },
            Self::R8169 | Self::Rtl8139Plus | Self::Rtl8139Classic => {
                Bars { registers: 1, len: 0x100, io: 0 }
            }
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::E1000 => "e1000",
            Self::R8169 => "r8169",
            Self::Rtl8139Plus => "rtl8139 C+",
            Self::Rtl8139Classic => "rtl8139",
        })
    }
}
