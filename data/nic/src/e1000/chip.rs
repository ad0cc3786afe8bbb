//! The chip: its parts, and how they are locked.
//!
//! Order of locks: control, transmit side, receive side, interrupt block. The data path (`port.rs`) takes the last three,
//! the VMM's side all of them. What the host is to be told is told after all of them are released: see [`After`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_frame::{Counters, Device};
use vmlan_ram::{Map, Window};

use super::eeprom::Eeprom;
use super::irq::{Edge, Irq};
use super::pci::Pci;
use super::phy::Phy;
use super::regs::{RCTL, Registers, bit};
use super::rx::Rx;
use super::stats::Stats;
use super::tx::Tx;
use super::{Config, Host};
use crate::notify::bell::Bell;

/// An 82540EM.
pub struct E1000 {
    /// As the EEPROM left the factory.
    pub(super) mac: vmlan_frame::Mac,
    pub(super) host: Arc<dyn Host>,
    pub(super) regs: Registers,
    pub(super) irq: Irq,
    pub(super) counters: Counters,
    pub(super) stats: Stats,
    pub(super) tx: Mutex<Tx>,
    pub(super) rx: Mutex<Rx>,
    /// Threads that want the lock of a side: a busy worker lets them in.
    pub(super) wanted: AtomicU32,
    /// The worker sleeps until TDT moves.
    pub(super) tx_bell: Bell,
    /// The worker sleeps until RDT moves.
    pub(super) rx_bell: Bell,
    /// A packed `Gate`.
    pub(super) gate: AtomicU32,
    /// Moves after each write to a register that the receive side keeps a digest of.
    pub(super) filter_version: AtomicU32,
    /// IOADDR.
    pub(super) ioaddr: AtomicU32,
    /// Copies of what configuration space says, for those without the lock: interrupts are let out, and D3.
    pub(super) unmasked: AtomicBool,
    pub(super) asleep: AtomicBool,
    /// There are CSBAL and CSBAH.
    pub(super) has_csb: bool,
    /// Kicks asked for in the shared status block.
    pub(super) wishes: AtomicU64,
    control: Mutex<Control>,
}

/// What only the VMM's side touches.
pub(super) struct Control {
    pub(super) pci: Pci,
    pub(super) eeprom: Eeprom,
    pub(super) phy: Phy,
}

/// What is to be done once no lock is held.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct After {
    pub(super) edge: Edge,
    pub(super) causes: u32,
    pub(super) ring_tx: bool,
    pub(super) ring_rx: bool,
    /// If INTA# is asserted, say so again.
    pub(super) repeat: bool,
}

impl After {
    pub(super) fn merge(&mut self, other: Self) {
        if other.edge != Edge::None {
            self.edge = other.edge;
        }
        self.causes |= other.causes;
        self.ring_tx |= other.ring_tx;
        self.ring_rx |= other.ring_rx;
        self.repeat |= other.repeat;
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl E1000 {
    /// Bytes of the window for BAR0's pages 0x2000 and 0x3000, the ring registers.
    pub const PAGES: usize = 0x2000;

    /// A chip after power-on. `pages`: [`E1000::PAGES`] bytes, which the guest may have mapped as well.
    #[must_use]
    pub fn new(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        let control = Control {
            pci: Pci::new(config.csb),
            eeprom: Eeprom::new(config.mac),
            phy: Phy::default(),
        };
        let chip = Self {
            mac: config.mac,
            host,
            regs: Registers::new(pages, config.csb),
            irq: Irq::new(config.irq_rate_max),
            counters: Counters::default(),
            stats: Stats::default(),
            tx: Mutex::default(),
            rx: Mutex::default(),
            wanted: AtomicU32::new(0),
            tx_bell: Bell::default(),
            rx_bell: Bell::default(),
            gate: AtomicU32::new(0),
            filter_version: AtomicU32::new(0),
            ioaddr: AtomicU32::new(0),
            unmasked: AtomicBool::new(true),
            asleep: AtomicBool::new(false),
            has_csb: config.csb,
            wishes: AtomicU64::new(0),
            control: Mutex::new(control),
        };
        chip.reset();
        chip
    }

    /// Replaces the memory map, once no frame is lent or being written. Returns the old one, nobody else's now: drop it
    /// without locks, for unmapping takes time.
    #[must_use]
    pub fn set_map(&self, map: Arc<Map>) -> Arc<Map> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let (mut tx, mut rx) = (lock(&self.tx), lock(&self.rx));
        let old = tx.set_map(Arc::clone(&map));
        let same = rx.set_map(map);
        self.replace_block(&mut tx, &mut rx);
        drop((tx, rx));
        self.wanted.fetch_sub(1, Ordering::Release);
        drop(same);
        // Rings that lay nowhere may be somewhere now.
        self.ring_tx();
        self.ring_rx();
        old
    }

    /// From now on at most `rate_max` interrupts per second, whatever the guest asks for; 0: as the guest asks.
    pub fn set_irq_rate_max(&self, rate_max: u32) {
        self.irq.set_rate_max(rate_max);
        self.timer();
    }

    /// The VMM has unmasked INTA#: [`Host::raise`] again if it is still asserted, within the host's floor.
    pub fn reassert(&self) {
        if self.unmasked.load(Ordering::Acquire) && self.irq.repeat(&*self.host) {
            self.raise();
        }
    }

    /// The level of INTA#, as the VMM sees it: for those that unmask a level interrupt.
    #[must_use]
    pub fn is_asserted(&self) -> bool {
        self.irq.level() && self.unmasked.load(Ordering::Acquire)
    }

    /// Link up, receiver on: its driver is ready.
    #[must_use]
    pub fn is_up(&self) -> bool {
        let gate = self.gate();
        gate.dma && gate.link && self.regs.get(RCTL) & bit::RCTL_EN != 0
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it counts beside frames.
    #[must_use]
    pub fn device(&self) -> Device {
        let (raised, held, delivered) = self.irq.counts();
        let statistics = self.stats.totals(&self.counters);
        let csb = self.has_csb.then(|| self.block_state());
        Device { registers: self.regs.accesses(), raised, held, delivered, statistics, csb }
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Runs `change` with the control lock, and what it asks for without.
    pub(super) fn with_control(&self, change: impl FnOnce(&mut Control) -> After) {
        let after = change(&mut self.control());
        self.run(after);
    }

    /// Tells the host, and rings. Call without locks.
    pub(super) fn run(&self, after: After) {
        self.tell(after.edge);
        if after.causes != 0 {
            self.post(after.causes);
        }
        if after.repeat {
            self.reassert();
        }
        if after.ring_tx {
            self.ring_tx();
        }
        if after.ring_rx {
            self.ring_rx();
        }
    }

    /// Tells the host of an edge of INTA#, unless configuration space keeps it in. Call without locks.
    pub(super) fn tell(&self, edge: Edge) {
        match edge {
            Edge::None => {}
            Edge::Rise if self.unmasked.load(Ordering::Acquire) => self.raise(),
            Edge::Rise => {}
            Edge::Fall => self.host.lower(),
        }
    }

    fn raise(&self) {
        self.counters.output.notifications.add_shared(1);
        self.host.raise();
    }

    /// The transmit side has something to look at: wakes its worker, if that sleeps.
    pub(super) fn ring_tx(&self) {
        if self.tx_bell.ring() {
            self.host.doorbell();
        }
    }

    /// The receive side may have room: wakes whoever waits for it.
    pub(super) fn ring_rx(&self) {
        if self.rx_bell.ring() {
            self.host.doorbell();
        }
    }
}
