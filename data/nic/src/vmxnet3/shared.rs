//! DriverShared and the descriptors of queues: what the driver says in its memory. Each is copied
//! out once, and checked, when the device is activated; what a command asks for is read again then,
//! and nothing else is. (Layouts as the drivers of Linux and DPDK declare them.)

use std::ops::RangeInclusive;
use std::sync::Arc;

use vmlan_ram::Map;

use super::vectors::VECTORS;
use crate::chip::state::{Fields, Stateful};

/// Bytes of DriverShared, as far as it is read.
pub const LEN: usize = 0x2d0;
const MAGIC: u32 = 0xbabe_fee1;
/// Where `ecr` is, which the device writes.
pub const EVENTS: u64 = 0x2b8;

/// Moderation levels.
pub const LEVELS: usize = 0x53;
/// `cmdInfo`: the argument of a command.
pub const ARGUMENT: u64 = 0x2c0;

/// Bytes of a queue's descriptor, and where its parts are.
pub const QUEUE: usize = 256;
/// `stopped` and `error`, and the counters behind them.
pub const STATUS: usize = 0x50;
pub const COUNTERS: u64 = 0x58;

/// Most queues.
pub const TRANSMIT: usize = 8;
pub const RECEIVE: usize = 16;

/// Bytes of the longest packet, as the driver may say it.
pub const MTU: RangeInclusive<u16> = 60..=9000;

/// Descriptors of a ring are a multiple of this, and no more than so many.
const UNIT: u32 = 32;
pub const MOST: u32 = 4096;
const MOST_COMPLETIONS: u32 = 8192;

/// Bits of `uptFeatures`.
pub mod feature {
    pub const SUMS: u32 = 1; // Receive checksums.
    pub const SPREAD: u32 = 2; // RSS.
    pub const STRIP: u32 = 4; // VLAN tags are taken out.
    pub const UNCUT: u32 = 8; // LRO: packets may stand for several.
}

/// True if a driver has its DriverShared there.
pub fn is_shared(map: &Map, address: u64) -> bool {
    let magic = map.slice(address, 4).and_then(|place| place.read_array());
    magic.is_some_and(|magic| u32::from_le_bytes(magic) == MAGIC)
}

/// Little-endian numbers of a copy of the driver's memory; 0 outside it.
pub struct Words<'b>(pub &'b [u8]);

impl Words<'_> {
    pub fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.u8(at), self.u8(at + 1)])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
}

/// Copies out `N` bytes of the driver's memory; `None`: they are not there.
pub fn copy<const N: usize>(map: &Map, address: u64) -> Option<[u8; N]> {
    map.slice(address, N).and_then(|bytes| bytes.read_array())
}

/// A ring in the driver's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub base: u64,
    /// Descriptors.
    pub size: u32,
}

impl Place {
    /// `None`: it has no descriptors, a number of them that cannot be, or is not in memory.
    fn new(map: &Map, base: u64, size: u32, most: u32) -> Option<Self> {
        let place = Self { base, size };
        let there = place.can_be(most) && map.slice(base, 16 * size as usize).is_some();
        there.then_some(place)
    }

    /// It has descriptors, no more than `most`, and a place where they can be.
    fn can_be(&self, most: u32) -> bool {
        let Self { base, size } = *self;
        size > 0 && size.is_multiple_of(UNIT) && size <= most && base.is_multiple_of(16)
    }
}

/// What the descriptor of a queue says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    /// Where that is.
    pub address: u64,
    pub ring: Place,
    /// Receiving: the second ring, for bodies; there may be none.
    pub second: Place,
    pub completions: Place,
    /// Its vector, as a bit; none if the driver has no such vector.
    pub vector: u32,
    /// Receiving: what completions call its rings (rqID).
    pub names: [u16; 2],
}

impl Stateful for Place {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { base, size } = self;
        io.u64(base);
        io.u32(size);
    }
}

