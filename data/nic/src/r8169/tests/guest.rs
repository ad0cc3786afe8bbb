//! A guest's memory and driver.

use std::sync::Arc;

use vmlan_frame::{Batch, Mac, Offload};
use vmlan_ram::{Map, Slice};

use super::super::R8169;
pub use crate::chip::fixture::*;
pub use crate::chip::{Config, Fault, Nic, PciFunction, Space};

pub const IDR0: u64 = 0x00;
pub const MAR0: u64 = 0x08;
pub const DTCCR: u64 = 0x10;
pub const TNPDS: u64 = 0x20;
pub const THPDS: u64 = 0x28;
pub const CR: u64 = 0x37;
pub const TPPOLL: u64 = 0x38;
pub const IMR: u64 = 0x3c;
pub const ISR: u64 = 0x3e;
pub const TCR: u64 = 0x40;
pub const RCR: u64 = 0x44;
pub const TCTR: u64 = 0x48;
pub const MPC: u64 = 0x4c;
pub const CR9346: u64 = 0x50;
pub const CONFIG1: u64 = 0x52;
pub const TIMERINT: u64 = 0x58;
pub const PHYAR: u64 = 0x60;
pub const PHYSTATUS: u64 = 0x6c;
pub const RMS: u64 = 0xda;
pub const CPCR: u64 = 0xe0;
pub const INTMIT: u64 = 0xe2;
pub const RDSAR: u64 = 0xe4;
pub const CSBAL: u64 = 0xf0;
pub const CSBAH: u64 = 0xf4;

pub const TE: u32 = 4;
pub const RE: u32 = 8;
pub const RST: u32 = 0x10;
pub const NPQ: u32 = 0x40;
pub const HPQ: u32 = 0x80;

pub const OWN: u32 = 1 << 31;
pub const EOR: u32 = 1 << 30;
pub const FS: u32 = 1 << 29;
pub const LS: u32 = 1 << 28;
pub const LGSEN: u32 = 1 << 27;
pub const IPCS: u32 = 1 << 18;
pub const UDPCS: u32 = 1 << 17;
pub const TCPCS: u32 = 1 << 16;
pub const TAGC: u32 = 1 << 17;

pub const ROK: u32 = 1;
pub const TOK: u32 = 4;
pub const RDU: u32 = 0x10;
pub const LINK: u32 = 0x20;
pub const FOVW: u32 = 0x40;
pub const TDU: u32 = 0x80;
pub const SWINT: u32 = 0x100;
pub const TIMEOUT: u32 = 0x4000;
pub const SERR: u32 = 0x8000;

pub const MEMORY: u64 = 0x40_0000;
pub const SIZE: u32 = 64;
pub const TX_RING: u64 = 0x1000;
pub const HIGH_RING: u64 = 0x2000;
pub const RX_RING: u64 = 0x3000;
pub const TX_BUFFERS: u64 = 0x1_0000;
pub const RX_BUFFERS: u64 = 0x20_0000;
/// Bytes of a receive buffer.
pub const ROOM: u32 = 2048;

/// A chip, its guest, and its host.
pub struct Guest {
    pub chip: R8169,
    pub map: Arc<Map>,
    pub host: Arc<FakeHost>,
    pub batch: Batch<'static>,
    /// The next transmit descriptor, and the next receive descriptor that has not come back.
    pub tx: u32,
    pub rx: u32,
}

impl Guest {
    /// A chip after power-on, with memory.
    pub fn cold(irq_rate_max: u32, csb: bool) -> Self {
        let host = Arc::new(FakeHost::default());
        let config = Config { mac: Mac::new(MAC), irq_rate_max, csb };
        let chip = R8169::new(config, host.clone());
        let map = memory(MEMORY);
        drop(chip.set_map(map.clone()));
        Self { chip, map, host, batch: Batch::new(), tx: 0, rx: 0 }
    }

    /// A driver is up: link, both sides on, rings of [`SIZE`], receive buffers posted.
    pub fn new() -> Self {
        let mut guest = Self::cold(0, false);
        guest.start();
        guest
    }

    /// What a driver does after a reset, in the order of Linux's.
    pub fn start(&mut self) {
        self.config_write(4, &[7, 0]);
        self.set8(CR9346, 0xc0);
        self.set16(CPCR, 8);
        self.set16(RMS, 0x3fff);
        self.set64(TNPDS, TX_RING);
        self.set64(THPDS, 0);
        self.set64(RDSAR, RX_RING);
        self.set8(CR9346, 0);
        (self.tx, self.rx) = (0, 0);
        (0..SIZE).for_each(|i| self.tx_desc(TX_RING, i, 0, 0, 0));
        (0..SIZE).for_each(|i| self.post(i));
        self.set8(CR, TE | RE);
        self.set32(RCR, 0xe70e);
        self.set32(TCR, 0x0300_0700);
        self.set64(MAR0, u64::MAX);
        self.set16(ISR, 0xffff);
    }

    pub fn write_bar(&self, at: u64, bytes: &[u8]) {
        self.chip.write(Space::Bar(1), at, bytes);
    }

    pub fn set8(&self, at: u64, value: u32) {
        self.write_bar(at, &[value as u8]);
    }

    pub fn set16(&self, at: u64, value: u32) {
        self.write_bar(at, &(value as u16).to_le_bytes());
    }

    pub fn set32(&self, at: u64, value: u32) {
        self.write_bar(at, &value.to_le_bytes());
    }

    /// High half first, as drivers do.
    pub fn set64(&self, at: u64, value: u64) {
        self.set32(at + 4, (value >> 32) as u32);
        self.set32(at, value as u32);
    }

