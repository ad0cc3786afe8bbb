//! A guest's memory and driver for either chip, with constants of its own (SDM tables 13-2, 3-10
//! and following).
#![allow(clippy::cast_possible_truncation)]

use std::sync::Arc;

use vmlan_frame::{Batch, Mac, Offload};
use vmlan_ram::{Map, Window};

use crate::chip::Controlled;
pub use crate::chip::fixture::{FakeHost, Lent, MAC, Take, memory};
pub use crate::chip::{Config, Host, Nic, PciFunction};
use crate::intel::{Intel, Model};

pub const CTRL: u64 = 0x0;
pub const VET: u64 = 0x38;
pub const ICR: u64 = 0xc0;
pub const RCTL: u64 = 0x100;
pub const TCTL: u64 = 0x400;
pub const RD: u64 = 0x2800;
pub const TD: u64 = 0x3800;
/// From a ring's first register: base high, length, head, tail.
pub const HIGH: u64 = 4;
pub const LEN: u64 = 8;
pub const HEAD: u64 = 0x10;
pub const TAIL: u64 = 0x18;
pub const RXCSUM: u64 = 0x5000;
pub const MTA: u64 = 0x5200;
pub const RA: u64 = 0x5400;
pub const VFTA: u64 = 0x5600;

pub const SLU: u32 = 1 << 6;
pub const VME: u32 = 1 << 30;

pub const EOP: u64 = 1 << 24;
pub const IFCS: u64 = 2 << 24;
pub const IC: u64 = 4 << 24;
pub const TSE: u64 = 4 << 24;
pub const RS: u64 = 8 << 24;
pub const DEXT: u64 = 0x20 << 24;
pub const VLE: u64 = 0x40 << 24;
pub const IDE: u64 = 0x80 << 24;
pub const DATA: u64 = DEXT | 1 << 20;
pub const IXSM: u64 = 1 << 40;
pub const TXSM: u64 = 2 << 40;
/// What drivers set on a plain frame's last descriptor.
pub const LAST: u64 = EOP | IFCS | RS;

pub const MEMORY: u64 = 0x40_0000;
pub const SIZE: u32 = 64;
pub const TX_RING: u64 = 0x1000;
pub const RX_RING: u64 = 0x2000;
pub const TX_BUFFERS: u64 = 0x1_0000;
pub const RX_BUFFERS: u64 = 0x20_0000;

/// A guest with a chip of model `M`.
pub struct GuestOf<M: Model> {
    pub chip: Intel<M>,
    pub map: Arc<Map>,
    pub host: Arc<FakeHost>,
    pub batch: Batch<'static>,
    /// The ring registers, as a guest has them mapped.
    pub pages: Window,
    pub tx_tail: u32,
}

impl<M: Model> Default for GuestOf<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Model> GuestOf<M> {
    /// Link up, both sides on, rings of [`SIZE`], receive buffers of 2 KiB posted.
    pub fn new() -> Self {
        Self::with(false)
    }