impl Stateful for Queue {
    /// Whether all of it is in memory is found when it is looked for.
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { address, ring, second, completions, vector, names } = self;
        io.u64(address);
        [&mut *ring, second, completions].into_iter().for_each(|place| place.fields(io));
        io.check(ring.can_be(MOST) && completions.can_be(MOST_COMPLETIONS));
        io.check(second.size == 0 || second.can_be(MOST));
        io.u32(vector);
        io.check(vector.count_ones() < 2 && *vector >> VECTORS == 0);
        names.fields(io);
        io.check(names.iter().all(|name| usize::from(*name) < 2 * RECEIVE));
    }
}

/// What DriverShared says for as long as the device is active.
pub struct Shared {
    pub queues: [Option<Queue>; TRANSMIT + RECEIVE],
    /// Queues of each kind.
    pub transmit: usize,
    pub receive: usize,
    pub mtu: u16,
    /// Buffers of a frame, at most; 0: as many as it needs.
    pub most_buffers: u16,
    pub auto_mask: bool,
    /// Vectors.
    pub vectors: u8,
    pub event_vector: u32,
    /// As it was read, for what commands read again.
    pub bytes: [u8; LEN],
}

/// A vector as a bit.
fn vector_bit(index: u8, count: u8) -> u32 {
    let exists = index < count && usize::from(index) < VECTORS;
    if exists { 1 << index } else { 0 }
}

impl Shared {
    /// Reads and checks all; `None`: the device cannot work with that.
    pub fn read(map: &Arc<Map>, address: u64) -> Option<Self> {
        let bytes: [u8; LEN] = copy(map, address)?;
        let words = Words(&bytes);
        let (transmit, receive) = (usize::from(words.u8(0x3e)), usize::from(words.u8(0x3f)));
        let counts = (1..=TRANSMIT).contains(&transmit) && (1..=RECEIVE).contains(&receive);
        let mtu = u16::try_from(words.u32(0x38)).ok().filter(|mtu| MTU.contains(mtu))?;
        if words.u32(0) != MAGIC || !counts {
            return None;
        }
        let vectors = words.u8(0x51);
        let mut shared = Self {
            queues: [None; TRANSMIT + RECEIVE],
            transmit,
            receive,
            mtu,
            most_buffers: words.u16(0x3c),
            auto_mask: words.u8(0x50) != 0,
            vectors,
            event_vector: vector_bit(words.u8(0x52), vectors),
            bytes,
        };
        shared.read_queues(map, words.u64(0x28), words.u32(0x34))?;
        Some(shared)
    }

    /// Transmit queues first, then receive queues.
    fn read_queues(&mut self, map: &Arc<Map>, address: u64, len: u32) -> Option<()> {
        let count = self.transmit + self.receive;
        if (len as usize) < count * QUEUE || !address.is_multiple_of(16) {
            return None;
        }
        for (n, place) in self.queues.iter_mut().take(count).enumerate() {
            let address = address.checked_add((n * QUEUE) as u64)?;
            let bytes: [u8; QUEUE] = copy(map, address)?;
            let words = Words(&bytes);
            let mut queue = Queue {
                address,
                ring: Place::new(map, words.u64(0x10), words.u32(0x38), MOST)?,
                vector: vector_bit(words.u8(0x48), self.vectors),
                ..Queue::default()
            };
            let (base, size) = (words.u64(0x20), words.u32(0x40));
            queue.completions = Place::new(map, base, size, MOST_COMPLETIONS)?;
            if let Some(number) = n.checked_sub(self.transmit) {
                if words.u32(0x3c) > 0 {
                    queue.second = Place::new(map, words.u64(0x18), words.u32(0x3c), MOST)?;
                }
                let name = |ring| u16::try_from(ring * self.receive + number).ok();
                queue.names = [name(0)?, name(1)?];
            }
            *place = Some(queue);
        }
        Some(())
    }

    /// Moderation levels of its vectors.
    pub fn levels(&self) -> &[u8] {
        self.bytes.get(LEVELS..LEVELS + VECTORS).unwrap_or_default()
    }

    /// Its transmit queues, in the order of their numbers.
    pub fn senders(&self) -> impl Iterator<Item = Queue> {
        self.queues.iter().flatten().copied().take(self.transmit)
    }

    /// Its receive queues.
    pub fn receivers(&self) -> impl Iterator<Item = Queue> {
        self.queues.iter().flatten().copied().skip(self.transmit)
    }
}
