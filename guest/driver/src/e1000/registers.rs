//! Registers of the 82540EM and the 82574L, from Intel's "PCI/PCI-X Family of Gigabit Ethernet
//! Controllers Software Developer's Manual" (8254x; SDM below), chapter 13. Offsets in BAR0; all
//! are 32 bits wide.
#![allow(missing_docs, reason = "a comment beside each says it")]

crate::chip::registers::registers! {
    CTRL = 0x0000, // Device control (SDM 13.4.1).
    STATUS = 0x0008, // Device status (SDM 13.4.2).
    EERD = 0x0014, // EEPROM read (SDM 13.4.4).
    CTRLEXT = 0x0018, // Extended device control (SDM 13.4.6).
    FCAL = 0x0028, // Flow control address, low (SDM 13.4.7).
    FCAH = 0x002c, // Flow control address, high.
    FCT = 0x0030, // Flow control type.
    ICR = 0x00c0, // Interrupt cause read; reading clears it (SDM 13.4.17).
    ITR = 0x00c4, // Interrupt throttling, in units of 256 ns (SDM 13.4.18).
    ICS = 0x00c8, // Interrupt cause set (SDM 13.4.19).
    IMS = 0x00d0, // Interrupt mask set (SDM 13.4.20).
    IMC = 0x00d8, // Interrupt mask clear (SDM 13.4.21).
    EIAC = 0x00dc, // Causes that their message clears (82574L).
    IAM = 0x00e0, // Causes that their message masks (82574L).
    IVAR = 0x00e4, // Causes' vectors (82574L).
    EITR = 0x00e8, // Throttling of vector 0, in units of 256 ns (82574L).
    RCTL = 0x0100, // Receive control (SDM 13.4.22).
    FCTTV = 0x0170, // Flow control transmit timer value.
    TCTL = 0x0400, // Transmit control (SDM 13.4.33).
    TIPG = 0x0410, // Transmit inter-packet gap (SDM 13.4.34).
    RDBAL = 0x2800, // Receive descriptors: base, low (SDM 13.4.25).
    RDBAH = 0x2804, // Receive descriptors: base, high.
    RDLEN = 0x2808, // Receive descriptors: length of the ring in bytes.
    RDH = 0x2810, // Receive descriptors: head, the device's.
    RDT = 0x2818, // Receive descriptors: tail, ours (SDM 13.4.29).
    RDTR = 0x2820, // Receive delay timer, in units of 1.024 us (SDM 13.4.30).
    RADV = 0x282c, // Receive absolute delay timer, in units of 1.024 us (SDM 13.4.31).
    /// The shared status block's address, low: written last, it takes effect. Of QEMU's
    /// e1000-paravirt, as is the next.
    CSBAL = 0x2830,
    CSBAH = 0x2834, // The shared status block's address, high.
    TDBAL = 0x3800, // Transmit descriptors: base, low (SDM 13.4.36).
    TDBAH = 0x3804, // Transmit descriptors: base, high.
    TDLEN = 0x3808, // Transmit descriptors: length of the ring in bytes.
    TDH = 0x3810, // Transmit descriptors: head, the device's.
    TDT = 0x3818, // Transmit descriptors: tail, ours (SDM 13.4.40).
    TIDV = 0x3820, // Transmit interrupt delay, in units of 1.024 us (SDM 13.4.41).
    TADV = 0x382c, // Transmit absolute interrupt delay, in units of 1.024 us (SDM 13.4.44).
    RXCSUM = 0x5000, // Receive checksum control (SDM 13.4.47).
    RFCTL = 0x5008, // Receive filter control (82574L).
    MTA = 0x5200, // Multicast table array, 128 words (SDM 13.5.1).
    RAL = 0x5400, // Receive address, low, of the first of 16 pairs (SDM 13.5.2).
    RAH = 0x5404, // Receive address, high (SDM 13.5.3).
}

pub mod ctrl {
    pub const ASDE: u32 = 1 << 5; // Automatic speed detection.
    pub const SLU: u32 = 1 << 6; // Set link up.
    pub const RST: u32 = 1 << 26; // Reset; clears itself.
}

