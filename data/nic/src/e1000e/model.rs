//! What makes it an 82574L.

use super::E1000e;
use super::pci;
use super::queues::{Receivers, Senders};
use super::table::{EEWR, EIAC, EITR, IAM, IVAR, PSRCTL, TABLE, TARC0, TARC1};
use super::vectors::cause::{RXQ0, RXQ1, TXQ0, TXQ1};
use super::vectors::{Routing, Vectored};
use crate::chip::pci::Table;
use crate::chip::phy::{Kind, bmcr};
use crate::chip::{After, Controlled, Layout, StateError};
use crate::intel::Model;
use crate::intel::eeprom::{Part, eecd};
use crate::intel::phy::reg;
use crate::intel::regs::*;
use crate::intel::ring::{Format, Sizes};
use crate::intel::table::Row;

/// The model.
pub struct I82574;

/// On its bus: 128 KiB of registers, 32 bytes of I/O ports, MSI, MSI-X.
static LAYOUT: Layout = Layout {
    model: "e1000e",
    bars: [128 << 10, 0, 32, 16 << 10, 0, 0],
    config: 256,
    pages: 0x2000..0x4000,
    msi: true,
    msix: 5,
    idle_page: None,
};

const CTRL_GIO_DISABLE: u32 = 1 << 2; // No new bus cycles.
const STATUS_GIO_MASTER: u32 = 1 << 19; // Bus cycles are possible.
const CTRL_EXT_EIAME: u32 = 1 << 24; // Messages mask what is in IAM.
const CTRL_EXT_IAME: u32 = 1 << 27; // Reads of ICR do.
const RFCTL_EXTEN: u32 = 1 << 15; // Extended receive descriptors.
const RCTL_DTYP: u32 = 3 << 10; // Kind of extended receive descriptors.
const RCTL_SPLIT: u32 = 1 << 10; // Those with several buffers.
const SWSM_SMBI: u32 = 1; // Who reads this as 0 has the semaphore.
const EECD_AUTO_RD: u32 = 1 << 9; // The EEPROM has been read.

impl Model for I82574 {
    const ON_BUS: &'static Layout = &LAYOUT;
    const PCI: &'static Table = &pci::TABLE;
    const PORTS: u8 = 2;
    const REGISTERS: &'static [Row] = TABLE;
    const EEPROM: &'static Part = &EEPROM;
    const PHY: &'static Kind = &KIND;
    const PHY_PAGES: bool = true;
    const PACKET_BUFFER: u32 = 40;
    const TRANSMIT_BUFFER: u32 = 8;
    type Tx = Senders;
    type Rx = Receivers;
    type Irq = Vectored;
    const WRITTEN: u32 = RXQ0 | RXQ1 | TXQ0 | TXQ1;

    fn sides() -> (Senders, Receivers) {
        (Senders::default(), Receivers::default())
    }

    /// Drivers wait for the master to stop before they reset the chip.
    fn status(ctrl: u32) -> u32 {
        if ctrl & CTRL_GIO_DISABLE == 0 { STATUS_GIO_MASTER } else { 0 }
    }

    #[inline]
    fn format(regs: &Registers) -> Format {
        if regs.get(RFCTL) & RFCTL_EXTEN == 0 {
            return Format::Legacy;
        }
        match regs.get(RCTL) & RCTL_DTYP {
            RCTL_SPLIT => Format::Split(sizes(regs.get(PSRCTL))),
            _ => Format::Extended,
        }
    }

    fn read(chip: &E1000e, offset: u32) -> u32 {
        let value = chip.regs.get(offset);
        if offset == SWSM {
            chip.regs.set(SWSM, value | SWSM_SMBI);
        }
        value
    }

    fn write(chip: &E1000e, offset: u32, value: u32) {
        match offset {
            EEWR => chip.with_control(|control| {
                chip.regs.set(EEWR, control.eeprom.write_word(value));
                After::default()
            }),
            RFCTL | MRQC | RETA..RETA_END | RSSRK..RSSRK_END => chip.set_filter(offset, value),
            _ => chip.regs.set(offset, value),
        }
        match offset {
            CTRL_EXT | EIAC | IAM | IVAR | EITR..EITR_END => chip.route(),
            TARC0 | TARC1 => chip.core.ring_tx(),
            _ => {}
        }
        if (EITR..EITR_END).contains(&offset) || offset == IVAR {
            chip.core.remoderate(chip);
        }
    }

