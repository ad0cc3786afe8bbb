//! What can interrupt the guest: causes, as in ICR, ICS, IMS and IMC (SDM 13.4.17).

use crate::chip::Kinds;

pub const TXDW: u32 = 1; // Transmit Descriptor Written Back.
pub const TXQE: u32 = 1 << 1; // Transmit Queue Empty.
pub const LSC: u32 = 1 << 2; // Link Status Change.
pub const RXDMT0: u32 = 1 << 4; // Receive Descriptor Minimum Threshold reached.
pub const RXO: u32 = 1 << 6; // Receiver Overrun.
pub const RXT0: u32 = 1 << 7; // Receiver Timer Interrupt: a frame has arrived.
pub const MDAC: u32 = 1 << 9; // MDIO Access Complete.
/// Bits that can be latched. The chip itself never posts RXSEQ, RXCFG, GPI, TXD_LOW
/// (TXDCTL.LWTHRESH) and SRPD (RSRPD): no driver that we know enables them. Table 13-63 calls 5 and
/// 8 reserved, but the real chip latches them when they are written to ICS. The driver's interrupt
/// test sets each of the lowest ten.
pub const ALL: u32 = 0x0001_ffff;
pub const DATA: u32 = TXDW | TXQE | RXDMT0 | RXO | RXT0; // Those about frames.
pub const TRANSMIT: u32 = TXDW | TXQE; // Moderated by TIDV and TADV.
pub const RECEIVE: u32 = RXT0; // Moderated by RDTR and RADV.
pub const LINK: u32 = LSC; // Held back by the host only.

/// What they are about.
pub static KINDS: Kinds = Kinds {
    all: ALL,
    transmit: TRANSMIT,
    written: TXDW,
    receive: RECEIVE,
    low: RXDMT0,
    link: LINK,
    data: DATA,
};
