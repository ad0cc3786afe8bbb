//! A guest's memory and driver.

use std::sync::Arc;

use vmlan_frame::{Batch, Mac, Offload};
use vmlan_ram::{Map, Slice};

use super::super::Vmxnet3;
pub use crate::chip::fixture::*;
pub use crate::chip::{Config, Nic, PciFunction, Space};

pub const CMD: u64 = 0x20;
pub const ECR: u64 = 0x40;
pub const ICR: u64 = 0x38;

pub const ACTIVATE: u32 = 0xcafe_0000;
pub const QUIESCE: u32 = 0xcafe_0001;
pub const RESET: u32 = 0xcafe_0002;
pub const UPDATE_RX_MODE: u32 = 0xcafe_0003;
pub const UPDATE_MAC_FILTERS: u32 = 0xcafe_0004;
pub const UPDATE_VLAN_FILTERS: u32 = 0xcafe_0005;
pub const UPDATE_RSSIDT: u32 = 0xcafe_0006;
pub const UPDATE_IML: u32 = 0xcafe_0007;
pub const UPDATE_FEATURE: u32 = 0xcafe_0009;
pub const GET_STATS: u32 = 0xf00d_0001;
pub const GET_LINK: u32 = 0xf00d_0002;

pub const MEMORY: u64 = 0x80_0000;
pub const SIZE: u32 = 64;
pub const SHARED: u64 = 0x1000;
pub const QUEUES: u64 = 0x2000;
/// Rings of queue n are at `+ 0x4000 * n`: transmit, its completions; receive, second, completions.
pub const TX_RING: u64 = 0x1_0000;
pub const TX_DONE: u64 = TX_RING + 0x1000;
pub const RX_RING: u64 = 0x8_0000;
pub const RX_SECOND: u64 = RX_RING + 0x1000;
pub const RX_DONE: u64 = RX_RING + 0x2000;
const NEXT: u64 = 0x4000;
pub const TX_BUFFERS: u64 = 0x10_0000;
pub const RX_BUFFERS: u64 = 0x40_0000;
pub const SECOND_BUFFERS: u64 = 0x60_0000;
/// Bytes of a receive buffer.
pub const ROOM: u32 = 2048;

/// Word 3 of a transmit descriptor.
pub const EOP: u32 = 1 << 12;
pub const CQ: u32 = 1 << 13;

/// A place in a ring.
#[derive(Clone, Copy)]
pub struct At {
    pub index: u32,
    pub generation: u32,
    pub size: u32,
}

impl At {
    pub fn new(size: u32) -> Self {
        Self { index: 0, generation: 1, size }
    }

    pub fn step(&mut self) -> Self {
        let now = *self;
        self.index += 1;
        if self.index == self.size {
            (self.index, self.generation) = (0, 1 - self.generation);
        }
        now
    }
}

/// A queue, as its driver knows it.
#[derive(Clone, Copy)]
pub struct Queue {
    pub tx: At,
    pub tx_done: At,
    pub rx: At,
    pub second: At,
    pub rx_done: At,
}

/// How a driver sets up its device.
#[derive(Clone)]
pub struct Setup {
    pub queues: u32,
    pub features: u32,
    pub mode: u32,
    pub mtu: u32,
    pub auto_mask: bool,
    pub second: u32,
    /// Level of moderation. Drivers name 8; most tests want to see each message.
    pub level: u8,
    /// Each queue has a vector of its own, and events the last.
    pub vectors: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            queues: 1,
            features: 1,
            mode: 7,
            mtu: 1500,
            auto_mask: true,
            second: SIZE,
            level: 0,
            vectors: true,
        }
    }
}

/// A completion of reception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub index: u32,
    pub queue: u32,
    pub sop: bool,
    pub eop: bool,
    pub words: [u32; 4],
    pub bytes: Vec<u8>,
}

/// A device, its guest, and its host.
pub struct Guest {
    pub chip: Vmxnet3,
    pub map: Arc<Map>,
    pub host: Arc<FakeHost>,
    pub batch: Batch<'static>,
    pub queues: Vec<Queue>,
    pub setup: Setup,
}

