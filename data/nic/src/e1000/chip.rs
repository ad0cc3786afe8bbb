//! The chip: what the VMM and the switch see of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use vmlan_frame::{Batch, Counters, Device, Offloads, Sink};
use vmlan_ram::{Map, Window};

use super::irq::{Delays, Edge, Irq};
use super::regs::{self, Registers};
use super::{Config, Host, Trouble};

/// The transmit side.
#[derive(Default)]
pub struct Tx {
    map: Arc<Map>,
}

/// The receive side.
#[derive(Default)]
pub struct Rx {
    map: Arc<Map>,
}

/// An 82540EM.
pub struct E1000 {
    pub(super) config: Config,
    pub(super) host: Arc<dyn Host>,
    pub(super) regs: Registers,
    pub(super) irq: Irq,
    pub(super) counters: Counters,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    /// Threads that want both locks: a busy worker lets them in.
    wanted: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl E1000 {
    /// Bytes of the window for BAR0's pages 0x2000 and 0x3000, the ring registers.
    pub const PAGES: usize = 0x2000;

    /// A chip after power-on. `pages`: [`E1000::PAGES`] bytes, which the guest may have mapped as well.
    #[must_use]
    pub fn new(config: Config, pages: Window, host: Arc<dyn Host>) -> Self {
        let irq = Irq::new(config.irq_rate_max);
        let chip = Self {
            config,
            host,
            regs: Registers::new(pages),
            irq,
            counters: Counters::default(),
            tx: Mutex::default(),
            rx: Mutex::default(),
            wanted: AtomicU32::new(0),
        };
        chip.reset();
        chip
    }

    /// Reads BAR0 (128 KiB of registers).
    pub fn read_bar0(&self, offset: u64, data: &mut [u8]) {
        let _ = offset;
        data.fill(0);
    }

    /// Writes BAR0.
    pub fn write_bar0(&self, offset: u64, data: &[u8]) {
        let _ = (offset, data);
    }

    /// Reads BAR1 (64 bytes: IOADDR, IODATA; SDM 13.3.1).
    pub fn read_bar1(&self, offset: u64, data: &mut [u8]) {
        let _ = offset;
        data.fill(0);
    }

    /// Writes BAR1.
    pub fn write_bar1(&self, offset: u64, data: &[u8]) {
        let _ = (offset, data);
    }

    /// Reads PCI configuration space (256 bytes).
    pub fn read_config(&self, offset: u64, data: &mut [u8]) {
        let _ = offset;
        data.fill(0);
    }

    /// Writes PCI configuration space.
    pub fn write_config(&self, offset: u64, data: &[u8]) {
        let _ = (offset, data);
    }

    /// PCI reset: everything as after power-on.
    pub fn reset(&self) {
        self.irq.reset().tell(&*self.host);
        self.regs.set(regs::CTRL, 0);
    }

    /// Replaces the memory map, once no frame is lent or being written. Returns the old one, nobody else's now: drop it
    /// without locks, for unmapping takes time.
    #[must_use]
    pub fn set_map(&self, map: Arc<Map>) -> Arc<Map> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let (mut tx, mut rx) = (lock(&self.tx), lock(&self.rx));
        tx.map = Arc::clone(&map);
        let old = std::mem::replace(&mut rx.map, map);
        self.wanted.fetch_sub(1, Ordering::Release);
        old
    }

    /// Plugs the cable in, or pulls it out.
    pub fn set_link(&self, up: bool) {
        let _ = up;
    }

    /// The time that [`Host::set_timer`] asked for has come.
    pub fn timer(&self) {
        self.irq.timer(self.delays(), &*self.host).tell(&*self.host);
    }

    /// The level of INTA#: for VMMs that unmask a level interrupt.
    #[must_use]
    pub fn is_asserted(&self) -> bool {
        self.irq.level()
    }

    /// Why the chip stands still, until the guest resets it.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Lends up to `limit` frames (see `Port::pull`).
    pub fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        let _ = (batch, limit, sink);
        if self.wanted.load(Ordering::Acquire) > 0 {
            return 0;
        }
        match self.tx.try_lock() {
            Ok(_) | Err(TryLockError::Poisoned(_)) => 0,
            Err(TryLockError::WouldBlock) => 0,
        }
    }

    /// Delivers frames (see `Port::push`).
    pub fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        let _ = batch;
        list.len()
    }

    /// What a receiver of this kind takes: nothing unfinished.
    #[must_use]
    pub fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    /// Frames that could be pushed now, roughly.
    #[must_use]
    pub fn room(&self) -> usize {
        0
    }

    /// Link up, driver ready.
    #[must_use]
    pub fn is_up(&self) -> bool {
        false
    }

    /// See `Port::arm`.
    #[must_use]
    pub fn arm(&self) -> bool {
        false
    }

    /// See `Port::disarm`.
    pub fn disarm(&self) {}

    /// See `Port::want_room`.
    #[must_use]
    pub fn want_room(&self) -> bool {
        true
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
        Device { raised, held, delivered, ..Device::default() }
    }

    /// Windows of moderation, from the registers.
    pub(super) fn delays(&self) -> Delays {
        Delays::default()
    }

    /// Posts causes and tells the host. Call without locks.
    pub(super) fn post(&self, causes: u32) {
        let edge: Edge = self.irq.post(causes, self.delays(), &*self.host);
        edge.tell(&*self.host);
    }
}
