//! The chip: its parts.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};

use vmlan_frame::RegisterCount;
use vmlan_ram::Window;

use super::cause::KINDS;
use super::eeprom::Eeprom;
use super::filter::Filter;
use super::link::Loopback;
use super::pci;
use super::phy::Phy;
use super::regs::{RCTL, Registers, TCTL, bit};
use super::rx::Rx;
use super::stats::Stats;
use super::tx::Tx;
use crate::chip::pci::Pci;
use crate::chip::{
    After, Chip, Config, Core, Delays, Gate, Host, Layout, PciFunction, Space, lock,
};
use crate::ring::{Receiver, Transmitter};

/// An 82540EM.
pub struct E1000 {
    /// As the EEPROM left the factory.
    pub(super) mac: vmlan_frame::Mac,
    pub(super) core: Core<Self>,
    pub(super) regs: Registers,
    pub(super) stats: Stats,
    /// A packed `Wire`.
    pub(super) gate: AtomicU32,
    /// Moves after each write to a register that the receive side keeps a digest of.
    pub(super) filter_version: AtomicU32,
    /// IOADDR.
    pub(super) ioaddr: AtomicU32,
    /// D3: a copy of what configuration space says, for those without the lock.
    pub(super) asleep: AtomicBool,
    control: Mutex<Control>,
}

/// What only the VMM's side touches.
pub(super) struct Control {
    pub(super) pci: Pci,
    pub(super) eeprom: Eeprom,
    pub(super) phy: Phy,
}

/// On its bus: 128 KiB of registers, 64 bytes of I/O ports, MSI.
static LAYOUT: Layout = Layout {
    model: "e1000",
    bars: [128 << 10, 64, 0, 0, 0, 0],
    config: 256,
    pages: 0x2000..0x2000 + E1000::PAGES,
    msi: true,
};

impl E1000 {
    /// What it looks like on its bus.
    pub const LAYOUT: &'static Layout = &LAYOUT;
    /// Bytes of the window for BAR0's pages 0x2000 and 0x3000, the ring registers.
    pub const PAGES: usize = 0x2000;

    /// A chip after power-on. `pages`: [`E1000::PAGES`] bytes, which the guest may have mapped as
    /// well.
    #[must_use]
    pub fn new(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        let control = Control {
            pci: Pci::new(&pci::TABLE, config.csb),
            eeprom: Eeprom::new(config.mac),
            phy: Phy::default(),
        };
        let tx = Transmitter::new(Tx::ring());
        let rx = Receiver::new(Rx::ring(), Filter::default());
        let chip = Self {
            mac: config.mac,
            core: Core::new(config, &KINDS, host, (tx, rx)),
            regs: Registers::new(pages, config.csb),
            stats: Stats::default(),
            gate: AtomicU32::new(0),
            filter_version: AtomicU32::new(0),
            ioaddr: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            control: Mutex::new(control),
        };
        chip.power_on();
        chip
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Runs `change` with the control lock, and what it asks for without.
    pub(super) fn with_control(&self, change: impl FnOnce(&mut Control) -> After) {
        let after = change(&mut self.control());
        self.core.run(self, after);
    }
}

impl PciFunction for E1000 {
    fn layout(&self) -> &'static Layout {
        &LAYOUT
    }

    #[inline]
    fn read(&self, space: Space, offset: u64, data: &mut [u8]) {
        match space {
            Space::Bar(0) => self.read_bar0(offset, data),
            Space::Bar(_) => self.read_bar1(offset, data),
            Space::Config => self.read_config(offset, data),
        }
    }

    #[inline]
    fn write(&self, space: Space, offset: u64, data: &[u8]) {
        match space {
            Space::Bar(0) => self.write_bar0(offset, data),
            Space::Bar(_) => self.write_bar1(offset, data),
            Space::Config => self.write_config(offset, data),
        }
    }

    fn reset(&self) {
        self.power_on();
    }

    fn renew(&self) {
        self.replace();
    }

    fn set_link(&self, up: bool) {
        self.set_cable(up);
    }
}

impl Chip for E1000 {
    type Tx = Transmitter<Tx>;
    type Rx = Receiver<Rx>;

    #[inline]
    fn core(&self) -> &Core<Self> {
        &self.core
    }

    #[inline]
    fn gate(&self) -> Gate {
        let wire = self.wire();
        Gate {
            dma: wire.dma,
            link: wire.link,
            loopback: wire.loopback != Loopback::None,
            transmit: self.regs.get(TCTL) & bit::TCTL_EN != 0,
            receive: self.regs.get(RCTL) & bit::RCTL_EN != 0,
        }
    }

    #[inline]
    fn delays(&self) -> Delays {
        self.windows()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Stats::totals(&self.core.stats, &self.core.counters)
    }

    fn accesses(&self) -> Vec<RegisterCount> {
        self.regs.accesses()
    }
}