pub mod status {
    /// Link up.
    pub const LU: u32 = 1 << 1;
}

/// Bits of EERD.
pub mod eerd {
    pub const START: u32 = 1 << 0; // Start a read.
    pub const DATA: u32 = 16; // Where the data come.

    /// Where the chips differ.
    #[derive(Clone, Copy, Debug)]
    pub struct Layout {
        pub done: u32,    // The data are there.
        pub address: u32, // Where the address goes.
    }

    pub const I82540: Layout = Layout { done: 1 << 4, address: 8 };
    pub const I82574: Layout = Layout { done: 1 << 1, address: 2 };
}

/// What the 82574L has for vectors, and for descriptors.
pub mod vectors {
    /// RXQ0 and TXQ0 have vector 0, OTHER has 1; bit 31: every write-back of TXQ0 is a cause.
    pub const IVAR: u32 = 8 | 8 << 8 | 9 << 16 | 1 << 31;
    /// Messages mask the causes in IAM.
    pub const CTRL_EXT_EIAME: u32 = 1 << 24;
    /// Extended receive descriptors.
    pub const RFCTL_EXTEN: u32 = 1 << 15;
}

/// Interrupt causes: bits of ICR, ICS, IMS and IMC.
pub mod cause {
    pub const TXDW: u32 = 1 << 0; // A descriptor with RS was written back.
    pub const TXQE: u32 = 1 << 1; // The transmit queue is empty.
    pub const LSC: u32 = 1 << 2; // Link status change.
    pub const RXDMT0: u32 = 1 << 4; // Few receive descriptors are left.
    pub const RXO: u32 = 1 << 6; // Receiver overrun.
    pub const RXT0: u32 = 1 << 7; // Receive timer.
    pub const RXQ0: u32 = 1 << 20; // Receive queue 0 (82574L with MSI-X).
    pub const TXQ0: u32 = 1 << 22; // Transmit queue 0.
    pub const RX: u32 = RXDMT0 | RXO | RXT0; // What a receiver waits for.
    pub const ALL: u32 = TXDW | LSC | RX; // All that the driver enables.
    /// All causes that the driver enables while CSB is on, whose flags say when they interrupt.
    pub const CSB: u32 = ALL | TXQE;
}

pub mod rctl {
    pub const EN: u32 = 1 << 1; // Receiver enable.
    pub const UPE: u32 = 1 << 3; // Unicast promiscuous.
    pub const MPE: u32 = 1 << 4; // Multicast promiscuous.
    pub const LPE: u32 = 1 << 5; // Long packets, beyond 1522 bytes.
    pub const BAM: u32 = 1 << 15; // Broadcast accept.
    pub const BSIZE: u32 = 16; // Where the buffer size goes.
    pub const BSEX: u32 = 1 << 25; // Buffer size extension: sizes are 16 times larger.
    pub const SECRC: u32 = 1 << 26; // Strip the Ethernet CRC.
}

pub mod tctl {
    /// Transmit enable.
    pub const EN: u32 = 1 << 1;
    /// Pad short packets.
    pub const PSP: u32 = 1 << 3;
    /// Collision threshold 15, distance 64 (full duplex): what the manual advises (14.5).
    pub const COLLISION: u32 = 0xf << 4 | 0x40 << 12;
}

/// TIPG as the manual advises for copper (SDM 13.4.34): IPGT 10, IPGR1 8, IPGR2 6.
pub const TIPG_COPPER: u32 = 10 | 8 << 10 | 6 << 20;

/// RXCSUM: report IP and TCP/UDP checksums.
pub const RXCSUM_IP_TCP: u32 = 1 << 8 | 1 << 9;

/// RAH: this address is valid.
pub const RAH_AV: u32 = 1 << 31;

/// Words of the multicast table.
pub const MTA_WORDS: u32 = 128;

/// Words of the EEPROM that its checksum covers, itself included, and their sum (SDM 5.6).
pub const EEPROM_WORDS: u32 = 0x40;
/// See [`EEPROM_WORDS`].
pub const EEPROM_SUM: u16 = 0xbaba;
