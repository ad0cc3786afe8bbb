//! Registers of the RTL8139C+ and the RTL8169, from Realtek's datasheets of both. They are 1, 2 or
//! 4 bytes wide. A few differ in their place, or exist in only one of the chips.

crate::chip::registers::registers! {
    /// ID registers: the address, bytes 0 to 3.
    IDR0 = 0x00,
    /// Bytes 4 and 5.
    IDR4 = 0x04,
    /// Multicast hash table, bytes 0 to 3.
    MAR0 = 0x08,
    /// Bytes 4 to 7.
    MAR4 = 0x0c,
    /// 8139, classic mode: status of the first transmit descriptor.
    TSD0 = 0x10,
    /// Of the second.
    TSD1 = 0x14,
    /// Of the third.
    TSD2 = 0x18,
    /// Of the fourth.
    TSD3 = 0x1c,
    /// 8139, classic mode: address of the first transmit descriptor's frame.
    TSAD0 = 0x20,
    /// Of the second's.
    TSAD1 = 0x24,
    /// Of the third's.
    TSAD2 = 0x28,
    /// Of the fourth's.
    TSAD3 = 0x2c,
    /// Transmit Normal Priority Descriptors' Start, low.
    TNPDS = 0x20,
    /// Its high half.
    TNPDSH = 0x24,
    /// 8139, classic mode: Receive Buffer Start.
    RBSTART = 0x30,
    /// Command.
    CR: One = 0x37,
    /// 8169: Transmit Priority Polling.
    TPPoll: One = 0x38,
    /// 8139, classic mode: Current Address of Packet Read, 16 bytes less.
    CAPR: Two = 0x38,
    /// 8139, classic mode: Current Buffer Address.
    CBR: Two = 0x3a,
    /// Interrupt Mask.
    IMR: Two = 0x3c,
    /// Interrupt Status; a bit that is written clears itself.
    ISR: Two = 0x3e,
    /// Transmit Configuration.
    TCR = 0x40,
    /// Receive Configuration.
    RCR = 0x44,
    /// 93C46 Command, which also unlocks registers.
    EECR ("9346CR"): One = 0x50,
    /// 8139: Media Status.
    MSR: One = 0x58,
    /// 8169: PHY Status.
    PHYStatus: One = 0x6c,
    /// 8139C+: Transmit Priority Polling.
    PollPlus ("TPPoll"): One = 0xd9,
    /// 8169: Receive packet Maximum Size.
    RMS: Two = 0xda,
    /// C+ Command.
    CPCR: Two = 0xe0,
    /// 8169: Interrupt Mitigate; in no datasheet, but in Linux's driver.
    IntrMitigate: Two = 0xe2,
    /// Receive Descriptors' Start Address, low.
    RDSAR = 0xe4,
    /// Its high half.
    RDSARH = 0xe8,
    /// The shared status block's address, low: written last, it takes effect. The paper's, as is
    /// the next.
    CSBAL = 0xf0,
    /// Its high half.
    CSBAH = 0xf4,
}

/// Bits of CR.
pub mod cr {
    /// 8139, classic mode: the receive buffer is empty.
    pub const BUFE: u32 = 1;
    /// Transmitter enable.
    pub const TE: u32 = 1 << 2;
    /// Receiver enable.
    pub const RE: u32 = 1 << 3;
    /// Reset; clears itself.
    pub const RST: u32 = 1 << 4;
}

/// TPPoll: there are frames in the ring of normal priority.
pub const NPQ: u32 = 1 << 6;

/// Interrupt causes: bits of ISR and IMR.
pub mod cause {
    /// A frame was received.
    pub const ROK: u32 = 1;
    /// Reception failed.
    pub const RER: u32 = 1 << 1;
    /// A frame was sent.
    pub const TOK: u32 = 1 << 2;
    /// Sending failed.
    pub const TER: u32 = 1 << 3;
    /// No receive descriptor; in classic mode: the buffer is full.
    pub const RDU: u32 = 1 << 4;
    /// The link has changed.
    pub const LINK: u32 = 1 << 5;
    /// A frame was lost in the FIFO.
    pub const FOVW: u32 = 1 << 6;
    /// All that was there is sent.
    pub const TDU: u32 = 1 << 7;
    /// What a receiver waits for.
    pub const RX: u32 = ROK | RER | RDU | FOVW;
    /// What a sender waits for.
    pub const TX: u32 = TOK | TER;
    /// All of them.
    pub const ALL: u32 = 0xffff;
}

/// Bits of RCR.
pub mod rcr {
    /// All unicast frames.
    pub const AAP: u32 = 1;
    /// Those to our address.
    pub const APM: u32 = 1 << 1;
    /// Multicast, by the hash table.
    pub const AM: u32 = 1 << 2;
    /// Broadcast.
    pub const AB: u32 = 1 << 3;
    /// 8139, classic mode: a frame that begins in the buffer goes on behind its end.
    pub const WRAP: u32 = 1 << 7;
    /// DMA bursts of any length, no early reception.
    pub const BURSTS: u32 = 7 << 8 | 7 << 13;
    /// 8139, classic mode: where the buffer's length goes, in powers of two from 8 KiB on.
    pub const RBLEN: u32 = 11;
}

/// TCR: DMA bursts of any length, and the inter-frame gap of the standard.
pub const TCR_PLAIN: u32 = 7 << 8 | 3 << 24;

/// Bits of CPCR.
pub mod cpcr {
    /// 8139C+: descriptor rings for transmission.
    pub const TXE: u32 = 1;
    /// 8139C+: and for reception.
    pub const RXE: u32 = 1 << 1;
    /// Checksums of received frames are checked.
    pub const RX_CHECKSUM: u32 = 1 << 5;
}

/// 9346CR: configuration registers can be written, or not.
pub const UNLOCK: u32 = 0xc0;
/// See [`UNLOCK`].
pub const LOCK: u32 = 0;

/// MSR: there is no link.
pub const MSR_LINKB: u32 = 1 << 2;
/// PHYStatus: there is a link.
pub const PHY_LINK: u32 = 1 << 1;