    fn reset(chip: &E1000e) {
        chip.route();
    }

    /// A semaphore may have been taken by a read that was not answered. Descriptors with several
    /// buffers have no place to say that they are not handed over yet.
    fn revive(regs: &Registers) -> Result<(), StateError> {
        regs.set(SWSM, regs.get(SWSM) & !SWSM_SMBI);
        match Self::format(regs) {
            Format::Split(_) => Err(StateError::Lost("its descriptors have several buffers")),
            _ => Ok(()),
        }
    }

    fn derive(chip: &E1000e, rx: &mut Receivers) {
        chip.route();
        rx.set_format(Self::format(&chip.regs));
    }
}

const EITR_END: u32 = EITR + 20; // One past the last of each.
const RETA_END: u32 = RETA + 128;
const RSSRK_END: u32 = RSSRK + 40;

impl E1000e {
    /// Tells the interrupt block what the registers say. What is pending is not looked at.
    fn route(&self) {
        let control = self.regs.get(CTRL_EXT);
        let eitr = |n: u32| u64::from(self.regs.get(EITR + 4 * n)) * 256;
        self.core.irq.route(Routing {
            ivar: self.regs.get(IVAR),
            eiac: self.regs.get(EIAC),
            iam: self.regs.get(IAM),
            lengths: [0, 1, 2, 3, 4].map(eitr),
            by_message: control & CTRL_EXT_EIAME != 0,
            by_read: control & CTRL_EXT_IAME != 0,
        });
    }
}

/// PSRCTL: units of 128 bytes, then of 1 KiB.
#[inline]
fn sizes(psrctl: u32) -> Sizes {
    let [a, b, c, d] = psrctl.to_le_bytes().map(u16::from);
    Sizes([(a & 0x7f) << 7, (b & 0x3f) << 10, (c & 0x3f) << 10, (d & 0x3f) << 10])
}

/// Words that drivers look at.
static EEPROM: Part = Part {
    content: &[
        // Compatibility; LED defaults; version of the image; number of the board: none.
        (0x03, 0x0420),
        (0x04, 0x8911),
        (0x05, 0x1080),
        (0x08, 0xffff),
        (0x09, 0xffff),
        // Initialization control word 1; subsystem and device.
        (0x0a, 0x026b),
        (0x0c, 0x8086),
        (0x0d, 0x10d3),
        // Initialization control word 2: no management. No wake-up.
        (0x0f, 0x8058),
        (0x24, 0x0000),
    ],
    // Size (bits 14:11) 0: 64 words.
    eecd: eecd::PRES | EECD_AUTO_RD,
    done: 1 << 1,
    address: 2,
    wired: false,
};

/// Registers of the PHY beside the usual ones.
mod own {
    pub const CONTROL_2: usize = 26;
    pub const POWER: usize = 25;
    pub const BIAS_1: usize = 29;
    pub const BIAS_2: usize = 30;
}

/// The BME1000.
static KIND: Kind = Kind {
    id: (0x0141, 0x0cb1),
    defaults: &[
        (reg::BMCR, bmcr::AUTONEG | bmcr::DUPLEX | bmcr::SPEED_HIGH),
        (reg::ANAR, 0x0de1),
        (reg::ANNPTR, 0x2001),
        (reg::GBCR, 0x0e00),
        (reg::PSCR, 0x0068),
        (reg::EPSCR, 0x0d60),
    ],
    restored: &[],
    writable,
};

/// Which bits of a register can be written.
fn writable(number: usize) -> u16 {
    match number {
        reg::BMCR => 0x7fc0,
        reg::ANAR => 0xbfff,
        reg::ANNPTR => 0xb7ff,
        reg::GBCR => 0xff00,
        reg::PSCR | reg::IER | reg::EPSCR | reg::PAGE => 0xffff,
        own::POWER | own::CONTROL_2 | own::BIAS_1 | own::BIAS_2 => 0xffff,
        _ => 0,
    }
}
