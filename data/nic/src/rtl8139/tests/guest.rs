//! A guest's memory and drivers, with constants of its own.

use std::os::fd::AsFd;
use std::sync::Arc;

use vmlan_frame::{Batch, Mac, Offload};
use vmlan_ram::{Map, Mapping, Region};

pub use crate::chip::fixture::*;
use crate::chip::{Config, Host, Nic, PciFunction, Space};
use crate::rtl8139::Rtl8139;

pub const IDR: u64 = 0x00;
pub const MAR: u64 = 0x08;
pub const TSD: u64 = 0x10;
pub const TSAD: u64 = 0x20;
pub const RBSTART: u64 = 0x30;
pub const CR: u64 = 0x37;
pub const CAPR: u64 = 0x38;
pub const CBR: u64 = 0x3a;
pub const IMR: u64 = 0x3c;
pub const ISR: u64 = 0x3e;
pub const TCR: u64 = 0x40;
pub const RCR: u64 = 0x44;
pub const TCTR: u64 = 0x48;
pub const MPC: u64 = 0x4c;
pub const EECR: u64 = 0x50;
pub const TIMERINT: u64 = 0x54;
pub const MSR: u64 = 0x58;
pub const SUMMARY: u64 = 0x60;
pub const BMCR: u64 = 0x62;
pub const TPPOLL: u64 = 0xd9;
pub const CPCR: u64 = 0xe0;
pub const RDSAR: u64 = 0xe4;
pub const CSBAL: u64 = 0xf0;
pub const CSBAH: u64 = 0xf4;

pub const RST: u8 = 0x10;
pub const RE: u8 = 8;
pub const TE: u8 = 4;
pub const BUFE: u8 = 1;

pub const ROK: u16 = 1;
pub const TOK: u16 = 4;
pub const TER: u16 = 8;
pub const RXOVW: u16 = 0x10;
pub const LINK: u16 = 0x20;
pub const FOVW: u16 = 0x40;
pub const SWINT: u16 = 0x100;
pub const TIMEOUT: u16 = 0x4000;

/// TSD.
pub const T_OWN: u32 = 1 << 13;
pub const T_TUN: u32 = 1 << 14;
pub const T_TOK: u32 = 1 << 15;

/// RCR: physical match, multicast, broadcast; and WRAP, buffer length.
pub const ACCEPT: u32 = 0x0e;
pub const WRAP: u32 = 0x80;

/// C+ descriptors.
pub const OWN: u32 = 1 << 31;
pub const EOR: u32 = 1 << 30;
pub const FS: u32 = 1 << 29;
pub const LS: u32 = 1 << 28;
pub const LGSEN: u32 = 1 << 27;

pub const MEMORY: u64 = 0x40_0000;
pub const RX_BUFFER: u64 = 0x10_0000;
pub const TX_BUFFERS: u64 = 0x20_0000;
pub const TX_RING: u64 = 0x1000;
pub const HIGH_RING: u64 = 0x1800;
pub const RX_RING: u64 = 0x2000;
pub const CSB: u64 = 0x3000;
pub const TALLY: u64 = 0x4000;
pub const RX_BUFFERS: u64 = 0x30_0000;
pub const RX_LEN: u32 = 1536;
pub const SIZE: u32 = 64;

/// Memory of `len` bytes at `gpa`.
pub fn region(gpa: u64, len: u64) -> Region {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(len).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, len).unwrap());
    Region::new(gpa, len, 0, 0, mapping).unwrap()
}

pub struct Guest {
    pub chip: Arc<Rtl8139>,
    pub map: Arc<Map>,
    pub host: Arc<FakeHost>,
    pub batch: Batch<'static>,
    /// The next transmit descriptor, of either mode.
    pub next: u32,
}

impl Guest {
    /// A chip after power-on, bus master, with memory.
    pub fn bare(classic: bool, config: Config) -> Self {
        let host = Arc::new(FakeHost::default());
        let chip = Rtl8139::new(config, !classic, host.clone());
        Self::with(chip, host)
    }

