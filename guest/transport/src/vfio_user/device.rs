//! What a server says about its device.

use std::os::fd::OwnedFd;

/// The regions of a PCI device (`linux/vfio.h`).
#[allow(missing_docs, reason = "a comment beside each says it")]
pub mod region {
    pub const BAR0: u32 = 0; // The first base address register; 0 to 5 are BARs.
    pub const BAR1: u32 = 1; // The second one: of an 82540EM, the I/O window.
    pub const CONFIG: u32 = 7; // Configuration space.
    pub const FLAG_MMAP: u32 = 1 << 2; // `VFIO_REGION_INFO_FLAG_MMAP`.
}

/// The interrupts of a PCI device, and what SET_IRQS can do with them (`linux/vfio.h`).
#[allow(missing_docs, reason = "a comment beside each says it")]
pub mod irq {
    use crate::{Irq, Model};

    pub const INTX: u32 = 0; // INTA#.
    pub const MSI: u32 = 1; // Message signalled.
    pub const MSIX: u32 = 2; // The same, with several messages.
    pub const DATA_NONE: u32 = 1 << 0; // `VFIO_IRQ_SET_DATA_NONE`.
    pub const DATA_BOOL: u32 = 1 << 1; // `VFIO_IRQ_SET_DATA_BOOL`.
    pub const DATA_EVENTFD: u32 = 1 << 2; // `VFIO_IRQ_SET_DATA_EVENTFD`.
    pub const ACTION_MASK: u32 = 1 << 3; // `VFIO_IRQ_SET_ACTION_MASK`.
    pub const ACTION_UNMASK: u32 = 1 << 4; // `VFIO_IRQ_SET_ACTION_UNMASK`.
    pub const ACTION_TRIGGER: u32 = 1 << 5; // `VFIO_IRQ_SET_ACTION_TRIGGER`.

    /// The index of a way to interrupt, and how many interrupts it has for the driver of a chip.
    pub fn of(kind: Irq, model: Model) -> (u32, u32) {
        match kind {
            Irq::Intx => (INTX, 1),
            Irq::Msi => (MSI, 1),
            Irq::Msix => (MSIX, model.vectors()),
        }
    }
}

/// The answer to VERSION.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Version {
    pub major: u16,
    pub minor: u16,
    /// The server's capabilities, as JSON.
    pub json: String,
}

/// The answer to DEVICE_GET_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Bit 0: can be reset; bit 1: a PCI device.
    pub flags: u32,
    /// Number of regions.
    pub regions: u32,
    /// Number of kinds of interrupt.
    pub irqs: u32,
}

/// A run of bytes in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where it starts in the region.
    pub offset: u64,
    /// Its length.
    pub size: u64,
}

/// The answer to DEVICE_GET_REGION_INFO.
#[derive(Debug)]
pub struct RegionInfo {
    /// Bit 0: readable, 1: writable, 2: can be mapped, 3: has capabilities.
    pub flags: u32,
    /// Length of the region in bytes; 0: the device has none.
    pub size: u64,
    /// Where the region starts in the file.
    pub offset: u64,
    /// The parts that can be mapped (sparse mmap); none: the whole, when it can be mapped at all.
    pub areas: Vec<Area>,
    /// The file to map.
    pub fds: Vec<OwnedFd>,
}

/// The answer to DEVICE_GET_IRQ_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// See [`irq`].
    pub flags: u32,
    /// How many interrupts of this kind there are.
    pub count: u32,
}
