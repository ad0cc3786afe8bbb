//! A tiny guest: memory, rings, and a driver with its own constants.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmlan_frame::{Batch, Counters, Offload, Sink};
use vmlan_ram::{DirtyLog, Map, Mapping, Region, Slice};

use super::super::{Budget, Features, NetRx, NetTx, Rings};
use crate::Interrupt;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const V1: u64 = 1 << 32;
pub const MRG: u64 = 1 << 15;
pub const EVENT: u64 = 1 << 29;
pub const INDIRECT_DESC: u64 = 1 << 28;

/// Two regions that touch, so that buffers can cross; rings in the first page.
pub const MEMORY: u64 = 0x20_0000;
pub const BORDER: u64 = 0x10_0000;
pub const BUFFERS: u64 = 0x8_0000;

#[derive(Default)]
pub struct Bell(pub AtomicUsize);
impl Interrupt for Bell {
    fn raise(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

pub fn mapping(len: u64) -> Arc<Mapping> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    Arc::new(Mapping::new(file.as_fd(), 0, len).unwrap())
}

pub fn memory(log: Option<Arc<DirtyLog>>) -> Arc<Map> {
    let low = Region::new(0, BORDER, 0, 0, mapping(BORDER)).unwrap();
    let high = Region::new(BORDER, MEMORY - BORDER, BORDER, 0, mapping(MEMORY - BORDER)).unwrap();
    Arc::new(Map::new(vec![low, high], log).unwrap())
}

/// The driver's side of one ring.
pub struct Guest {
    pub map: Arc<Map>,
    pub rings: Rings,
    pub avail: u16,
    pub seen_used: u16,
}

impl Guest {
    pub fn new(map: &Arc<Map>, at: u64, size: u16) -> Self {
        let n = u64::from(size);
        let (avail, used) = (at + 16 * n, (at + 18 * n + 6 + 3) & !3);
        let rings = Rings { size, desc: at, avail, used, log: None, base: 0 };
        Self { map: map.clone(), rings, avail: 0, seen_used: 0 }
    }
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        for (i, b) in (0u64..).zip(bytes) {
            assert_eq!(self.map.slice_mut(gpa + i, 1).unwrap().write(0, &[*b]), 1);
        }
    }
    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let byte = |i| self.map.slice(gpa + i as u64, 1).unwrap().read_array::<1>().unwrap()[0];
        (0..len).map(byte).collect()
    }
    fn u16(&self, gpa: u64) -> u16 {
        u16::from_le_bytes(self.read(gpa, 2).try_into().unwrap())
    }
    pub fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
        [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
            .concat()
    }
    pub fn desc(&self, i: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.rings.desc + 16 * u64::from(i);
        self.write(at, &Self::descriptor(addr, len, flags, next));
    }
    /// Makes `head` available.
    pub fn post(&mut self, head: u16) {
        let slot = u64::from(self.avail % self.rings.size);
        self.write(self.rings.avail + 4 + 2 * slot, &head.to_le_bytes());
        self.set_avail(self.avail.wrapping_add(1));
    }
    pub fn set_avail(&mut self, idx: u16) {
        self.avail = idx;
        self.write(self.rings.avail + 2, &idx.to_le_bytes());
    }
    /// What was used since the last call: (head, length).
    pub fn used(&mut self) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        while self.seen_used != self.used_idx() {
            let slot = u64::from(self.seen_used % self.rings.size);
            let e = self.read(self.rings.used + 4 + 8 * slot, 8);
            let word = |i| u32::from_le_bytes(e[i..i + 4].try_into().unwrap());
            out.push((word(0), word(4)));
            self.seen_used = self.seen_used.wrapping_add(1);
        }
        out
    }
    pub fn used_idx(&self) -> u16 {
        self.u16(self.rings.used + 2)
    }
    pub fn used_flags(&self) -> u16 {
        self.u16(self.rings.used)
    }
    pub fn avail_event(&self) -> u16 {
        self.u16(self.rings.used + 4 + 8 * u64::from(self.rings.size))
    }
    pub fn set_used_event(&self, idx: u16) {
        self.write(self.rings.avail + 4 + 2 * u64::from(self.rings.size), &idx.to_le_bytes());
    }
    pub fn set_flags(&self, flags: u16) {
        self.write(self.rings.avail, &flags.to_le_bytes());
    }
    /// Header (12 zero bytes) and frame in descriptor `i` alone, made available.
    pub fn send(&mut self, i: u16, frame: &[u8]) {
        let addr = BUFFERS + 0x1000 * u64::from(i);
        self.write(addr, &[0; 12]);
        self.write(addr + 12, frame);
        self.desc(i, addr, u32::try_from(12 + frame.len()).unwrap(), 0, 0);
        self.post(i);
    }
    /// A receive buffer of `len` bytes in descriptor `i` alone, made available.
    pub fn offer(&mut self, i: u16, len: u32) -> u64 {
        let addr = BUFFERS + 0x1000 * u64::from(i);
        self.desc(i, addr, len, WRITE, 0);
        self.post(i);
        addr
    }
}

