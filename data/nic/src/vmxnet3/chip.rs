//! The device: its parts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Mac, Offloads, RegisterCount};

use super::life::Device;
use super::pci;
use super::regs::Accesses;
use super::rx::Receivers;
use super::stats::{Economy, QueueStats};
use super::tx::Senders;
use super::vectors::Vectors;
use crate::chip::pci::Pci;
use crate::chip::state::Fields;
use crate::chip::{
    After, Chip, ChipCore, Config, Control, ControlOf, Controlled, Delays, Gate, Host, Layout,
    Made, PciFunction,
};

/// A vmxnet3.
pub struct Vmxnet3 {
    /// As it left the factory.
    pub(super) mac: Mac,
    pub(super) core: ChipCore<Self>,
    pub(super) accesses: Accesses,
    pub(super) stats: QueueStats,
    pub(super) economy: Economy,
    /// [`gate`] bits.
    gate: AtomicU32,
    /// [`Device::memo`], for those without the lock.
    memo: AtomicU64,
    control: Mutex<ControlOf<Self>>,
}

/// What lets frames pass, as one word that the data path loads.
mod gate {
    pub const DMA: u32 = 1; // Bus master, and in D0.
    pub const LINK: u32 = 2; // There is a cable.
    pub const ACTIVE: u32 = 4; // The driver has activated the device.
    pub const UNCUT: u32 = 8; // It takes packets that stand for several.
}

/// On its bus: masks and doorbells; commands; MSI-X.
static LAYOUT: Layout = Layout {
    model: "vmxnet3",
    bars: [4096, 4096, 16_384, 0, 0, 0],
    config: 256,
    pages: 0..0,
    msi: true,
    msix: 25,
    idle_page: Some((2, 0x2000)),
};

impl Vmxnet3 {
    /// What it looks like on its bus.
    pub const LAYOUT: &'static Layout = &LAYOUT;

    /// A device after power-on. It has no CSB, whatever `config` says.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let config = Config { csb: false, ..config };
        let control =
            Control { pci: Pci::new(&pci::TABLE, false), eeprom: (), phy: Device::default() };
        let irq = Vectors::new(config.irq_rate_max);
        let sides = (Senders::default(), Receivers::default());
        let chip = Self {
            mac: config.mac,
            core: ChipCore::new(config, irq, host, sides),
            accesses: Accesses::default(),
            stats: QueueStats::default(),
            economy: Economy::default(),
            gate: AtomicU32::new(0),
            memo: AtomicU64::new(0),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }

    /// The gate, in line with the cable, PCI and the driver.
    pub(super) fn set_gate(&self, control: &ControlOf<Self>) {
        let part = |on, bit| if on { bit } else { 0 };
        let word = part(control.pci.may_dma(), gate::DMA)
            | part(control.phy.cable, gate::LINK)
            | part(control.phy.active.is_some(), gate::ACTIVE)
            | part(control.phy.active.as_ref().is_some_and(|active| active.uncut), gate::UNCUT);
        self.gate.store(word, Ordering::Release);
        self.memo.store(control.phy.memo(), Ordering::Relaxed);
    }
}

impl Controlled for Vmxnet3 {
    type Eeprom = ();
    type Phy = Device;
    const ON_BUS: &'static Layout = &LAYOUT;

    fn mutex(&self) -> &Mutex<ControlOf<Self>> {
        &self.control
    }

    fn made(&self) -> Made {
        Made { mac: self.mac, csb: self.core.has_csb(), variant: 0 }
    }

    fn new_eeprom(&self) {}

    fn plug(device: &mut Device, up: bool) {
        device.cable = up;
    }

    fn reset_all(&self, control: &mut ControlOf<Self>) -> After {
        control.phy.version = 0;
        self.reset_device(control)
    }

    fn follow(&self, control: &mut ControlOf<Self>) -> After {
        self.follow_link(control)
    }

    fn fields(&self, io: &mut Fields<'_>) {
        let Self { mac: _, core: _, accesses: _, stats, economy, gate: _, memo: _, control: _ } =
            self;
        stats.fields(io);
        economy.fields(io);
    }

    /// A change of the link is no event here.
    fn derive(&self, control: &mut ControlOf<Self>) {
        self.set_gate(control);
        self.core.let_interrupts(&control.pci);
    }

    fn derive_sides(&self, control: &ControlOf<Self>, _: &mut Senders, rx: &mut Receivers) {
        if let Some(active) = &control.phy.active {
            rx.set_rules(&active.rules);
        }
    }

    #[inline]
    fn read_bar(&self, bar: u8, offset: u64, data: &mut [u8]) {
        self.read_space(bar, offset, data);
    }

    #[inline]
    fn write_bar(&self, bar: u8, offset: u64, data: &[u8]) {
        self.write_space(bar, offset, data);
    }

    /// The generation bits alone tell of new buffers: no doorbell is asked for.
    fn posts_without_register(&self) -> bool {
        true
    }
}

impl Chip for Vmxnet3 {
    type Tx = Senders;
    type Rx = Receivers;
    type Irq = Vectors;

    #[inline]
    fn core(&self) -> &ChipCore<Self> {
        &self.core
    }

    #[inline]
    fn gate(&self) -> Gate {
        let word = self.gate.load(Ordering::Acquire);
        let has = |bit| word & bit != 0;
        let active = has(gate::ACTIVE);
        Gate {
            dma: has(gate::DMA),
            link: has(gate::LINK),
            loopback: false,
            transmit: active,
            receive: active,
        }
    }

    /// LRO takes what needs no care of its own: ECN marks do.
    #[inline]
    fn takes(&self) -> Offloads {
        match self.gate.load(Ordering::Acquire) & gate::UNCUT {
            0 => Offloads::NONE,
            _ => Offloads::CSUM.with(Offloads::TSO4).with(Offloads::TSO6),
        }
    }

    /// The vectors have windows of their own.
    #[inline]
    fn delays(&self) -> Delays {
        Delays::default()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        self.stats.totals(self.missed()).into_iter().chain(self.economy.totals()).collect()
    }

    fn accesses(&self) -> Vec<RegisterCount> {
        self.accesses.all()
    }

    fn tick(&self) {
        self.third_look();
    }

    fn memo_now(&self) -> u64 {
        self.memo.load(Ordering::Relaxed)
    }

    fn tell_lost(&self, memo: u64) {
        self.fail(&mut self.control(), memo);
    }
}
