//! Packed rings against a tiny driver, with its own constants.

mod flow;
mod hostile;
mod lines;
mod parity;
mod restart;

use std::sync::Arc;

use vmlan_ram::Map;

use super::guest::*;
use crate::virtio::{NetRx, NetTx, Rings};

pub const PACKED: u64 = 1 << 34 | V1;
pub const AVAIL: u16 = 1 << 7;
pub const USED: u16 = 1 << 15;

/// A piece of a list: address, length, flags.
pub type Piece = (u64, u32, u16);

/// A slot, and the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(pub u16, pub bool);

impl At {
    fn plus(self, n: u16, size: u16) -> Self {
        let to = self.0 + n;
        if to < size { Self(to, self.1) } else { Self(to - size, !self.1) }
    }
    /// As in an event structure, or half of a base.
    pub fn word(self) -> u16 {
        self.0 | u16::from(self.1) << 15
    }
    pub fn base(self) -> u32 {
        u32::from(self.word()) | u32::from(self.word()) << 16
    }
    fn avail(self) -> u16 {
        if self.1 { AVAIL } else { USED }
    }
    pub fn used(self) -> u16 {
        if self.1 { AVAIL | USED } else { 0 }
    }
}

/// The driver's side of one packed ring.
#[derive(Clone)]
pub struct PackedGuest {
    memory: Arc<Map>,
    pub rings: Rings,
    pub next: At,
    pub seen: At,
    /// Descriptors of each buffer, by id; 0: not with the device.
    pub counts: Vec<u16>,
}

impl PackedGuest {
    pub fn new(map: &Arc<Map>, size: u16) -> Self {
        let end = 16 * u64::from(size);
        let rings =
            Rings { size, desc: 0, avail: end, used: end + 4, log: None, base: At(0, true).word() };
        let (next, counts) = (At(0, true), vec![0; size.into()]);
        Self { memory: map.clone(), rings, next, seen: next, counts }
    }

    /// To read and write memory.
    pub fn raw(&self) -> Guest {
        Guest { map: self.memory.clone(), rings: self.rings, avail: 0, seen_used: 0 }
    }
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        self.raw().write(gpa, bytes);
    }
    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        self.raw().read(gpa, len)
    }
    pub fn set(&self, slot: u16, addr: u64, len: u32, id: u16, flags: u16) {
        let bytes =
            [&addr.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()];
        self.write(16 * u64::from(slot), &bytes.concat());
    }
    pub fn flags(&self, slot: u16) -> u16 {
        u16::from_le_bytes(self.read(16 * u64::from(slot) + 14, 2).try_into().unwrap())
    }
    pub fn set_flags(&self, slot: u16, flags: u16) {
        self.write(16 * u64::from(slot) + 14, &flags.to_le_bytes());
    }
    pub fn free(&self) -> u16 {
        self.rings.size - self.counts.iter().sum::<u16>()
    }

    /// Makes a list available, its first descriptor last.
    pub fn post(&mut self, id: u16, list: &[Piece]) {
        let (size, count) = (self.rings.size, u16::try_from(list.len()).unwrap());
        for (k, (addr, len, flags)) in (0..count).zip(list).rev() {
            let at = self.next.plus(k, size);
            let more = if k + 1 < count { NEXT } else { 0 };
            self.set(at.0, *addr, *len, id, flags | more | at.avail());
        }
        self.next = self.next.plus(count, size);
        self.counts[usize::from(id)] = count;
    }

    /// What was used since the last call: (id, length).
    pub fn used(&mut self) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        while self.counts.iter().any(|n| *n > 0)
            && self.flags(self.seen.0) & (AVAIL | USED) == self.seen.used()
        {
            let bytes = self.read(16 * u64::from(self.seen.0) + 8, 6);
            let len = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            let id = u16::from_le_bytes(bytes[4..].try_into().unwrap());
            let count = std::mem::take(&mut self.counts[usize::from(id)]);
            assert!(count > 0, "buffer {id} is not with the device");
            self.seen = self.seen.plus(count, self.rings.size);
            out.push((id.into(), len));
        }
        out
    }

    /// What the driver asks for: place and flags.
    pub fn set_event(&self, at: u16, flags: u16) {
        let word = u32::from(at) | u32::from(flags) << 16;
        self.write(self.rings.avail, &word.to_le_bytes());
    }
    /// What the device asks for.
    pub fn device_event(&self) -> (u16, u16) {
        let bytes = self.read(self.rings.used, 4);
        (u16::from_le_bytes([bytes[0], bytes[1]]), u16::from_le_bytes([bytes[2], bytes[3]]))
    }
    /// Header and frame in one descriptor.
    pub fn send(&mut self, id: u16, frame: &[u8]) {
        let addr = place(id);
        self.write(addr, &[0; 12]);
        self.write(addr + 12, frame);
        self.post(id, &[(addr, u32::try_from(12 + frame.len()).unwrap(), 0)]);
    }
    /// A receive buffer in one descriptor.
    pub fn offer(&mut self, id: u16, len: u32) -> u64 {
        self.post(id, &[(place(id), len, WRITE)]);
        place(id)
    }
}

/// Where the buffer `id` lies.
pub fn place(id: u16) -> u64 {
    BUFFERS + 0x1000 * u64::from(id)
}

pub fn tx(size: u16, features: u64) -> Bench<NetTx, PackedGuest> {
    let map = memory(None);
    let guest = PackedGuest::new(&map, size);
    let rings = guest.rings;
    Bench::<NetTx, _>::with(&map, guest, rings, PACKED | features)
}

pub fn rx(size: u16, features: u64) -> Bench<NetRx, PackedGuest> {
    let map = memory(None);
    let guest = PackedGuest::new(&map, size);
    let rings = guest.rings;
    Bench::<NetRx, _>::with(&map, guest, rings, PACKED | features)
}
