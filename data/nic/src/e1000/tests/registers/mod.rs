//! Tests of the registers. [`Bench`] is a chip on a bench: a host that only takes notes.

mod conformance;
mod eeprom;
mod effects;
mod interrupts;
mod pci;
mod phy;
mod sizes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::Mac;
use vmlan_ram::Window;

use super::super::E1000;
use super::super::regs::*;
pub use crate::chip::fixture::{FakeHost, memory};
pub(super) use crate::chip::{Config, Controlled, Nic, PciFunction, Space};

/// The configured address.
pub const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// The ring registers' pages.
pub fn pages() -> Window {
    memory(0x2000).window(0, 0x2000, 4).unwrap()
}

/// A chip on a bench.
pub struct Bench {
    pub chip: E1000,
    pub host: Arc<FakeHost>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with_rate(0)
    }

    pub fn with_rate(irq_rate_max: u32) -> Self {
        let host = Arc::new(FakeHost::default());
        let config = Config { mac: Mac::new(MAC), irq_rate_max, csb: false };
        Self { chip: E1000::new(config, pages(), host.clone()), host }
    }

    pub fn read(&self, offset: u32) -> u32 {
        let mut data = [0; 4];
        self.chip.read_bar(0, offset.into(), &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write(&self, offset: u32, value: u32) {
        self.chip.write_bar(0, offset.into(), &value.to_le_bytes());
    }

    pub fn read_io(&self, register: u32) -> u32 {
        self.chip.write_ports(0, &register.to_le_bytes());
        let mut data = [0; 4];
        self.chip.read_ports(4, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write_io(&self, register: u32, value: u32) {
        self.chip.write_ports(0, &register.to_le_bytes());
        self.chip.write_ports(4, &value.to_le_bytes());
    }

    pub fn config(&self, offset: u64, len: usize) -> u32 {
        let mut data = [0; 4];
        self.chip.read(Space::Config, offset, &mut data[..len]);
        u32::from_le_bytes(data)
    }

    /// The data path posts these.
    pub fn post(&self, causes: u32) {
        self.chip.core.post(&self.chip, causes);
    }

    /// See [`Self::post`].
    pub fn post_transmit(&self, causes: u32, delayed: bool) {
        self.chip.core.post_transmit(&self.chip, causes, delayed);
    }

    /// As a driver does first of all: bus master, link.
    pub fn start(&self) {
        self.chip.write_config(4, &7u16.to_le_bytes());
        self.write(CTRL, bit::CTRL_SLU | bit::CTRL_FD);
        self.read(ICR);
    }

    /// Moves the clock; a timer that is due fires.
    pub fn sleep(&self, ns: u64) {
        let now = self.host.clock.fetch_add(ns, Ordering::Relaxed) + ns;
        let due = self.host.timer.lock().unwrap().take_if(|at| *at <= now);
        if due.is_some() {
            self.chip.timer();
        }
    }

    pub fn timer(&self) -> Option<u64> {
        *self.host.timer.lock().unwrap()
    }

    /// MDIC: reads a PHY register.
    pub fn phy(&self, register: u32) -> u16 {
        self.write(MDIC, 2 << 26 | 1 << 21 | register << 16);
        let done = self.read(MDIC);
        assert_eq!(done >> 28, 1, "ready, no error");
        (done & 0xffff) as u16
    }

    /// MDIC: writes a PHY register.
    pub fn set_phy(&self, register: u32, value: u16) {
        self.write(MDIC, 1 << 26 | 1 << 21 | register << 16 | u32::from(value));
        assert_eq!(self.read(MDIC) >> 28, 1, "ready, no error");
    }
}
