//! What can go wrong.

use vmlan_transport::vfio_user::ConnectError;
use vmlan_transport::{BusError, Conflict, Model};

/// What can go wrong with a chip.
#[derive(Debug, thiserror::Error)]
pub enum ChipError {
    /// The chip cannot be reached.
    #[error("the NIC cannot be reached")]
    Bus(#[from] BusError),
    /// Another device.
    #[error(
        "the PCI device is {found:#010x} (device, vendor), not {model} ({wanted:#010x}): give the \
         address the port's model=",
        wanted = .model.pci_id()
    )]
    NotFound {
        /// The first word of configuration space.
        found: u32,
        /// What was looked for.
        model: Model,
    },
    /// C+ mode is wanted and the chip has classic mode alone.
    #[error(
        "the chip is a plain RTL8139 (PCI revision {found:#04x}; a C+ has 0x20) and has no \
         descriptor rings: give the address the \
         port's plus=off (model=rtl8139,plus=off)"
    )]
    NoPlus {
        /// The PCI revision.
        found: u8,
    },
    /// The BAR of the registers has another size.
    #[error("BAR{bar} is {found:#x} bytes long, and the registers take {wanted:#x}")]
    Bar {
        /// Which one.
        bar: u16,
        /// Its length.
        found: u64,
        /// The length it should have.
        wanted: u64,
    },
    /// MSI is wanted, and the device has none.
    #[error("the chip has no MSI capability: use irq=intx")]
    NoMsi,
    /// The chip does not finish something.
    #[error("the chip does not finish {0}")]
    Stuck(&'static str),
    /// The EEPROM's words do not add up.
    #[error("the EEPROM's checksum is {0:#06x}, and 0xbaba is right")]
    Eeprom(u16),
    /// The chip's addresses have 32 bits.
    #[error(
        "the driver's memory is at {0:#x}, and the chip reaches none beyond 4 GiB: use its C+ mode"
    )]
    Far(u64),
    /// No link.
    #[error("the link is down: see `vmlan port set PORT link=up`")]
    NoLink,
    /// The server of the chip cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no memory for the guest's RAM.
    #[error("cannot make the guest's RAM")]
    Ram(#[source] std::io::Error),
    /// The options contradict each other.
    #[error(transparent)]
    Options(#[from] Conflict),
    /// `csb=on` and the chip has none.
    #[error(
        "the NIC offers no CSB (its subsystem is {found:#06x}, and 0x1101 would offer it): add \
         csb=on to the switch's port, or \
         leave csb=on out here"
    )]
    NoCsb {
        /// The subsystem's device ID.
        found: u16,
    },
}