/// Keeps what it was lent; holds frames whose first byte is in `hold`.
#[derive(Default)]
pub struct Bin {
    pub frames: Vec<Vec<u8>>,
    pub offloads: Vec<Offload>,
    pub hold: Vec<u8>,
}

impl Sink for Bin {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let f = batch.frame(i).unwrap();
            let mut bytes = vec![0; f.len];
            assert_eq!(f.copy_to(&mut bytes), f.len);
            let offload = f.offload;
            if self.hold.contains(&bytes[0]) {
                batch.hold(i);
            } else {
                self.frames.push(bytes);
                self.offloads.push(offload);
            }
        }
    }
}

/// A transmit or receive side with one queue of `size`, running, and its driver.
pub struct Bench<N, G = Guest> {
    pub net: N,
    pub guest: G,
    pub bell: Arc<Bell>,
    pub counters: Counters,
    pub batch: Batch<'static>,
}

macro_rules! bench {
    ($net:ident) => {
        impl Bench<$net> {
            pub fn new(size: u16, features: u64) -> Self {
                Self::on(&memory(None), size, features)
            }
            pub fn on(map: &Arc<Map>, size: u16, features: u64) -> Self {
                let guest = Guest::new(map, 0, size);
                let rings = guest.rings;
                Self::with(map, guest, rings, features)
            }
        }
        impl<G> Bench<$net, G> {
            /// With this driver's ring.
            pub fn with(map: &Arc<Map>, guest: G, rings: Rings, features: u64) -> Self {
                let (mut net, bell) = ($net::new(), Arc::new(Bell::default()));
                net.set_map(map.clone());
                net.set_features(Features(features));
                net.set_interrupt(0, Some(bell.clone())).unwrap();
                net.start(0, rings).unwrap();
                net.enable(0, true).unwrap();
                Self { net, guest, bell, counters: Counters::default(), batch: Batch::new() }
            }
            pub fn rings(&self) -> usize {
                self.bell.0.swap(0, Ordering::Relaxed)
            }
        }
    };
}
bench!(NetTx);
bench!(NetRx);

impl<G> Bench<NetTx, G> {
    pub fn pull(&mut self, bin: &mut Bin) -> usize {
        self.net.pull(&mut self.batch, 256, bin, &self.counters)
    }
    pub fn pulled(&mut self) -> Vec<Vec<u8>> {
        let mut bin = Bin::default();
        self.pull(&mut bin);
        bin.frames
    }
}

impl<G> Bench<NetRx, G> {
    /// Pushes frames that have these bytes.
    pub fn push(&mut self, frames: &[&[u8]]) -> usize {
        self.push_with(frames, Offload::NONE)
    }
    pub fn push_with(&mut self, frames: &[&[u8]], offload: Offload) -> usize {
        self.push_part(&mut Budget::default(), frames, offload)
    }
    /// As part of a push.
    pub fn push_within(&mut self, budget: &mut Budget, frames: &[&[u8]]) -> usize {
        self.push_part(budget, frames, Offload::NONE)
    }
    fn push_part(&mut self, budget: &mut Budget, frames: &[&[u8]], offload: Offload) -> usize {
        let mut batch = Batch::new();
        for f in frames {
            let n = f.len().min(128);
            batch.add_parts(&f[..n], [Slice::from_bytes(&f[n..])], offload).unwrap();
        }
        let list: Vec<u16> = (0..).take(frames.len()).collect();
        self.net.push(&batch, &list, &self.counters, budget)
    }
}

/// A frame of `len` bytes that begins with `tag`.
pub fn frame(tag: u8, len: usize) -> Vec<u8> {
    let mut f: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
    f[0] = tag;
    f
}