    /// With a CSB, or without.
    pub fn with(csb: bool) -> Self {
        let registers = memory(0x2000);
        let pages = registers.window(0, 0x2000, 4).unwrap();
        let host = Arc::new(FakeHost::default());
        let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb };
        let chip = Intel::new(config, pages, host.clone());
        let map = memory(MEMORY);
        let pages = registers.window(0, 0x2000, 4).unwrap();
        let mut guest = Self { chip, map, host, batch: Batch::new(), pages, tx_tail: 0 };
        drop(guest.chip.set_map(guest.map.clone()));
        guest.start();
        guest
    }

    /// What a driver does after a reset.
    pub fn start(&mut self) {
        self.chip.write_config(4, &[7, 0]);
        self.chip.set_link(true);
        self.set(CTRL, SLU);
        self.ring(TD, TX_RING, SIZE);
        self.ring(RD, RX_RING, SIZE);
        self.tx_tail = 0;
        for i in 0..SIZE {
            self.rx_desc(i, RX_BUFFERS + 2048 * u64::from(i));
        }
        self.set(TCTL, 2 | 8);
        self.set(RCTL, 2 | 1 << 15);
        self.set(RD + TAIL, SIZE - 1);
    }

    pub fn ring(&self, base: u64, at: u64, size: u32) {
        self.set(base, at as u32);
        self.set(base + HIGH, (at >> 32) as u32);
        self.set(base + LEN, size * 16);
        self.set(base + HEAD, 0);
        self.set(base + TAIL, 0);
    }

    pub fn set(&self, at: u64, value: u32) {
        self.chip.write_bar(0, at, &value.to_le_bytes());
    }

    pub fn get(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read_bar(0, at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(self.map.slice_mut(at, bytes.len()).unwrap().write(0, bytes), bytes.len());
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.slice(at, len).unwrap().read(&mut bytes);
        bytes
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn tx_desc(&self, index: u32, first: u64, second: u64) {
        let at = TX_RING + 16 * u64::from(index);
        self.write(at, &first.to_le_bytes());
        self.write(at + 8, &second.to_le_bytes());
    }

    pub fn rx_desc(&self, index: u32, addr: u64) {
        let at = RX_RING + 16 * u64::from(index);
        self.write(at, &addr.to_le_bytes());
        self.write(at + 8, &[0; 8]);
    }

    /// The second quadword of a receive descriptor.
    pub fn rx_word(&self, index: u32) -> u64 {
        self.word(RX_RING + 16 * u64::from(index) + 8)
    }

    pub fn tx_word(&self, index: u32) -> u64 {
        self.word(TX_RING + 16 * u64::from(index) + 8)
    }

    /// Posts descriptors.
    pub fn post(&mut self, descriptors: &[(u64, u64)]) {
        for (first, second) in descriptors {
            self.tx_desc(self.tx_tail, *first, *second);
            self.tx_tail = (self.tx_tail + 1) % SIZE;
        }
        self.set(TD + TAIL, self.tx_tail);
    }

    /// Puts bytes where transmit buffer `n` is.
    pub fn fill(&self, n: u64, bytes: &[u8]) -> u64 {
        let at = TX_BUFFERS + 0x1_0000 * n;
        self.write(at, bytes);
        at
    }

    /// Posts one legacy descriptor for a frame.
    pub fn send(&mut self, n: u64, frame: &[u8]) {
        let at = self.fill(n, frame);
        self.post(&[(at, frame.len() as u64 | LAST)]);
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
            let rest = vmlan_ram::Slice::from_bytes(&frame[head.len()..]);
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

    /// Length and status, errors, special of a receive descriptor.
    pub fn received(&self, index: u32) -> (usize, u8, u8, u16) {
        let word = self.rx_word(index);
        (word as u16 as usize, (word >> 32) as u8, (word >> 40) as u8, (word >> 48) as u16)
    }

    pub fn dropped(&self) -> u64 {
        self.chip.counters().drops().map(|(_, n)| n).sum()
    }

    pub fn statistic(&self, name: &str) -> u64 {
        self.chip.device().statistics.iter().find(|(n, _)| *n == name).unwrap().1
    }
}

/// A frame of `len` bytes to `dst`, that looks like no protocol.
pub fn frame(dst: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 9, 9, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// One's complement sum of RFC 1071, the slow way.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut total = 0u64;
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

/// A TCP packet, its lengths and sums right; TCP's header is 32 bytes.
pub fn tcp(v6: bool, payload: usize) -> Vec<u8> {
    upper(v6, 6, 32, payload)
}

/// A UDP packet.
pub fn udp(v6: bool, payload: usize) -> Vec<u8> {
    upper(v6, 17, 8, payload)
}

fn upper(v6: bool, protocol: u8, header: usize, payload: usize) -> Vec<u8> {
    let mut packet = frame(MAC, 14);
    packet[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
    let l4_len = header + payload;
    if v6 {
        packet.extend([0x60, 0, 0, 0]);
        packet.extend((l4_len as u16).to_be_bytes());
        packet.extend([protocol, 64]);
        packet.extend([0xfd; 16]);
        packet.extend([0xfe; 16]);
    } else {
        packet.extend([0x45, 0]);
        packet.extend((20 + l4_len as u16).to_be_bytes());
        packet.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let check = !sum(&packet[14..34]);
        packet[24..26].copy_from_slice(&check.to_be_bytes());
    }
    let l4 = packet.len();
    packet.extend([0x12, 0x34, 0, 80]);
    if protocol == 6 {
        packet.extend([0, 0, 3, 232, 0, 0, 0, 1, 0x80, 0x18, 1, 0, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    } else {
        packet.extend((l4_len as u16).to_be_bytes());
        packet.extend([0, 0]);
    }
    packet.extend((0..payload).map(|i| (i * 5 + i / 256) as u8));
    let at = l4 + if protocol == 6 { 16 } else { 6 };
    let check = !transport_sum(&packet);
    packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Pseudo-header's sum of a packet, without or with its length.
pub fn pseudo(packet: &[u8], with_length: bool) -> u16 {
    let v6 = packet[12] == 0x86;
    let (protocol, addresses, l4) = match v6 {
        true => (packet[20], &packet[22..54], 54),
        false => (packet[23], &packet[26..34], 34),
    };
    let mut bytes = addresses.to_vec();
    bytes.extend([0, protocol]);
    if with_length {
        bytes.extend(((packet.len() - l4) as u32).to_be_bytes());
    }
    sum(&bytes)
}

/// The sum over pseudo-header and upper layer: 0xffff if its checksum is right.
pub fn transport_sum(packet: &[u8]) -> u16 {
    let l4 = if packet[12] == 0x86 { 54 } else { 34 };
    let total = u32::from(pseudo(packet, true)) + u32::from(sum(&packet[l4..]));
    (total % 0x1_0000 + total / 0x1_0000) as u16
}
