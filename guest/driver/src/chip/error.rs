//! What can go wrong.

use vmlan_transport::vfio_user::ConnectError;
use vmlan_transport::{BusError, Conflict, Model};

/// What can go wrong with a chip.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ChipError {
    #[error("the NIC cannot be reached")]
    Bus(#[from] BusError),
    #[error(
        "the PCI device is {found:#010x} (device, vendor), not {model} ({wanted:#010x}): give the \
         address the port's model=",
        wanted = .model.pci_id()
    )]
    NotFound {
        /// The first word of configuration space.
        found: u32,
        model: Model,
    },
    #[error(
        "the chip is a plain RTL8139 (PCI revision {found:#04x}; a C+ has 0x20) and has no \
         descriptor rings: give the address the port's plus=off (model=rtl8139,plus=off)"
    )]
    NoPlus { found: u8 },
    #[error("BAR{bar} is {found:#x} bytes long, and the registers take {wanted:#x}")]
    Bar { bar: u16, found: u64, wanted: u64 },
    #[error("the chip has no such capability as the address asks for (MSI, MSI-X): use irq=intx")]
    NoMsi,
    #[error("the chip does not finish {0}")]
    Stuck(&'static str),
    #[error("the chip refuses {what} (it answers {answer:#x})")]
    Refused { what: &'static str, answer: u32 },
    #[error("the EEPROM's checksum is {0:#06x}, and 0xbaba is right")]
    Eeprom(u16),
    #[error(
        "the driver's memory is at {0:#x}, and the chip reaches none beyond 4 GiB: use its C+ mode"
    )]
    Far(u64),
    #[error("the link is down: see `vmlan port set PORT link=up`")]
    NoLink,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("cannot make the guest's RAM")]
    Ram(#[source] std::io::Error),
    #[error(transparent)]
    Options(#[from] Conflict),
    #[error(
        "the NIC offers no CSB (its subsystem is {found:#06x}, and 0x1101 would offer it): add \
         csb=on to the switch's port, or leave csb=on out here"
    )]
    NoCsb { found: u16 },
}
