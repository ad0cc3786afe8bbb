//! What makes it an 82540EM.

use super::pci;
use super::table::TABLE;
use crate::chip::pci::Table;
use crate::chip::phy::{Kind, bmcr};
use crate::chip::{Irq, Layout};
use crate::intel::cause::{RXT0, TXDW};
use crate::intel::eeprom::{Part, eecd};
use crate::intel::phy::reg;
use crate::intel::ring::{RECEIVE, Ring, TRANSMIT};
use crate::intel::rx::Rx;
use crate::intel::table::Row;
use crate::intel::tx::Tx;
use crate::intel::{Filter, Model};
use crate::ring::{Receiver, Transmitter};

/// Registers of the PHY beside the usual ones.
mod own {
    pub const LED: usize = 24;
    pub const PAGE: usize = 29;
    pub const PAGED: usize = 30;
}

/// The model.
pub struct I82540;

/// On its bus: 128 KiB of registers, 64 bytes of I/O ports, MSI.
static LAYOUT: Layout = Layout {
    model: "e1000",
    bars: [128 << 10, 64, 0, 0, 0, 0],
    config: 256,
    pages: 0x2000..0x4000,
    msi: true,
    msix: 0,
    idle_page: None,
};

impl Model for I82540 {
    const ON_BUS: &'static Layout = &LAYOUT;
    const PCI: &'static Table = &pci::TABLE;
    const PORTS: u8 = 1;
    const REGISTERS: &'static [Row] = TABLE;
    const EEPROM: &'static Part = &EEPROM;
    const PHY: &'static Kind = &KIND;
    const PACKET_BUFFER: u32 = 64; // SDM 13.4.16.
    type Tx = Transmitter<Tx<Self>>;
    type Rx = Receiver<Rx<Self>>;
    type Irq = Irq;
    const WRITTEN: u32 = TXDW | RXT0;

    fn sides() -> (Self::Tx, Self::Rx) {
        let receiver = Receiver::new(Ring::new(&RECEIVE), Filter::default());
        (Transmitter::new(Ring::new(&TRANSMIT)), receiver)
    }
}

/// SDM 5.6.
pub static EEPROM: Part = Part {
    content: &[
        // LED defaults (5.6.5).
        (0x04, 0x8911),
        // Initialization control word 1 (5.6.9): signature, power management, subsystem ids from
        // here.
        (0x0a, 0x400b),
        (0x0b, 0x001e),
        (0x0c, 0x8086),
        (0x0d, 0x100e),
        (0x0e, 0x8086),
        // Initialization control word 2 (5.6.14): both kinds of PAUSE.
        (0x0f, 0x3000),
        // No option ROM, no wake-up.
        (0x24, 0x0000),
        (0x30, 0x0000),
        (0x32, 0xffff),
    ],
    // Bit 9 (SIZE) is 0: 64 words.
    eecd: eecd::PRES,
    done: 1 << 4,
    address: 8,
    wired: true,
};

/// The 88E1011. A software reset keeps all its registers except the transmit clock's.
pub static KIND: Kind = Kind {
    id: (0x0141, 0x0c20),
    defaults: &[
        (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
        (reg::ANAR, 0x0de1),
        (reg::ANNPTR, 0x2001),
        (reg::GBCR, 0x0e00),
        (reg::PSCR, 0x0068),
        (reg::EPSCR, 0x0d60),
        (own::LED, 0x4100),
    ],
    restored: &[(reg::EPSCR, 0x0d60)],
    writable,
};

/// Which bits of a register can be written.
fn writable(number: usize) -> u16 {
    match number {
        reg::BMCR => 0x7fc0,
        reg::ANAR => 0xbfff,
        reg::ANNPTR => 0xb7ff,
        reg::GBCR => 0xff00,
        reg::PSCR | reg::IER | reg::EPSCR | own::LED | own::PAGE | own::PAGED => 0xffff,
        _ => 0,
    }
}