    /// An 8139C whose host is another.
    pub fn on(host: Arc<dyn Host>) -> Self {
        Self::with(Rtl8139::new(Self::config(), false, host), Arc::default())
    }

    fn with(chip: Rtl8139, host: Arc<FakeHost>) -> Self {
        let map = Arc::new(Map::new(vec![region(0, MEMORY)], None).unwrap());
        drop(chip.set_map(map.clone()));
        chip.write(Space::Config, 4, &[7, 0]);
        Self { chip: Arc::new(chip), map, host, batch: Batch::new(), next: 0 }
    }

    pub fn config() -> Config {
        Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: false }
    }

    /// Classic mode, both sides on: a receive buffer of 8 KiB.
    pub fn classic() -> Self {
        let guest = Self::bare(true, Self::config());
        guest.start_classic(0);
        guest
    }

    /// As drivers do after a reset. `rcr`: WRAP, RBLEN.
    pub fn start_classic(&self, rcr: u32) {
        self.set8(CR, RST);
        self.set8(CR, RE | TE);
        self.set32(RBSTART, RX_BUFFER as u32);
        self.set32(RCR, ACCEPT | rcr);
        self.set16(IMR, 0xffff);
        self.ack(0xffff);
    }

    /// C+ mode, both sides on: rings of [`SIZE`], receive buffers of [`RX_LEN`] posted.
    pub fn plus() -> Self {
        Self::plus_with(false)
    }

    /// With a CSB, or without.
    pub fn plus_with(csb: bool) -> Self {
        let mut guest = Self::bare(false, Config { csb, ..Self::config() });
        guest.start_plus();
        guest
    }

    /// As 8139cp does.
    pub fn start_plus(&mut self) {
        self.set8(CR, RST);
        self.set16(CPCR, 0x3b);
        self.set8(CR, RE | TE);
        for i in 0..SIZE {
            self.post_buffer(i, RX_BUFFERS + 2048 * u64::from(i), RX_LEN);
            self.tx_desc(i, 0, 0, 0);
        }
        self.set32(RDSAR, RX_RING as u32);
        self.set32(RDSAR + 4, 0);
        self.set32(TSAD, TX_RING as u32);
        self.set32(TSAD + 4, 0);
        self.set32(RCR, ACCEPT);
        self.set16(IMR, 0xffff);
        self.ack(0xffff);
        self.next = 0;
    }

    pub fn set(&self, at: u64, bytes: &[u8]) {
        self.chip.write(Space::Bar(1), at, bytes);
    }

    pub fn set8(&self, at: u64, value: u8) {
        self.set(at, &[value]);
    }

    pub fn set16(&self, at: u64, value: u16) {
        self.set(at, &value.to_le_bytes());
    }

    pub fn set32(&self, at: u64, value: u32) {
        self.set(at, &value.to_le_bytes());
    }

    /// Acknowledges causes as drivers do: reads them first.
    pub fn ack(&self, causes: u16) {
        self.get16(ISR);
        self.set16(ISR, causes);
    }

    pub fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0xee; N];
        self.chip.read(Space::Bar(1), at, &mut bytes);
        bytes
    }

    pub fn get8(&self, at: u64) -> u8 {
        self.get::<1>(at)[0]
    }

    pub fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    pub fn get32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.get(at))
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

    /// Moves the clock; a timer that is due fires.
    pub fn sleep(&self, ns: u64) {
        if self.host.sleep(ns) {
            self.chip.timer();
        }
    }

    /// Puts bytes where transmit buffer `n` is.
    pub fn fill(&self, n: u32, bytes: &[u8]) -> u64 {
        let at = TX_BUFFERS + 0x1_0000 * u64::from(n % 16);
        self.write(at, bytes);
        at
    }

    /// Classic mode: posts a frame.
    pub fn send(&mut self, frame: &[u8]) {
        let n = self.next % 4;
        self.next += 1;
        let at = self.fill(n, frame);
        self.set32(TSAD + 4 * u64::from(n), at as u32);
        self.set32(TSD + 4 * u64::from(n), frame.len() as u32);
    }

    pub fn tsd(&self, n: u64) -> u32 {
        self.get32(TSD + 4 * n)
    }

    /// A C+ descriptor of the normal queue.
    pub fn tx_desc(&self, index: u32, opts1: u32, opts2: u32, addr: u64) {
        self.desc(TX_RING, index, opts1, opts2, addr);
    }

    pub fn desc(&self, ring: u64, index: u32, opts1: u32, opts2: u32, addr: u64) {
        let at = ring + 16 * u64::from(index);
        self.write(at + 8, &addr.to_le_bytes());
        self.write(at + 4, &opts2.to_le_bytes());
        self.write(at, &opts1.to_le_bytes());
    }

    pub fn post_buffer(&self, index: u32, addr: u64, len: u32) {
        let last = if index == SIZE - 1 { EOR } else { 0 };
        self.desc(RX_RING, index, OWN | last | len, 0, addr);
    }

    /// C+ mode: posts a frame in one descriptor, with more of opts1, and opts2.
    pub fn send_plus(&mut self, frame: &[u8], opts1: u32, opts2: u32) {
        let n = self.next % SIZE;
        self.next += 1;
        let at = self.fill(n, frame);
        let last = if n == SIZE - 1 { EOR } else { 0 };
        self.tx_desc(n, OWN | FS | LS | last | opts1 | frame.len() as u32, opts2, at);
        self.set8(TPPOLL, 0x40);
    }

    /// opts1 of a transmit descriptor.
    pub fn tx_opts(&self, index: u32) -> u32 {
        self.word(TX_RING + 16 * u64::from(index))
    }

    /// opts1 and opts2 of a receive descriptor.
    pub fn rx_opts(&self, index: u32) -> (u32, u32) {
        let at = RX_RING + 16 * u64::from(index);
        (self.word(at), self.word(at + 4))
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
    pub fn arrive_with(&self, frames: &[(Vec<u8>, Offload)]) -> usize {
        let mut batch = Batch::new();
        for (frame, offload) in frames {
            let head = &frame[..frame.len().min(128)];
            let rest = vmlan_ram::Slice::from_bytes(&frame[head.len()..]);
            let rest = (!rest.is_empty()).then_some(rest);
            batch.add_parts(head, rest, *offload).unwrap();
        }
        let list: Vec<u16> = (0..frames.len() as u16).collect();
        self.chip.push(&batch, &list)
    }

    pub fn arrive(&self, frames: &[Vec<u8>]) -> usize {
        let frames: Vec<_> = frames.iter().map(|f| (f.clone(), Offload::NONE)).collect();
        self.arrive_with(&frames)
    }

    /// Classic mode, as drivers do: takes the next frame out of the buffer. Status, frame with its
    /// FCS.
    pub fn take(&self) -> Option<(u16, Vec<u8>)> {
        if self.get8(CR) & BUFE != 0 {
            return None;
        }
        let rcr = self.get32(RCR);
        let size = 8192u32 << (rcr >> 11 & 3);
        let wraps = rcr & WRAP == 0 || size == 0x1_0000;
        let at = u32::from(self.get16(CAPR).wrapping_add(16)) % size;
        let byte = |i: u32| {
            let at = if wraps { (at + i) % size } else { at + i };
            self.read(RX_BUFFER + u64::from(at), 1)[0]
        };
        let [s0, s1, l0, l1] = [0, 1, 2, 3].map(byte);
        let len = u32::from(u16::from_le_bytes([l0, l1]));
        let frame = (4..4 + len).map(byte).collect();
        let next = (at + 4 + len + 3) & !3;
        self.set16(CAPR, (next as u16).wrapping_sub(16));
        Some((u16::from_le_bytes([s0, s1]), frame))
    }

    pub fn dropped(&self) -> u64 {
        self.chip.counters().drops().map(|(_, n)| n).sum()
    }

    pub fn raised(&self) -> u32 {
        self.host.raises()
    }

    pub fn rang(&self) -> u32 {
        self.host.rings()
    }

    pub fn count(&self, register: &str) -> (u64, u64) {
        let all = self.chip.device().registers;
        all.iter().find(|a| a.register == register).map_or((0, 0), |a| (a.reads, a.writes))
    }
}
