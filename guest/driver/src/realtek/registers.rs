//! Registers of the RTL8139C+ and the RTL8169, from Realtek's datasheets of both. They are 1, 2 or
//! 4 bytes wide. A few differ in their place, or exist in only one of the chips.
#![allow(missing_docs, reason = "a comment beside each says it")]

crate::chip::registers::registers! {
    IDR0 = 0x00, // ID registers: the address, bytes 0 to 3.
    IDR4 = 0x04, // Bytes 4 and 5.
    MAR0 = 0x08, // Multicast hash table, bytes 0 to 3.
    MAR4 = 0x0c, // Bytes 4 to 7.
    TSD0 = 0x10, // 8139, classic mode: status of the first transmit descriptor.
    TSD1 = 0x14, // Of the second.
    TSD2 = 0x18, // Of the third.
    TSD3 = 0x1c, // Of the fourth.
    TSAD0 = 0x20, // 8139, classic mode: address of the first transmit descriptor's frame.
    TSAD1 = 0x24, // Of the second's.
    TSAD2 = 0x28, // Of the third's.
    TSAD3 = 0x2c, // Of the fourth's.
    TNPDS = 0x20, // Transmit Normal Priority Descriptors' Start, low.
    TNPDSH = 0x24, // Its high half.
    RBSTART = 0x30, // 8139, classic mode: Receive Buffer Start.
    CR: One = 0x37, // Command.
    TPPoll: One = 0x38, // 8169: Transmit Priority Polling.
    CAPR: Two = 0x38, // 8139, classic mode: Current Address of Packet Read, 16 bytes less.
    CBR: Two = 0x3a, // 8139, classic mode: Current Buffer Address.
    IMR: Two = 0x3c, // Interrupt Mask.
    ISR: Two = 0x3e, // Interrupt Status; a bit that is written clears itself.
    TCR = 0x40, // Transmit Configuration.
    RCR = 0x44, // Receive Configuration.
    EECR ("9346CR"): One = 0x50, // 93C46 Command, which also unlocks registers.
    MSR: One = 0x58, // 8139: Media Status.
    PHYStatus: One = 0x6c, // 8169: PHY Status.
    PollPlus ("TPPoll"): One = 0xd9, // 8139C+: Transmit Priority Polling.
    RMS: Two = 0xda, // 8169: Receive packet Maximum Size.
    CPCR: Two = 0xe0, // C+ Command.
    IntrMitigate: Two = 0xe2, // 8169: Interrupt Mitigate; in no datasheet, but in Linux's driver.
    RDSAR = 0xe4, // Receive Descriptors' Start Address, low.
    RDSARH = 0xe8, // Its high half.
    /// The shared status block's address, low: written last, it takes effect. The paper's, as is
    /// the next.
    CSBAL = 0xf0,
    /// Its high half.
    CSBAH = 0xf4,
}

pub mod cr {
    pub const BUFE: u32 = 1; // 8139, classic mode: the receive buffer is empty.
    pub const TE: u32 = 1 << 2; // Transmitter enable.
    pub const RE: u32 = 1 << 3; // Receiver enable.
    pub const RST: u32 = 1 << 4; // Reset; clears itself.
}

/// TPPoll: there are frames in the ring of normal priority.
pub const NPQ: u32 = 1 << 6;

/// Interrupt causes: bits of ISR and IMR.
pub mod cause {
    pub const ROK: u32 = 1; // A frame was received.
    pub const RER: u32 = 1 << 1; // Reception failed.
    pub const TOK: u32 = 1 << 2; // A frame was sent.
    pub const TER: u32 = 1 << 3; // Sending failed.
    pub const RDU: u32 = 1 << 4; // No receive descriptor; in classic mode: the buffer is full.
    pub const LINK: u32 = 1 << 5; // The link has changed.
    pub const FOVW: u32 = 1 << 6; // A frame was lost in the FIFO.
    pub const TDU: u32 = 1 << 7; // All that was there is sent.
    pub const RX: u32 = ROK | RER | RDU | FOVW; // What a receiver waits for.
    pub const TX: u32 = TOK | TER; // What a sender waits for.
    pub const ALL: u32 = 0xffff; // All of them.
}

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

pub mod cpcr {
    pub const TXE: u32 = 1; // 8139C+: descriptor rings for transmission.
    pub const RXE: u32 = 1 << 1; // 8139C+: and for reception.
    pub const RX_CHECKSUM: u32 = 1 << 5; // Checksums of received frames are checked.
}

pub const UNLOCK: u32 = 0xc0; // 9346CR: configuration registers can be written, or not.
pub const LOCK: u32 = 0; // See [`UNLOCK`].

pub const MSR_LINKB: u32 = 1 << 2; // MSR: there is no link.
pub const PHY_LINK: u32 = 1 << 1; // PHYStatus: there is a link.
