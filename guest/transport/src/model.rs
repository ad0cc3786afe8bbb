//! The chips that there are drivers for.

use std::fmt;

/// A chip, and the way in which it is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// Intel's 82540EM.
    #[default]
    E1000,
    /// Intel's 82574L.
    E1000e,
    /// Realtek's RTL8169.
    R8169,
    /// Realtek's RTL8139C+ with its descriptor rings.
    Rtl8139Plus,
    /// Any RTL8139 in classic mode: four transmit registers and one receive buffer.
    Rtl8139Classic,
    /// VMware's vmxnet3.
    Vmxnet3,
}

/// The base address registers of a chip.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Those with its registers, in memory space. To a driver they are one space: the registers of
    /// each follow those of the one before it.
    pub registers: &'static [u16],
    /// Bytes of each of these.
    pub len: u32,
    /// The one in I/O space, if there is one.
    pub io: Option<u16>,
}

impl Bars {
    /// Where a register is: its BAR, counted among [`Self::registers`], and its offset there.
    #[inline]
    pub fn place(&self, offset: u32) -> (usize, u32) {
        ((offset / self.len) as usize, offset % self.len)
    }
}

impl Model {
    /// PCI vendor and device ID as the first word of configuration space shows them.
    pub fn pci_id(self) -> u32 {
        match self {
            Self::E1000 => 0x100e_8086,
            Self::E1000e => 0x10d3_8086,
            Self::R8169 => 0x8169_10ec,
            Self::Rtl8139Plus | Self::Rtl8139Classic => 0x8139_10ec,
            Self::Vmxnet3 => 0x07b0_15ad,
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
            Self::E1000 => Bars { registers: &[0], len: 0x2_0000, io: Some(1) },
            Self::E1000e => Bars { registers: &[0], len: 0x2_0000, io: Some(2) },
            Self::R8169 | Self::Rtl8139Plus | Self::Rtl8139Classic => {
                Bars { registers: &[1], len: 0x100, io: Some(0) }
            }
            Self::Vmxnet3 => Bars { registers: &[0, 1], len: 0x1000, io: None },
        }
    }

    /// Vectors of MSI-X that its driver uses, of a chip that has them: the first for all frames,
    /// the others for what nobody waits for.
    pub fn vectors(self) -> u32 {
        if matches!(self, Self::E1000e | Self::Vmxnet3) { 2 } else { 0 }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::R8169 => "r8169",
            Self::Rtl8139Plus => "rtl8139 C+",
            Self::Rtl8139Classic => "rtl8139",
            Self::Vmxnet3 => "vmxnet3",
        })
    }
}
