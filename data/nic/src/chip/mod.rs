//! What all chips with registers and rings share: how they are told things, their locks, their
//! interrupts, their port.
//!
//! ```text
//!  VMM (attach thread)                         switch (workers)
//!    PciFunction::read, ::write       Nic::pull ──► ring::transmit: ring ─► frames ─► Batch
//!        │                            Nic::push ──► ring::receive: filter ─► buffers, write-back
//!        ▼                                        │
//!    the chip's registers (atomics) ◄─────────────┤ read once for each pass, checked
//!        ▼                                        ▼
//!    ChipCore: interrupt block, moderation, CSB ──► Host::raise
//! ```
//!
//! A chip implements `Controlled` (what the VMM sees: [`PciFunction`]) and [`Chip`] (what its
//! descriptors mean: [`crate::ring`]). Everything else, [`Nic`], comes from here, once for all.

pub mod access;
mod control;
pub(crate) mod csb;
mod csb_direction;
#[cfg(test)]
#[path = "tests/fixture.rs"]
pub(crate) mod fixture;
pub(crate) mod frame_totals;
#[cfg(any(test, feature = "fuzz"))]
#[path = "tests/fuzz.rs"]
pub mod fuzz;
pub mod held;
#[cfg(test)]
#[path = "tests/held_judge.rs"]
pub(crate) mod held_judge;
mod interrupts;
pub(crate) mod irq;
mod locks;
pub(crate) mod microwire;
mod nic;
pub(crate) mod pci;
pub(crate) mod phy;
mod port;
pub mod state;
#[cfg(test)]
#[path = "tests/stepped.rs"]
pub(crate) mod stepped;

pub(crate) use self::control::{Control, ControlOf, Controlled};
pub use self::interrupts::Interrupts;
pub use self::irq::{Delays, Edge, Irq, Kinds};
pub(crate) use self::locks::After;
pub use self::locks::ChipCore;
#[cfg(test)]
pub(crate) use self::locks::lock;
pub use self::nic::{Chip, Nic, PciFunction};
pub use self::pci::Way;
pub use self::port::{Gate, ReceiveSide, Received, Sent, TransmitSide};
pub use self::state::{Made, StateError};

use std::ops::Range;

use vmlan_frame::Mac;

/// How a chip is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The address in the EEPROM.
    pub mac: Mac,
    /// Interrupts per second, at most, whatever the guest asks for; 0: as the guest asks.
    pub irq_rate_max: u32,
    /// There is a CSB (`csb.rs`), for drivers that look for it. Not for chips whose registers the
    /// guest has mapped: a kick must be heard.
    pub csb: bool,
}

/// What the chip needs of whoever embeds it.
///
/// `raise`, `lower`, `send` and `doorbell` are called without any of the chip's locks; `now` and
/// `set_timer` may be called with the interrupt block's.
pub trait Host: Send + Sync {
    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;
    /// Asks for a call of [`Nic::timer`] at `at` or soon after; replaces an earlier wish.
    fn set_timer(&self, at: u64);
    /// INTA# became asserted; with MSI: send the message. Only on rising edges.
    fn raise(&self);
    /// INTA# became deasserted.
    fn lower(&self) {}
    /// MSI-X: send the message of this vector, below [`Layout::msix`]. Where the VMM has connected
    /// none, or masks it by itself, that is nobody's concern here.
    fn send(&self, _vector: u16) {}
    /// A register that the worker waits for has moved: a doorbell after [`Nic::arm`], room after
    /// [`Nic::want_room`].
    fn doorbell(&self);
}

/// A space that the VMM reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Space {
    Bar(u8),
    Config,
}

/// What a chip looks like on its bus.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its name in configuration.
    pub model: &'static str,
    /// Bytes of each BAR; 0: there is none.
    pub bars: [u64; 6],
    /// Bytes of configuration space.
    pub config: u64,
    /// The part of BAR 0 that can be shared memory: whole pages; empty: none can.
    pub pages: Range<usize>,
    /// It can send messages (MSI).
    pub msi: bool,
    /// Vectors of MSI-X; 0: it has none.
    pub msix: u16,
    /// BAR and offset of a page of shared memory that means nothing: because it can be mapped, QEMU
    /// waits for each register write of this device (`hw/vfio-user/device.c`), as drivers need
    /// whose commands are done when their write is.
    pub idle_page: Option<(u8, u64)>,
}

/// What can be wrong with the place of a CSB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CsbFault {
    #[error("is not aligned to 64 bytes")]
    Unaligned,
    #[error("is not in its memory")]
    Outside,
}

/// Why the chip stands still although somebody is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Fault {
    /// The guest's transmit or receive ring is not where descriptors can be: the real chip would
    /// hang.
    #[error("the guest's {ring} ring at {base:#x}, {len} bytes, is not in its memory")]
    BadRing { ring: &'static str, base: u64, len: u32 },
    #[error("the guest's {ring} ring has {size} descriptors, but its head or tail is {index}")]
    BadIndex { ring: &'static str, size: u32, index: u32 },
    #[error("the guest's CSB at {address:#x} {fault}: the NIC works as one without")]
    BadCsb { address: u64, fault: CsbFault },
    #[error("the guest's memory file was truncated")]
    Truncated,
}

impl Fault {
    /// The guest address that it is about, if that is out of reach.
    pub fn address(&self) -> Option<u64> {
        match self {
            Self::BadRing { base, .. } => Some(*base),
            Self::BadCsb { address, fault: CsbFault::Outside } => Some(*address),
            _ => None,
        }
    }

    /// The chip stands still; else it goes on without something.
    pub fn stops(&self) -> bool {
        !matches!(self, Self::BadCsb { .. })
    }
}
