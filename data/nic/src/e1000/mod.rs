//! Intel 82540EM, as the real driver sees it (Intel, *PCI/PCI-X Family of Gigabit Ethernet Controllers Software
//! Developer's Manual*, 317453; "SDM" here, cited by section).
//!
//! ```text
//!  VMM (attach thread)                         switch (workers)
//!    read/write_bar0, _bar1, _config             pull ──► transmit: ring ─► frames ─► Batch
//!        │                                       push ──► receive: filter ─► buffers, write-back
//!        ▼                                              │
//!    registers (atomics) ◄──────────────────────────────┤ read once for each pass, checked
//!        ▼                                              ▼
//!    interrupt block: ICR, IMS, moderation ──► Host::raise
//! ```
//!
//! [`E1000`] locks inside: the transmit side, the receive side (a leaf while frames move), and the interrupt block, a
//! leaf that is held for a few instructions. No lock is held when [`Host::raise`] or [`Host::doorbell`] is called.
//!
//! The ring registers (BAR0 pages 0x2000 and 0x3000) lie in a [`Window`](vmlan_ram::Window) that the guest may have mapped. They are
//! hostile memory whether or not it has: each pass reads each of them once and checks it.
//!
//! # Where it differs from the real chip
//!
//! - Moderation holds interrupts off after one was delivered, instead of delaying the first (see `irq.rs`).
//! - Autonegotiation, PHY and EEPROM operations take no time. The other end of the wire does 1000BASE-T without PAUSE.
//! - A register that the guest has mapped keeps bits that the chip would read as 0; they count for nothing.
//! - Registers that the manual leaves undefined after reset have the values that drivers write: VET 8100h, TIPG for copper.
//! - The packet buffer memory reads as 0. RXSEQ, RXCFG, GPI, TXD_LOW and SRPD are posted by ICS only. Nothing wakes the
//!   guest: WUS stays 0. There is no flash, and no PCI-X capability.

mod access;
mod chip;
mod csb;
mod desc;
mod eeprom;
mod filter;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
mod io;
mod irq;
mod link;
mod moderate;
mod pci;
mod phy;
mod port;
mod regs;
mod reset;
mod ring;
mod rx;
mod rx_place;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod tx;
mod tx_collect;
mod tx_done;
mod tx_frame;
mod tx_scan;

pub use chip::E1000;

use vmlan_frame::Mac;

/// How a chip is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The address in the EEPROM.
    pub mac: Mac,
    /// Interrupts per second, at most, whatever the guest asks for; 0: as the guest asks.
    pub irq_rate_max: u32,
    /// There is a shared status block (`csb.rs`), for drivers that look for it. Not for chips whose registers the guest has
    /// mapped: a kick must be heard.
    pub csb: bool,
}

/// What the chip needs of whoever embeds it.
///
/// `raise`, `lower` and `doorbell` are called without any of the chip's locks; `now` and `set_timer` may be called
/// with the interrupt block's.
pub trait Host: Send + Sync {
    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;
    /// Asks for a call of [`E1000::timer`] at `at` or soon after; replaces an earlier wish.
    fn set_timer(&self, at: u64);
    /// INTA# became asserted; with MSI: send the message. Only on rising edges.
    fn raise(&self);
    /// INTA# became deasserted.
    fn lower(&self) {}
    /// A register that the worker waits for has moved: TDT after [`E1000::arm`], RDT after [`E1000::want_room`].
    fn doorbell(&self);
}

/// What can be wrong with the place of a shared status block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// Its two halves would not be cache lines.
    #[error("is not aligned to 64 bytes")]
    Unaligned,
    /// All of it must lie in one region of memory.
    #[error("is not in its memory")]
    Outside,
}

/// Why the chip stands still although somebody is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The guest's transmit or receive ring is not where descriptors can be: the real chip would hang.
    #[error("the guest's {ring} ring at {base:#x}, {len} bytes, is not in its memory")]
    BadRing {
        /// "transmit" or "receive".
        ring: &'static str,
        /// TDBAL/TDBAH or RDBAL/RDBAH.
        base: u64,
        /// TDLEN or RDLEN.
        len: u32,
    },
    /// TDH or TDT (RDH, RDT) points outside the ring.
    #[error("the guest's {ring} ring has {size} descriptors, but its head or tail is {index}")]
    BadIndex {
        /// "transmit" or "receive".
        ring: &'static str,
        /// Descriptors in the ring.
        size: u32,
        /// The register's value.
        index: u32,
    },
    /// The shared status block is not where one can be: the chip does without.
    #[error("the guest's CSB at {address:#x} {fault}: the NIC works as one without")]
    BadBlock {
        /// CSBAL/CSBAH.
        address: u64,
        /// What is wrong with it.
        fault: BlockFault,
    },
    /// A file behind the guest's memory was truncated.
    #[error("the guest's memory file was truncated")]
    Truncated,
}
