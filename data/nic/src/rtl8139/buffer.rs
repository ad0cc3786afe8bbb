//! The receive buffer of classic mode (datasheet 6.7, 6.13, 6.14, 6.18; "Receive Operation"): a
//! piece of the guest's memory that frames are written into one after the other, each with four
//! bytes in front that say what it is.
//!
//! ```text
//!  RBSTART       CAPR + 16: the driver's           CBR: ours    RBLEN   with RCR.WRAP,
//!     │  free        │ frames: [status, length][bytes, FCS] │  free    │  1.5 KiB more ┊
//!     └──────────────┴──────────────────────────────────────┴──────────┘
//! ```
//!
//! - CBR is always a multiple of 4, so a header never crosses the end.
//! - Without WRAP a frame that reaches the end goes on at the beginning. With WRAP it goes on
//!   behind the end, and the next frame begins where it would have ended without. WRAP means
//!   nothing with 64 KiB.
//! - Drivers reserve 1.5 KiB behind the end, as the datasheet says. A frame of more than 1,532
//!   bytes can be too long for that. It goes to the beginning, and a frame that means nothing fills
//!   what is left before the end ([`Look::filler`]): the driver finds a frame only by the length of
//!   the one before.
//! - The buffer is never filled to the last byte: CBR equal to the read pointer means empty
//!   (CR.BUFE).
//!
//! Every value that the guest writes is taken modulo the buffer: whatever they are, a frame is
//! written only to the bytes that [`Look::parts`] names, all of which lie in the buffer or in the
//! 1.5 KiB behind it.

use super::regs::{self, Registers, rcr};

/// Bytes behind the buffer that WRAP lets us use.
pub const OVERRUN: u32 = 1536;
/// Longest frame, with its FCS: what drivers are ready for, and the longest that the transmitter
/// takes.
pub const LONGEST: usize = 1792;
pub const HEADER: u32 = 4; // In front of each frame.
const LEAD: u32 = 16; // The driver's read pointer is CAPR plus this.
const SHORTEST: u32 = 8192; // The shortest buffer.

/// Bits of the status in front of a frame.
pub mod status {
    pub const ROK: u16 = 1; // Receive OK.
    pub const BAR: u16 = 1 << 13; // Broadcast address.
    pub const PAM: u16 = 1 << 14; // Physical address matched.
    pub const MAR: u16 = 1 << 15; // Multicast address.
}

/// What the registers say about the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// RBSTART; 0: the driver has never set it.
    pub base: u32,
    /// Bytes of the buffer.
    pub size: u32,
    /// RCR.WRAP, where it means something.
    pub wrap: bool,
    /// Where the next frame goes; below `size`, a multiple of 4.
    pub at: u32,
    /// The first byte that the driver has not read; below `size`.
    pub read: u32,
}

/// Where a frame with its header goes: bytes from the buffer's start, up to two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Offset and length.
    pub first: (u32, u32),
    /// What goes on at the beginning; of no length if nothing does.
    pub second: (u32, u32),
}

impl Look {
    /// Reads each register once.
    pub fn new(regs: &Registers) -> Self {
        let rcr = regs.get(regs::RCR);
        let size = SHORTEST << (rcr >> rcr::RBLEN_SHIFT & 3);
        let wrap = rcr & rcr::WRAP != 0 && size < 0x1_0000;
        let (capr, cbr) = (regs.get(regs::CAPR), regs.get(regs::CBR));
        let base = regs.get(regs::RBSTART);
        Self { base, size, wrap, at: (cbr & !3) % size, read: (capr + LEAD) % size }
    }

    /// Nothing is in the buffer that the driver has not read.
    pub fn is_empty(&self) -> bool {
        self.at == self.read
    }

    /// Bytes that may be written.
    pub fn free(&self) -> u32 {
        match (self.read + self.size - self.at) % self.size {
            // All of it.
            0 => self.size - 1,
            // Up to the read pointer, but not to it.
            free => free - 1,
        }
    }

    /// Bytes that a frame of `len`, FCS included, takes with its header.
    pub fn need(len: u32) -> u32 {
        (HEADER + len).next_multiple_of(4)
    }

    /// Where a frame of `len`, FCS included, goes. `None`: it would overrun the end by more than
    /// drivers have room for.
    pub fn parts(&self, len: u32) -> Option<Parts> {
        let total = HEADER + len;
        let before = total.min(self.size - self.at);
        let behind = total - before;
        match self.wrap {
            true if behind > OVERRUN => None,
            true => Some(Parts { first: (self.at, total), second: (0, 0) }),
            false => Some(Parts { first: (self.at, before), second: (0, behind) }),
        }
    }

    /// The length of a frame, FCS included, that leaves the end behind, so that what did not fit
    /// there goes to the beginning.
    pub fn filler(&self) -> u32 {
        (self.size - self.at).saturating_sub(HEADER).max(64)
    }

    /// The place behind a frame that takes `need` bytes.
    pub fn step(&mut self, need: u32) {
        self.at = (self.at + need) % self.size;
    }
}

/// The four bytes in front of a frame.
pub fn header(status: u16, len: u32) -> [u8; HEADER as usize] {
    let [s0, s1] = status.to_le_bytes();
    let [l0, l1, ..] = len.to_le_bytes();
    [s0, s1, l0, l1]
}
