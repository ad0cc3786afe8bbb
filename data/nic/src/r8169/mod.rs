//! Realtek RTL8169SB, the PCI gigabit chip that Linux's `r8169` calls RTL8169sb/8110sb (Realtek,
//! *RTL8169 Gigabit Ethernet MAC Controller with Power Management*; registers by their names
//! there).
//!
//! Registers are here; what the RTL8139C+ has too, such as descriptors, is in [`crate::realtek`];
//! everything else in [`crate::chip`] and [`crate::ring`].
//!
//! No register can be mapped into a guest: all 256 bytes are one page, in which ISR is cleared by
//! writing ones and commands clear themselves. A store that nobody sees at once would do neither.
//!
//! # Where it differs from the real chip
//!
//! - A transmit ring is looked at whenever the worker is awake, not only after a write of TPPoll.
//! - One descriptor of a ring stays unused until others are given back.
//! - Moderation holds interrupts off after one was delivered, instead of delaying the first (see
//!   `chip/irq.rs`).
//! - Autonegotiation, PHY and EEPROM operations, resets and dumps take no time. The other end of
//!   the wire does 1000BASE-T without PAUSE.
//! - Addresses have 64 bits whether or not C+CR.DAC is set. Descriptors are always little-endian,
//!   whatever C+CR.ENDIAN says.
//! - RER and TER are never posted, SERR only where the chip's state was lost ([`Nic::lost`]).
//!   Nothing wakes the guest. There is no flash, no VPD, and no CardBus.
//!
//! [`Nic::lost`]: crate::chip::Nic::lost

mod access;
mod chip;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod link;
mod moderate;
mod pci;
mod phy;
mod regs;
mod reset;
#[cfg(test)]
mod tests;

pub use chip::R8169;

const DEVICE: u16 = 0x8169; // PCI device id.
