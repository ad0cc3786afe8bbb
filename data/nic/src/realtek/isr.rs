//! Causes of interrupts, as in IMR (3Ch) and ISR (3Eh); the same bits in both chips.

use crate::chip::Kinds;

pub const ROK: u32 = 1; // Receive OK.
pub const RER: u32 = 1 << 1; // Receive Error. Never posted: no frame on this wire is damaged.
pub const TOK: u32 = 1 << 2; // Transmit OK.
pub const TER: u32 = 1 << 3; // Transmit Error. Never posted.
/// Receive Descriptor Unavailable; in the 8139's classic mode: the ring is full (RXOVW).
pub const RDU: u32 = 1 << 4;
pub const LINK: u32 = 1 << 5; // The link has changed; in the 8139 also: Packet Underrun.
pub const FOVW: u32 = 1 << 6; // Receive FIFO Overflow: a frame was lost.
pub const TDU: u32 = 1 << 7; // Transmit Descriptor Unavailable: all that was there is sent.
pub const SWINT: u32 = 1 << 8; // Software Interrupt (TPPoll.FSWInt).
pub const TIMEOUT: u32 = 1 << 14; // TCTR has reached TimerInt.
pub const SERR: u32 = 1 << 15; // System Error on the PCI bus.

/// Those that drivers are content with when nothing has happened: of a process that has died, any
/// may be lost.
pub const LOST: u32 = ROK | TOK | RDU | LINK | TDU | SWINT | TIMEOUT;

/// What they are about.
pub static KINDS: Kinds = Kinds {
    all: ROK | RER | TOK | TER | RDU | LINK | FOVW | TDU | SWINT | TIMEOUT | SERR,
    transmit: TOK | TDU,
    written: TOK,
    receive: ROK,
    low: RDU,
    link: LINK,
    data: ROK | RER | TOK | TER | RDU | FOVW | TDU,
};