    pub fn get(&self, at: u64, len: usize) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read(Space::Bar(1), at, &mut bytes[..len]);
        u32::from_le_bytes(bytes)
    }

    pub fn isr(&self) -> u32 {
        self.get(ISR, 2)
    }

    pub fn config(&self, at: u64, len: usize) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read(Space::Config, at, &mut bytes[..len]);
        u32::from_le_bytes(bytes)
    }

    pub fn config_write(&self, at: u64, bytes: &[u8]) {
        self.chip.write(Space::Config, at, bytes);
    }

    /// PHYAR: reads a PHY register.
    pub fn phy(&self, register: u32) -> u32 {
        self.set32(PHYAR, register << 16);
        let value = self.get(PHYAR, 4);
        assert_eq!(value >> 16, 0x8000 | register, "done");
        value & 0xffff
    }

    /// PHYAR: writes one.
    pub fn set_phy(&self, register: u32, value: u32) {
        self.set32(PHYAR, 1 << 31 | register << 16 | value);
        assert_eq!(self.get(PHYAR, 4) >> 31, 0, "done");
    }

    /// Moves the clock; a timer that is due fires.
    pub fn sleep(&self, ns: u64) {
        if self.host.sleep(ns) {
            self.chip.timer();
        }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(self.map.slice_mut(at, bytes.len()).unwrap().write(0, bytes), bytes.len());
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.slice(at, len).unwrap().read(&mut bytes);
        bytes
    }

    pub fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }

    /// A descriptor, OWN last.
    pub fn tx_desc(&self, ring: u64, index: u32, opts1: u32, opts2: u32, addr: u64) {
        let at = ring + 16 * u64::from(index);
        self.write(at + 8, &addr.to_le_bytes());
        self.write(at + 4, &opts2.to_le_bytes());
        self.write(at, &opts1.to_le_bytes());
    }

    /// opts1 of a transmit descriptor.
    pub fn tx_opts(&self, index: u32) -> u32 {
        self.word(TX_RING + 16 * u64::from(index))
    }

    /// Gives receive descriptor `index` to the chip.
    pub fn post(&self, index: u32) {
        let eor = if index == SIZE - 1 { EOR } else { 0 };
        let addr = RX_BUFFERS + u64::from(ROOM * index);
        self.tx_desc(RX_RING, index, OWN | eor | ROOM, 0, addr);
    }

    /// Puts bytes where transmit buffer `n` is.
    pub fn fill(&self, n: u64, bytes: &[u8]) -> u64 {
        let at = TX_BUFFERS + 0x1_0000 * n;
        self.write(at, bytes);
        at
    }

    /// Posts transmit descriptors and rings.
    pub fn give(&mut self, descriptors: &[(u32, u32, u64)]) {
        for (opts1, opts2, addr) in descriptors {
            let eor = if self.tx == SIZE - 1 { EOR } else { 0 };
            self.tx_desc(TX_RING, self.tx, opts1 | OWN | eor, *opts2, *addr);
            self.tx = (self.tx + 1) % SIZE;
        }
        self.set8(TPPOLL, NPQ);
    }

    /// Posts one descriptor for a frame.
    pub fn send(&mut self, n: u64, frame: &[u8]) {
        let at = self.fill(n, frame);
        self.give(&[(FS | LS | frame.len() as u32, 0, at)]);
    }

    pub fn pull_to(&mut self, take: &mut Take) -> usize {
        self.chip.pull(&mut self.batch, 256, take)
    }

    pub fn pull(&mut self) -> Vec<Lent> {
        let mut take = Take::default();
        self.pull_to(&mut take);
        take.frames
    }

    /// Frames arrive.
    pub fn arrive(&self, frames: &[(Vec<u8>, Offload)]) -> usize {
        let mut batch = Batch::new();
        for (frame, offload) in frames {
            let head = &frame[..frame.len().min(128)];
            let rest = Slice::from_bytes(&frame[head.len()..]);
            let rest = (!rest.is_empty()).then_some(rest);
            batch.add_parts(head, rest, *offload).unwrap();
        }
        let list: Vec<u16> = (0..frames.len() as u16).collect();
        self.chip.push(&batch, &list)
    }

    pub fn arrive_plain(&self, frames: &[&[u8]]) -> usize {
        let frames: Vec<_> = frames.iter().map(|f| (f.to_vec(), Offload::NONE)).collect();
        self.arrive(&frames)
    }

    /// opts1 and opts2 of a receive descriptor.
    pub fn received(&self, index: u32) -> (u32, u32) {
        let at = RX_RING + 16 * u64::from(index);
        (self.word(at), self.word(at + 4))
    }

    /// Takes the next frame that has arrived, without its FCS, and gives its buffer back.
    pub fn take(&mut self) -> Option<(Vec<u8>, u32, u32)> {
        let (opts1, opts2) = self.received(self.rx);
        if opts1 & OWN != 0 {
            return None;
        }
        let len = (opts1 & 0x3fff).saturating_sub(4) as usize;
        let frame = self.read(RX_BUFFERS + u64::from(ROOM * self.rx), len.min(ROOM as usize));
        self.post(self.rx);
        self.rx = (self.rx + 1) % SIZE;
        Some((frame, opts1, opts2))
    }

    pub fn dropped(&self) -> u64 {
        self.chip.counters().drops().map(|(_, n)| n).sum()
    }

    pub fn statistic(&self, name: &str) -> u64 {
        self.chip.device().statistics.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Reads and writes of a register so far.
    pub fn touched(&self, name: &str) -> (u64, u64) {
        let all = self.chip.device().registers;
        all.iter().find(|a| a.register == name).map_or((0, 0), |a| (a.reads, a.writes))
    }
}
