//! The chip: its parts.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::RegisterCount;
use vmlan_ram::Window;

use super::cause;
use super::eeprom::Eeprom;
use super::link::Loopback;
use super::model::{Block, Model};
use super::phy::Phy;
use super::regs::{CSBAH, CSBAL, RCTL, Registers, TCTL, bit};
use super::stats::Stats;
use crate::chip::access;
use crate::chip::held::{Held, Remains};
use crate::chip::pci::Pci;
use crate::chip::state::Fields;
use crate::chip::{
    After, Chip, ChipCore, Config, Control, ControlOf, Controlled, Delays, Gate, Host, Layout,
    Made, PciFunction, StateError,
};

/// Which word of a chip's own IOADDR is in what outlives the process.
const IOADDR: usize = 0;

/// One of Intel's chips.
pub struct Intel<M: Model> {
    /// As the EEPROM left the factory.
    pub(crate) mac: vmlan_frame::Mac,
    pub(crate) core: ChipCore<Self>,
    pub(crate) regs: Registers,
    pub(crate) stats: Stats,
    /// A packed `Wire`.
    pub(crate) gate: AtomicU32,
    /// Moves after each write to a register that the receive side keeps a digest of.
    pub(crate) filter_version: AtomicU32,
    /// IOADDR.
    pub(crate) ioaddr: AtomicU32,
    /// Whether the driver knows of the last change of the link.
    pub(crate) link_news: AtomicU8,
    /// D3: a copy of what configuration space says, for those without the lock.
    pub(crate) asleep: AtomicBool,
    control: Mutex<ControlOf<Self>>,
}

impl<M: Model> Intel<M> {
    /// What it looks like on its bus.
    pub const LAYOUT: &'static Layout = M::ON_BUS;
    /// Bytes of the window for BAR0's pages 0x2000 and 0x3000, the ring registers.
    pub const PAGES: usize = 0x2000;

    /// A chip after power-on. `pages`: [`Intel::PAGES`] bytes, which the guest may have mapped as
    /// well.
    pub fn new(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        Self::make(config, Registers::new(M::REGISTERS, pages, false, config.csb), host)
    }

    /// As [`Intel::new`], of pages that a guest has had mapped while there was no chip. They are
    /// left alone until the chip goes on from a state ([`PciFunction::restore`]), or cannot: then
    /// reset it. What the state says of them is not looked at, since the guest may have stored
    /// something since.
    pub fn over(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        Self::make(config, Registers::new(M::REGISTERS, pages, true, config.csb), host)
    }

    /// IOADDR is about to be this.
    pub(crate) fn set_ioaddr(&self, value: u32) {
        self.regs.set_own(IOADDR, value);
        self.ioaddr.store(value, Ordering::Relaxed);
    }

    fn make(config: Config, regs: Registers, host: Arc<dyn Host>) -> Self {
        let control = Control {
            pci: Pci::new(M::PCI, config.csb),
            eeprom: Eeprom::new(M::EEPROM, config.mac),
            phy: Phy::new(M::PHY, M::PHY_PAGES),
        };
        let irq = M::Irq::new(config.irq_rate_max);
        let chip = Self {
            mac: config.mac,
            core: ChipCore::new(config, irq, host, M::sides()),
            regs,
            stats: Stats::default(),
            gate: AtomicU32::new(0),
            filter_version: AtomicU32::new(0),
            ioaddr: AtomicU32::new(0),
            link_news: AtomicU8::new(0),
            asleep: AtomicBool::new(false),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }
}

impl<M: Model> Controlled for Intel<M> {
    type Eeprom = Eeprom;
    type Phy = Phy;
    const ON_BUS: &'static Layout = M::ON_BUS;

    fn mutex(&self) -> &Mutex<ControlOf<Self>> {
        &self.control
    }

    fn made(&self) -> Made {
        Made { mac: self.mac, csb: self.core.has_csb(), variant: 0 }
    }

    fn new_eeprom(&self) -> Eeprom {
        Eeprom::new(M::EEPROM, self.mac)
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
            control: _, link_news: _,
        } = self;
        regs.fields(io);
        stats.fields(io);
        io.atomic(ioaddr);
    }

    fn derive(&self, control: &mut ControlOf<Self>) {
        let _nobody_is_told = self.derive_link(control, false);
        self.regs.release();
        self.filter_version.fetch_add(1, Ordering::Release);
    }

    fn derive_sides(&self, _: &ControlOf<Self>, _: &mut M::Tx, rx: &mut M::Rx) {
        M::derive(self, rx);
    }

    /// Drivers of this family are content with these: frames, the link, the PHY.
    const LOST: u32 = M::WRITTEN | cause::TXQE | cause::RXDMT0 | cause::LSC | cause::MDAC;

    fn may_be_lost(&self) -> u32 {
        self.lost_causes()
    }

    fn hold_own(&self, held: &Arc<Held>) -> bool {
        self.regs.hold(held)
    }

    fn revive_own(&self, remains: &Remains<'_>, mapped: bool) -> Result<(), StateError> {
        self.regs.revive(remains, mapped)?;
        self.set_ioaddr(remains.own(IOADDR));
        self.revive_link(remains);
        if !remains.knows_csb() && self.regs.get(CSBAL) | self.regs.get(CSBAH) != 0 {
            return Err(StateError::Lost("an older release had a CSB"));
        }
        M::revive(&self.regs)
    }

    #[inline]
    fn read_bar(&self, bar: u8, offset: u64, data: &mut [u8]) {
        match bar {
            0 => access::read_words(offset, data, |at| self.read_register(at)),
            _ if bar == M::PORTS => self.read_ports(offset, data),
            // The table of MSI-X is the VMM's own, and it keeps the pending bits.
            _ => data.fill(0),
        }
    }

    #[inline]
    fn write_bar(&self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            0 => access::write_words(offset, data, |at, value| self.write_register(at, value)),
            _ if bar == M::PORTS => self.write_ports(offset, data),
            _ => {}
        }
    }
}

impl<M: Model> Chip for Intel<M> {
    type Tx = M::Tx;
    type Rx = M::Rx;
    type Irq = M::Irq;

    /// Linux' drivers look at the cable then, and at their rings if it is out. A chip that was
    /// reset has no link (CTRL.SLU), so that a cable that is pulled would not be told.
    fn tell_lost(&self, _: u64) {
        self.core.post(self, cause::LSC);
    }

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
