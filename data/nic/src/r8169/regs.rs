//! Registers (RTL8169 datasheet, chapter 7, from memory and from what drivers do): names, places,
//! which bits can be written, values after reset. What else a register does is in `access.rs`.

use crate::realtek::regs::{Row, offsets, row};

offsets! {
    IDR0 = 0x00, // ID: the station's address, bytes 0 to 3.
    IDR4 = 0x04, // Bytes 4 and 5.
    MAR0 = 0x08, // Multicast hash table, bytes 0 to 3.
    MAR4 = 0x0c, // Bytes 4 to 7.
    DTCCR = 0x10, // Dump Tally Counter Command: address, low, and the command.
    DTCCRH = 0x14, // Its high half.
    TNPDS = 0x20, // Transmit Normal Priority Descriptors' Start.
    TNPDSH = 0x24, // Its high half.
    THPDS = 0x28, // Transmit High Priority Descriptors' Start.
    THPDSH = 0x2c, // Its high half.
    CR = 0x37, // Command.
    TPPOLL = 0x38, // Transmit Priority Polling.
    IMR = 0x3c, // Interrupt Mask.
    ISR = 0x3e, // Interrupt Status.
    TCR = 0x40, // Transmit Configuration.
    RCR = 0x44, // Receive Configuration.
    TCTR = 0x48, // Timer Count.
    MPC = 0x4c, // Missed Packet Counter.
    CR9346 = 0x50, // 93C46 Command.
    CONFIG0 = 0x51, // Configuration 0.
    CONFIG5 = 0x56, // Configuration 5.
    TIMERINT = 0x58, // Timer Interrupt.
    PHYAR = 0x60, // PHY Access.
    PHYSTATUS = 0x6c, // PHY Status.
    WAKEUP = 0x84, // First of the wake-up frames' registers.
    WAKEUP_END = 0xce, // One past their last.
    RMS = 0xda, // Receive packet Maximum Size.
    CPCR = 0xe0, // C+ Command.
    INTMIT = 0xe2, // Interrupt Mitigate. In no datasheet; Linux's driver knows it.
    RDSAR = 0xe4, // Receive Descriptors' Start Address.
    RDSARH = 0xe8, // Its high half.
    CSBAL = 0xf0, // CSB address, low; writing it places the CSB (`chip/csb.rs`).
    CSBAH = 0xf4, // Its high half.
}

pub mod cr {
    pub const TE: u32 = 1 << 2; // Transmitter Enable.
    pub const RE: u32 = 1 << 3; // Receiver Enable.
    pub const RST: u32 = 1 << 4; // Reset; clears itself.
}

/// Bits of TPPoll. All clear themselves.
pub mod tppoll {
    pub const HPQ: u32 = 1 << 7; // High Priority Queue polling.
    pub const NPQ: u32 = 1 << 6; // Normal Priority Queue polling.
    pub const FSWINT: u32 = 1; // Forced Software Interrupt.
}

pub mod tcr {
    pub const CRC: u32 = 1 << 16; // No FCS is appended: frames bring theirs.
    pub const LBK: u32 = 1 << 17; // Loopback: 01 in bits 18:17 (11 is the 8139's).
    /// The chip's version, in bits that cannot be written: 30:26 and 23. These say
    /// RTL8169SB/8110SB. Of the versions that today's drivers know, it needs the least special
    /// care: the S must have its PLL turned on and its PHY patched at length; the SC has an
    /// undocumented register for its bus clock.
    pub const HWVERID: u32 = 0x1000_0000;
    /// Inter-frame gap of 96 ns, as after reset.
    pub const IFG: u32 = 0x0300_0000;
}

pub mod cpcr {
    pub const RXVLAN: u32 = 1 << 6; // Receive VLAN de-tagging.
    pub const RXCHKSUM: u32 = 1 << 5; // Receive Checksum offload.
    pub const UNIT: u32 = 3; // Unit of INTMIT's timers. In no datasheet.
}

const ALL: u32 = u32::MAX;

