//! The chip: its parts.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

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
use crate::chip::access;
use crate::chip::pci::Pci;
use crate::chip::state::Fields;
use crate::chip::{
    After, Chip, ChipCore, Config, Control, ControlOf, Controlled, Delays, Gate, Host, Irq, Layout,
    Made, PciFunction,
};
use crate::ring::{Receiver, Transmitter};

/// An 82540EM.
pub struct E1000 {
    /// As the EEPROM left the factory.
    pub(super) mac: vmlan_frame::Mac,
    pub(super) core: ChipCore<Self>,
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
    control: Mutex<ControlOf<Self>>,
}

/// On its bus: 128 KiB of registers, 64 bytes of I/O ports, MSI.
static LAYOUT: Layout = Layout {
    model: "e1000",
    bars: [128 << 10, 64, 0, 0, 0, 0],
    config: 256,
    pages: 0x2000..0x2000 + E1000::PAGES,
    msi: true,
    msix: 0,
    idle_page: None,
};

impl E1000 {
    /// What it looks like on its bus.
    pub const LAYOUT: &'static Layout = &LAYOUT;
    /// Bytes of the window for BAR0's pages 0x2000 and 0x3000, the ring registers.
    pub const PAGES: usize = 0x2000;

    /// A chip after power-on. `pages`: [`E1000::PAGES`] bytes, which the guest may have mapped as
    /// well.
    pub fn new(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        Self::make(config, Registers::new(pages, false, config.csb), host)
    }

    /// As [`E1000::new`], of pages that a guest has had mapped while there was no chip. They are
    /// left alone until the chip goes on from a state ([`PciFunction::restore`]), or cannot: then
    /// reset it. What the state says of them is not looked at, since the guest may have stored
    /// something since.
    pub fn over(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        Self::make(config, Registers::new(pages, true, config.csb), host)
    }

    fn make(config: Config, regs: Registers, host: Arc<dyn Host>) -> Self {
        let control = Control {
            pci: Pci::new(&pci::TABLE, config.csb),
            eeprom: Eeprom::new(config.mac),
            phy: Phy::default(),
        };
        let tx = Transmitter::new(Tx::ring());
        let rx = Receiver::new(Rx::ring(), Filter::default());
        let irq = Irq::new(&KINDS, config.irq_rate_max);
        let chip = Self {
            mac: config.mac,
            core: ChipCore::new(config, irq, host, (tx, rx)),
            regs,
            stats: Stats::default(),
            gate: AtomicU32::new(0),
            filter_version: AtomicU32::new(0),
            ioaddr: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }
}

impl Controlled for E1000 {
    type Eeprom = Eeprom;
    type Phy = Phy;
    const ON_BUS: &'static Layout = &LAYOUT;

    fn mutex(&self) -> &Mutex<ControlOf<Self>> {
        &self.control
    }

    fn made(&self) -> Made {
        Made { mac: self.mac, csb: self.core.has_csb(), variant: 0 }
    }

    fn new_eeprom(&self) -> Eeprom {
        Eeprom::new(self.mac)
    }

    fn plug(phy: &mut Phy, up: bool) {
        phy.set_cable(up);
    }

    fn reset_all(&self, control: &mut ControlOf<Self>) -> After {
        self.reset_function(control)
    }

    fn follow(&self, control: &mut ControlOf<Self>) -> After {
        self.update_link(control, false)
    }

    fn fields(&self, io: &mut Fields<'_>) {
        #[rustfmt::skip]
        let Self {
            mac: _, core: _, regs, stats, gate: _, filter_version: _, ioaddr, asleep: _,
            control: _,
        } = self;
        regs.fields(io);
        stats.fields(io);
        io.atomic(ioaddr);
    }

    fn derive(&self, control: &mut ControlOf<Self>) {
        let _nobody_is_told = self.update_link(control, false);
        self.regs.release();
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    fn read_bar(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            0 => access::read_words(offset, data, |at| self.read_register(at)),
            _ => self.read_ports(offset, data),
        }
    }

    #[inline]
    fn write_bar(&self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            0 => access::write_words(offset, data, |at, value| self.write_register(at, value)),
            _ => self.write_ports(offset, data),
        }
    }
}

impl Chip for E1000 {
    type Tx = Transmitter<Tx>;
    type Rx = Receiver<Rx>;
    type Irq = Irq;

    #[inline]
    fn core(&self) -> &ChipCore<Self> {
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