impl Guest {
    /// A device after power-on, with memory; the cable is in.
    pub fn cold(irq_rate_max: u32) -> Self {
        let host = Arc::new(FakeHost::default());
        let config = Config { mac: Mac::new(MAC), irq_rate_max, csb: false };
        let chip = Vmxnet3::new(config, host.clone());
        let map = memory(MEMORY);
        drop(chip.set_map(map.clone()));
        chip.set_link(true);
        let (batch, queues, setup) = (Batch::new(), Vec::new(), Setup::default());
        Self { chip, map, host, batch, queues, setup }
    }

    /// Another device goes on in the place of this one, which has no floor under its interrupts.
    pub fn succeed(&mut self) {
        let state = self.chip.save();
        let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: false };
        self.chip = Vmxnet3::new(config, self.host.clone());
        drop(self.chip.set_map(self.map.clone()));
        assert_eq!(self.chip.restore(&state), Ok(()));
        assert!(self.chip.save() == state);
    }

    /// A driver is up, with MSI-X, buffers in its first rings, vectors unmasked.
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        let mut guest = Self::cold(0);
        guest.start(setup);
        guest
    }

    /// What a driver does, in the order of Linux's.
    pub fn start(&mut self, setup: Setup) {
        self.config_write(4, &[6, 0]);
        self.config_write(0x9e, &[0x18, 0x80]);
        self.set(1, 0x00, 4);
        self.set(1, 0x08, 1);
        self.setup = setup;
        self.write_shared();
        self.set(1, 0x10, SHARED as u32);
        self.set(1, 0x18, 0);
        assert_eq!(self.command(ACTIVATE), 0, "activated");
        for vector in 0..25 {
            self.mask(vector, false);
        }
    }

    /// DriverShared, the descriptors of queues, and empty rings.
    pub fn write_shared(&mut self) {
        let s = self.setup.clone();
        let count = s.queues;
        self.write(SHARED, &[0; 0x2d0]);
        for (at, value) in [
            (0x00, 0xbabe_fee1),
            (0x10, 1),
            (0x14, 1),
            (0x18, s.features),
            (0x28, QUEUES as u32),
            (0x34, 512 * count),
            (0x38, s.mtu),
            (0x3c, count << 16 | count << 24),
            (0x50, u32::from(s.auto_mask) | 25 << 8 | (if s.vectors { count } else { 0 }) << 16),
            (0x78, s.mode),
        ] {
            self.put(SHARED + at, value);
        }
        self.write(SHARED + 0x53, &[s.level; 25]);
        self.queues.clear();
        for n in 0..count {
            self.write_queue(n, s.second);
        }
    }

    fn write_queue(&mut self, n: u32, second: u32) {
        let (count, apart) = (self.setup.queues, NEXT * u64::from(n));
        let vector = if self.setup.vectors { n } else { 0 };
        let (tx, rx) = (self.tx_queue(n), QUEUES + 256 * u64::from(count + n));
        self.write(tx, &[0; 256]);
        self.write(rx, &[0; 256]);
        for (at, value) in [
            (tx + 0x10, (TX_RING + apart) as u32),
            (tx + 0x20, (TX_DONE + apart) as u32),
            (tx + 0x38, SIZE),
            (tx + 0x40, SIZE),
            (tx + 0x48, vector),
            (rx + 0x10, (RX_RING + apart) as u32),
            (rx + 0x18, (RX_SECOND + apart) as u32),
            (rx + 0x20, (RX_DONE + apart) as u32),
            (rx + 0x38, SIZE),
            (rx + 0x3c, second),
            (rx + 0x40, SIZE + second),
            (rx + 0x48, vector),
        ] {
            self.put(at, value);
        }
        for base in [TX_RING, TX_DONE, RX_RING, RX_SECOND] {
            self.write(base + apart, &[0; 16 * SIZE as usize]);
        }
        self.write(RX_DONE + apart, &[0; 32 * SIZE as usize]);
        let (full, done) = (At::new(SIZE), At::new(SIZE + second));
        let (tx, tx_done, rx, second) = (full, full, full, At::new(second.max(1)));
        self.queues.push(Queue { tx, tx_done, rx, second, rx_done: done });
        for _ in 0..SIZE - 1 {
            self.post_head(n, ROOM);
        }
    }

    /// The descriptor of transmit queue n.
    pub fn tx_queue(&self, n: u32) -> u64 {
        QUEUES + 256 * u64::from(n)
    }

    /// That of receive queue n.
    pub fn rx_queue(&self, n: u32) -> u64 {
        self.tx_queue(self.setup.queues + n)
    }

    /// Gives the device a descriptor of ring 0.
    pub fn post(&mut self, n: u32, body: bool, len: u32) {
        let at = self.queues[n as usize].rx.step();
        let addr = RX_BUFFERS + 0x2_0000 * u64::from(n) + u64::from(ROOM * at.index);
        let ring = RX_RING + NEXT * u64::from(n);
        self.rx_desc(ring, at, addr, len | u32::from(body) << 14);
    }

    pub fn post_head(&mut self, n: u32, len: u32) {
        self.post(n, false, len);
    }

    /// Gives the device a body of ring 1.
    pub fn post_second(&mut self, n: u32, len: u32) {
        let at = self.queues[n as usize].second.step();
        let addr = SECOND_BUFFERS + 0x2_0000 * u64::from(n) + u64::from(ROOM * at.index);
        self.rx_desc(RX_SECOND + NEXT * u64::from(n), at, addr, len | 1 << 14);
    }

    pub fn rx_desc(&self, ring: u64, at: At, addr: u64, word: u32) {
        let place = ring + 16 * u64::from(at.index);
        self.write(place, &addr.to_le_bytes());
        self.put(place + 8, word | at.generation << 31);
    }

    pub fn set(&self, bar: u8, at: u64, value: u32) {
        self.chip.write(Space::Bar(bar), at, &value.to_le_bytes());
    }

    pub fn get(&self, bar: u8, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read(Space::Bar(bar), at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Carries out a command; its result.
    pub fn command(&self, what: u32) -> u32 {
        self.set(1, CMD, what);
        self.get(1, CMD)
    }

    /// IMR.
    pub fn mask(&self, vector: u64, masked: bool) {
        self.set(0, 8 * vector, masked.into());
    }

    pub fn is_masked(&self, vector: u64) -> bool {
        self.get(0, 8 * vector) != 0
    }

    pub fn config(&self, at: u64, len: usize) -> u32 {
        let mut bytes = [0; 4];
        self.chip.read(Space::Config, at, &mut bytes[..len]);
        u32::from_le_bytes(bytes)
    }

    pub fn config_write(&self, at: u64, bytes: &[u8]) {
        self.chip.write(Space::Config, at, bytes);
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(self.map.slice_mut(at, bytes.len()).unwrap().write(0, bytes), bytes.len());
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.slice(at, len).unwrap().read(&mut bytes);
        bytes
    }

    pub fn put(&self, at: u64, value: u32) {
        self.write(at, &value.to_le_bytes());
    }

    pub fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }

    pub fn long(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    /// Moves the clock; a timer that is due fires.
    pub fn sleep(&self, ns: u64) {
        if self.host.sleep(ns) {
            self.chip.timer();
        }
    }

    /// Writes transmit descriptors (address, word 2 without generation, word 3), the first one's
    /// generation last.
    pub fn give_to(&mut self, n: u32, descriptors: &[(u64, u32, u32)]) {
        let places: Vec<At> =
            descriptors.iter().map(|_| self.queues[n as usize].tx.step()).collect();
        for (at, (addr, word2, word3)) in places.iter().zip(descriptors).rev() {
            let place = TX_RING + NEXT * u64::from(n) + 16 * u64::from(at.index);
            self.write(place, &addr.to_le_bytes());
            self.put(place + 12, *word3);
            self.put(place + 8, word2 | at.generation << 14);
        }
    }

    pub fn give(&mut self, descriptors: &[(u64, u32, u32)]) {
        self.give_to(0, descriptors);
    }

    /// Puts bytes where transmit buffer `n` is.
    pub fn fill(&self, n: u64, bytes: &[u8]) -> u64 {
        let at = TX_BUFFERS + 0x1_0000 * n;
        self.write(at, bytes);
        at
    }

    /// Posts one descriptor for a frame, with a completion.
    pub fn send(&mut self, n: u64, frame: &[u8]) {
        let at = self.fill(n, frame);
        self.give(&[(at, frame.len() as u32, EOP | CQ)]);
    }

    pub fn ring(&self, queue: u64) {
        self.set(0, 0x600 + 8 * queue, 0);
    }

    pub fn pull_to(&mut self, take: &mut Take) -> usize {
        self.chip.pull(&mut self.batch, 256, take)
    }

    pub fn pull(&mut self) -> Vec<Lent> {
        let mut take = Take::default();
        self.pull_to(&mut take);
        take.frames
    }

    /// The index of the next transmit completion.
    pub fn sent_of(&mut self, n: u32) -> Option<u32> {
        let at = self.queues[n as usize].tx_done;
        let place = TX_DONE + NEXT * u64::from(n) + 16 * u64::from(at.index);
        let last = self.word(place + 12);
        if last >> 31 != at.generation {
            return None;
        }
        assert_eq!(last & 0x7fff_ffff, 0, "type 0, and nothing else");
        self.queues[n as usize].tx_done.step();
        Some(self.word(place) & 0xfff)
    }

    pub fn sent(&mut self) -> Option<u32> {
        self.sent_of(0)
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

    /// The words of the next receive completion of queue 0, whatever it says.
    pub fn words_of_next_done(&mut self) -> [u32; 4] {
        let at = self.queues[0].rx_done.step();
        let words = [0, 4, 8, 12].map(|i| self.word(RX_DONE + 16 * u64::from(at.index) + i));
        assert_eq!(words[3] >> 31, at.generation, "it is there");
        words
    }

    /// The next receive completion.
    pub fn done_of(&mut self, n: u32) -> Option<Done> {
        let at = self.queues[n as usize].rx_done;
        let place = RX_DONE + NEXT * u64::from(n) + 16 * u64::from(at.index);
        let words = [0, 4, 8, 12].map(|i| self.word(place + i));
        if words[3] >> 31 != at.generation {
            return None;
        }
        self.queues[n as usize].rx_done.step();
        let (index, queue) = (words[0] & 0xfff, words[0] >> 16 & 0x3ff);
        let ring = if queue < self.setup.queues { RX_RING } else { RX_SECOND };
        let desc = ring + NEXT * u64::from(queue % self.setup.queues) + 16 * u64::from(index);
        let bytes = self.read(self.long(desc), (words[2] & 0x3fff) as usize);
        let (sop, eop) = (words[0] >> 15 & 1 == 1, words[0] >> 14 & 1 == 1);
        Some(Done { index, queue, sop, eop, words, bytes })
    }

    /// The next frame that has arrived, in however many parts, and its last completion.
    pub fn take_of(&mut self, n: u32) -> Option<(Vec<u8>, Done)> {
        let mut done = self.done_of(n)?;
        assert!(done.sop);
        let mut frame = done.bytes.clone();
        while !done.eop {
            done = self.done_of(n).expect("the rest of it");
            assert!(!done.sop);
            frame.extend(&done.bytes);
        }
        Some((frame, done))
    }

    pub fn take(&mut self) -> Option<(Vec<u8>, Done)> {
        self.take_of(0)
    }

    pub fn dropped(&self) -> u64 {
        self.chip.counters().drops().map(|(_, n)| n).sum()
    }

    pub fn statistic(&self, name: &str) -> u64 {
        self.chip.device().statistics.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Messages of a vector so far.
    pub fn messages(&self, vector: u16) -> usize {
        self.host.sent.lock().unwrap().iter().filter(|sent| **sent == vector).count()
    }

    pub fn threshold(&self, n: u32) -> u32 {
        self.word(self.tx_queue(n) + 4)
    }
}
