//! Realtek RTL8139C+ (datasheet rev. 1.6; cited by register, for numbering differs between its
//! revisions): the chip of a hundred million boards, with two interfaces. In classic mode, which
//! drivers of DOS, Windows 98 and Linux (8139too) know, it has four transmit descriptors in
//! registers and one receive buffer; in C+ mode, descriptor rings like the RTL8169's
//! ([`crate::realtek`]).
//!
//! ```text
//!  classic mode                                  C+ mode (CPCR)
//!    TSD, TSAD ─► tsd.rs ─► ring::Transmitter      TNPDS, THPDS ─► realtek ─► ring::Transmitter
//!    RBSTART ◄─ classic.rs                         RDSAR ◄── realtek ◄── ring::Receiver
//! ```
//!
//! Transmitter and receiver change modes separately, as CPCR has a bit for each. Frames that are
//! held, budgets, offloads and write-backs are [`crate::ring`]'s in both modes; only the receive
//! buffer is this chip's alone (`buffer.rs`).
//!
//! [`Rtl8139::new`] makes an 8139C+ (revision 20h, which 8139cp drives) or, without `plus`, an
//! 8139C (revision 10h, which 8139too drives). The latter has no C+ mode and no CSB.
//!
//! # Where it differs from the real chip
//!
//! - INTA# is the only interrupt: the chip has no MSI. TimerInt is its only moderation; the host's
//!   limit applies.
//! - Autonegotiation, PHY and EEPROM operations take no time. The other end of the wire does
//!   100BASE-TX full duplex without PAUSE. Frames pass as fast as the switch moves them.
//! - A frame that finds no room is left with its sender for a while; RXOVW says that frames were
//!   lost, MPC how many.
//! - Nothing is received early: ERBCR and ERSR are 0, and RCR's and MULINT's thresholds mean
//!   nothing.
//! - The FCS behind a received frame is zeros. With RCR.WRAP a frame that would go on for more than
//!   1.5 KiB behind the buffer's end, more than a driver has to reserve, goes to the beginning; a
//!   frame that means nothing fills the rest.
//! - A frame of more than 1,792 bytes, or from where there is no memory, is not sent: its
//!   descriptor gets TUN, and ISR gets TER.
//! - Setting RE where it was 0 empties the receive buffer. The datasheet does not say so, but
//!   drivers rely on it.
//! - The tally counters are dumped in C+ mode only: in classic mode the place of DTCCR is TSD0's.
//! - Of the CSB's words, `guest_txkick_at` and `host_isr` mean nothing. The authors' rtl8139 had
//!   both: an index at which a transmit interrupt is wanted, where `guest_need_txkick` says so for
//!   the other chips, and a copy of ISR, which would have to be kept in step with masks, moderation
//!   and what is suppressed, for drivers that nobody has any more.
//! - Nothing wakes the guest; there is no flash, no VPD, no CardBus. In the place of its function
//!   event registers are CSBAL and CSBAH, if there is a CSB.

mod access;
mod buffer;
mod chip;
mod classic;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod pci;
mod phy;
mod plus;
mod regs;
mod reset;
mod sides;
mod table;
#[cfg(test)]
mod tests;
mod tsd;

pub use chip::Rtl8139;
