//! What tests of all chips need: a host that takes notes, memory, packets.
#![allow(clippy::cast_possible_truncation)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Batch, Finisher, Offload, Offloads, Sink};
use vmlan_ram::{Map, Mapping, Region, Slice};

use crate::chip::Host;

/// The station's address.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// A host with a clock that stands still until it is moved.
#[derive(Default)]
pub struct FakeHost {
    pub clock: AtomicU64,
    /// The wish for a timer.
    pub timer: Mutex<Option<u64>>,
    pub timers_set: AtomicU32,
    pub raised: AtomicU32,
    pub lowered: AtomicU32,
    pub doorbells: AtomicU32,
    /// Vectors of messages.
    pub sent: Mutex<Vec<u16>>,
}

impl Host for FakeHost {
    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
    fn set_timer(&self, at: u64) {
        *self.timer.lock().unwrap() = Some(at);
        self.timers_set.fetch_add(1, Ordering::Relaxed);
    }
    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::Relaxed);
    }
    fn lower(&self) {
        self.lowered.fetch_add(1, Ordering::Relaxed);
    }
    fn send(&self, vector: u16) {
        self.sent.lock().unwrap().push(vector);
    }
    fn doorbell(&self) {
        self.doorbells.fetch_add(1, Ordering::Relaxed);
    }
}

impl FakeHost {
    pub fn raises(&self) -> u32 {
        self.raised.load(Ordering::Relaxed)
    }

    pub fn rings(&self) -> u32 {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Moves the clock; true if a timer is due.
    pub fn sleep(&self, ns: u64) -> bool {
        let now = self.clock.fetch_add(ns, Ordering::Relaxed) + ns;
        self.timer.lock().unwrap().take_if(|at| *at <= now).is_some()
    }
}

/// Memory of `len` bytes at guest address 0.
pub fn memory(len: u64) -> Arc<Map> {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(len).unwrap();
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, len).unwrap());
    Arc::new(Map::new(vec![Region::new(0, len, 0, 0, mapping).unwrap()], None).unwrap())
}

/// A copy of what was lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    pub bytes: Vec<u8>,
    pub offload: Offload,
}

/// Takes all frames, or holds those that `hold` names.
#[derive(Default)]
pub struct Take {
    pub frames: Vec<Lent>,
    pub hold: Vec<usize>,
}

impl Sink for Take {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let frame = batch.frame(i).unwrap();
            let mut bytes = vec![0; frame.len];
            assert_eq!(frame.copy_to(&mut bytes), frame.len);
            self.frames.push(Lent { bytes, offload: frame.offload });
            if self.hold.contains(&i) {
                batch.hold(i);
            }
        }
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

/// An IPv4 packet in a frame, its lengths and sums right; TCP's header is 32 bytes.
pub fn packet(tcp: bool, payload: usize) -> Vec<u8> {
    let (protocol, header) = if tcp { (6, 32) } else { (17, 8) };
    let mut packet = frame(MAC, 14);
    packet[12..14].copy_from_slice(&[8, 0]);
    packet.extend([0x45, 0]);
    packet.extend((20 + (header + payload) as u16).to_be_bytes());
    packet.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let check = !sum(&packet[14..34]);
    packet[24..26].copy_from_slice(&check.to_be_bytes());
    packet.extend([0x12, 0x34, 0, 80]);
    if tcp {
        packet.extend([0, 0, 3, 232, 0, 0, 0, 1, 0x80, 0x18, 1, 0, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    } else {
        packet.extend(((header + payload) as u16).to_be_bytes());
        packet.extend([0, 0]);
    }
    packet.extend((0..payload).map(|i| (i * 5 + i / 256) as u8));
    let at = if tcp { 50 } else { 40 };
    let check = !upper_sum(&packet);
    packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
    packet
}

/// The sum over pseudo-header and upper layer of an IPv4 packet: 0xffff if its checksum is right.
pub fn upper_sum(packet: &[u8]) -> u16 {
    let mut bytes = packet[26..34].to_vec();
    bytes.extend([0, packet[23]]);
    let total = u16::from_be_bytes([packet[16], packet[17]]);
    bytes.extend((total - 20).to_be_bytes());
    bytes.extend(&packet[34..14 + usize::from(total)]);
    sum(&bytes)
}

/// The packet as a driver of these chips may leave it: wrong sums.
pub fn unfinished(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let at = if packet[23] == 6 { 50 } else { 40 };
    packet[24..26].fill(0x11);
    packet[at..at + 2].fill(0x22);
    packet
}

/// A later fragment of a UDP packet, its IP header's sum right, with `options` bytes of options.
pub fn later_fragment(options: usize) -> Vec<u8> {
    let mut packet = packet(false, 1000);
    packet.splice(34..34, vec![1; options]);
    packet[14] += options as u8 / 4;
    let len = packet.len() as u16 - 14;
    packet[16..18].copy_from_slice(&len.to_be_bytes());
    packet[20..22].copy_from_slice(&[0x20, 0xb9]);
    packet[24..26].fill(0);
    let check = !sum(&packet[14..34 + options]);
    packet[24..26].copy_from_slice(&check.to_be_bytes());
    packet
}

/// What a receiver without offloads gets.
pub fn finish(lent: &Lent) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    let head = &lent.bytes[..lent.bytes.len().min(128)];
    let rest = Slice::from_bytes(&lent.bytes[head.len()..]);
    batch.add_parts(head, [rest], lent.offload).unwrap();
    let mut finisher = Finisher::new(batch.frame(0).unwrap(), Offloads::NONE).unwrap();
    let mut frames = Vec::new();
    let mut out = Batch::new();
    loop {
        out.clear();
        let more = finisher.fill(&mut out).unwrap();
        for i in 0..out.len() {
            let frame = out.frame(i).unwrap();
            let mut bytes = vec![0; frame.len];
            frame.copy_to(&mut bytes);
            frames.push(bytes);
        }
        if !more {
            return frames;
        }
    }
}