/// All registers, by offset. CONFIG1: memory and I/O windows are there; PME can be enabled.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("IDR0", IDR0, 4, ALL, 0),
    row("IDR4", IDR4, 2, 0xffff, 0),
    row("MAR0", MAR0, 4, ALL, 0),
    row("MAR4", MAR4, 4, ALL, 0),
    row("DTCCR", DTCCR, 4, 0xffff_ffc0, 0),
    row("DTCCR", DTCCRH, 4, ALL, 0),
    row("TNPDS", TNPDS, 4, 0xffff_ff00, 0),
    row("TNPDS", TNPDSH, 4, ALL, 0),
    row("THPDS", THPDS, 4, 0xffff_ff00, 0),
    row("THPDS", THPDSH, 4, ALL, 0),
    // No flash.
    row("FLASH", 0x30, 4, 0, 0),
    row("ERBCR", 0x34, 2, 0, 0),
    row("ERSR", 0x36, 1, 0, 0),
    row("CR", CR, 1, 0x0c, 0),
    row("TPPoll", TPPOLL, 1, 0, 0),
    row("IMR", IMR, 2, 0xc1ff, 0),
    row("ISR", ISR, 2, 0, 0),
    row("TCR", TCR, 4, 0x030f_0700, tcr::HWVERID | tcr::IFG),
    row("RCR", RCR, 4, 0x0101_e73f, 0),
    row("TCTR", TCTR, 4, 0, 0),
    row("MPC", MPC, 4, 0, 0),
    row("9346CR", CR9346, 1, 0, 0),
    row("CONFIG0", CONFIG0, 1, 0, 0),
    row("CONFIG1", 0x52, 1, 0xf1, 0x0d),
    row("CONFIG2", 0x53, 1, 0x20, 0),
    row("CONFIG3", 0x54, 1, 0x30, 0),
    row("CONFIG4", 0x55, 1, 0x14, 0),
    row("CONFIG5", CONFIG5, 1, 0x73, 0),
    row("TimerInt", TIMERINT, 4, ALL, 0),
    row("MULINT", 0x5c, 2, 0x0fff, 0),
    row("PHYAR", PHYAR, 4, 0, 0),
    // The ten-bit interface, which only the first version of the 8169 has.
    row("TBICSR", 0x64, 4, 0, 0),
    row("TBI_ANAR", 0x68, 2, 0, 0),
    row("TBI_LPAR", 0x6a, 2, 0, 0),
    row("PHYStatus", PHYSTATUS, 1, 0, 0),
    // Nobody says what it is; drivers write 1.
    row("82h", 0x82, 1, 0xff, 0),
    row("Wakeup0", 0x84, 4, ALL, 0), row("Wakeup0", 0x88, 4, ALL, 0),
    row("Wakeup1", 0x8c, 4, ALL, 0), row("Wakeup1", 0x90, 4, ALL, 0),
    row("Wakeup2", 0x94, 4, ALL, 0), row("Wakeup2", 0x98, 4, ALL, 0),
    row("Wakeup2", 0x9c, 4, ALL, 0), row("Wakeup2", 0xa0, 4, ALL, 0),
    row("Wakeup3", 0xa4, 4, ALL, 0), row("Wakeup3", 0xa8, 4, ALL, 0),
    row("Wakeup3", 0xac, 4, ALL, 0), row("Wakeup3", 0xb0, 4, ALL, 0),
    row("Wakeup4", 0xb4, 4, ALL, 0), row("Wakeup4", 0xb8, 4, ALL, 0),
    row("Wakeup4", 0xbc, 4, ALL, 0), row("Wakeup4", 0xc0, 4, ALL, 0),
    row("CRC0", 0xc4, 2, 0xffff, 0), row("CRC1", 0xc6, 2, 0xffff, 0),
    row("CRC2", 0xc8, 2, 0xffff, 0), row("CRC3", 0xca, 2, 0xffff, 0),
    row("CRC4", 0xcc, 2, 0xffff, 0),
    row("RMS", RMS, 2, 0xffff, 0),
    row("C+CR", CPCR, 2, 0x6c7b, 0),
    row("IntrMitigate", INTMIT, 2, 0xffff, 0),
    row("RDSAR", RDSAR, 4, 0xffff_ff00, 0),
    row("RDSAR", RDSARH, 4, ALL, 0),
    row("MTPS", 0xec, 1, 0x3f, 0),
];

/// Behind them a CardBus card, which this is not, has its function registers.
pub static CARDBUS: &[Row] = &[
    row("FER", 0xf0, 4, 0, 0),
    row("FEMR", 0xf4, 4, 0, 0),
    row("FPSR", 0xf8, 4, 0, 0),
    row("FFER", 0xfc, 4, 0, 0),
];

/// In their place, for drivers that find the subsystem.
pub static CSB: &[Row] = &[row("CSBAL", CSBAL, 4, ALL, 0), row("CSBAH", CSBAH, 4, ALL, 0)];

/// Survives CR.RST: addresses, what the EEPROM has loaded, wake-up, the CSB (its driver places it
/// once).
pub fn is_sticky(row: &Row) -> bool {
    matches!(
        row.offset,
        IDR0..=MAR4 | CONFIG0..=CONFIG5 | 0x82 | WAKEUP..WAKEUP_END | CSBAL | CSBAH
    )
}
