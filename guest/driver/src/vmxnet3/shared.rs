//! The area that driver and device share beside the rings: what the device is to do (read when it
//! is activated, or by command), and a description of each queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use crate::chip::{ALIGN, Irq, Options, Shared};
use crate::notify::threshold::ThresholdFields;
use vmlan_transport::memory::{Pool, Ram, View};

/// Offsets in bytes. The descriptions of the queues, of 256 bytes each, lie behind the area itself.
pub(super) mod at {
    pub(crate) const MAGIC: usize = 0x000;
    pub(crate) const DRIVER: usize = 0x008;
    pub(crate) const GUEST: usize = 0x00c;
    pub(crate) const REVISION: usize = 0x010;
    pub(crate) const UPT: usize = 0x014;
    pub(crate) const FEATURES: usize = 0x018;
    pub(crate) const QUEUES: usize = 0x028;
    pub(crate) const QUEUES_LEN: usize = 0x034;
    pub(crate) const MTU: usize = 0x038;
    /// Most buffers of a frame (16 bits), transmit queues, receive queues (8 bits each).
    pub(crate) const COUNTS: usize = 0x03c;
    /// Messages mask themselves, number of vectors, vector of events, and moderation of 25 vectors
    /// (8 bits each).
    pub(crate) const INTERRUPTS: usize = 0x050;
    pub(crate) const INTERRUPT_CONTROL: usize = 0x06c;
    pub(crate) const RX_MODE: usize = 0x078;
    pub(crate) const EVENTS: usize = 0x2b8;
    pub(super) const TX: usize = 0x400;
    pub(super) const RX: usize = 0x500;
    pub(super) const END: usize = 0x600;
}

/// Offsets in the description of a queue. Where the two kinds differ, the second is receive's.
pub(super) mod queue {
    pub(super) const DEFERRED: usize = 0x00;
    pub(super) const UPDATE_RX_PROD: usize = 0x00; // A byte.
    pub(super) const THRESHOLD: usize = 0x04;
    pub(crate) const RING: usize = 0x10;
    pub(crate) const RING2: usize = 0x18; // Transmit: the ring of copied headers.
    pub(crate) const COMPLETIONS: usize = 0x20;
    pub(crate) const SIZE: usize = 0x38;
    pub(crate) const SIZE2: usize = 0x3c;
    pub(crate) const COMPLETIONS_SIZE: usize = 0x40;
    pub(crate) const VECTOR: usize = 0x48;
    pub(super) const STOPPED: usize = 0x50;
    pub(super) const COUNTERS: usize = 0x58;
}

const MAGIC: u32 = 0xbabe_fee1;
const GUEST_64: u32 = 2; // A 64-bit guest of unknown kind.
const LEVEL: u32 = 8; // Moderation is up to the device.
/// Bits of the features: received checksums, tags taken off, packets that are not cut.
const CHECKSUM: u32 = 1;
pub(super) const STRIP_TAGS: u32 = 4;
const LRO: u32 = 8;
/// What is received: unicast, by the list, broadcast, all multicast, everything.
const RX_MODE: u32 = 1 | 2 | 4;
const RX_MODE_ALL: u32 = RX_MODE | 8 | 0x10;

/// What the device counts of a queue since it was activated: frames and their bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Those that it has cut, or joined.
    pub large: [u64; 2],
    /// Unicast.
    pub unicast: [u64; 2],
    /// Multicast.
    pub multicast: [u64; 2],
    /// Broadcast.
    pub broadcast: [u64; 2],
    /// Frames lost: for errors and dropped, or (of reception) for lack of buffers and for errors.
    pub lost: [u64; 2],
}

/// The area.
#[derive(Debug)]
pub struct Area {
    words: View<AtomicU32>,
    gpa: u64,
    fence: bool,
}

impl Area {
    fn word(&self, at: usize) -> &AtomicU32 {
        &self.words[at / 4]
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        u32::from_le(self.word(at).load(Acquire))
    }

    pub(super) fn set(&self, at: usize, value: u32) {
        self.word(at).store(value.to_le(), Relaxed);
    }

    fn set_wide(&self, at: usize, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.set(at, u32::from_le_bytes([a, b, c, d]));
        self.set(at + 4, u32::from_le_bytes([e, f, g, h]));
    }

    /// Guest-physical address.
    pub(super) fn base(&self) -> u64 {
        self.gpa
    }

    /// Writes all of it, but for the queues' rings: for a device that is to be activated. A frame
    /// has `most` buffers at most.
    pub(super) fn fill(&self, options: &Options, most: u16) {
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        self.set(at::MAGIC, MAGIC);
        self.set(at::DRIVER, 1);
        self.set(at::GUEST, GUEST_64);
        self.set(at::REVISION, 1);
        self.set(at::UPT, 1);
        let checksum = if options.checksum { CHECKSUM } else { 0 };
        self.set(at::FEATURES, checksum | if options.lro { LRO } else { 0 });
        self.set_wide(at::QUEUES, self.gpa + at::TX as u64);
        self.set(at::QUEUES_LEN, 2 * 0x100);
        self.set(at::MTU, options.mtu.max(1500).into());
        self.set(at::COUNTS, u32::from(most) | 1 << 16 | 1 << 24);
        // Events have a vector of their own if there is more than one.
        let vectors = if options.irq == Irq::Msix { 2 } else { 1 };
        self.set(at::INTERRUPTS, 1 | vectors << 8 | (vectors - 1) << 16 | LEVEL << 24);
        for n in 1..=6 {
            self.set(at::INTERRUPTS + 4 * n, LEVEL * 0x0101_0101);
        }
        self.set_interrupts(false);
        self.set(at::RX_MODE, if options.promisc { RX_MODE_ALL } else { RX_MODE });
    }

    /// Linux's driver says this, and leaves all to the masks.
    pub(super) fn set_interrupts(&self, on: bool) {
        self.set(at::INTERRUPT_CONTROL, u32::from(!on));
    }

    /// The rings of the transmit queue: addresses and numbers of descriptors.
    pub(super) fn set_tx(&self, ring: (u64, u16), completions: (u64, u16)) {
        self.set_queue(at::TX, [ring, (0, 0), completions]);
    }

    /// The rings of the receive queue.
    pub(super) fn set_rx(&self, rings: [(u64, u16); 2], completions: (u64, u16)) {
        self.set_queue(at::RX, [rings[0], rings[1], completions]);
    }

    /// What the device has counted of both queues, transmit's first, when it was last asked.
    pub(super) fn counters(&self) -> [Counters; 2] {
        [at::TX, at::RX].map(|queue| {
            let at = |n: usize| queue + queue::COUNTERS + 8 * n;
            let wide = |n| u64::from(self.get(at(n))) | u64::from(self.get(at(n) + 4)) << 32;
            Counters {
                large: [wide(0), wide(1)],
                unicast: [wide(2), wide(3)],
                multicast: [wide(4), wide(5)],
                broadcast: [wide(6), wide(7)],
                lost: [wide(8), wide(9)],
            }
        })
    }

    fn set_queue(&self, at: usize, rings: [(u64, u16); 3]) {
        let addresses = [queue::RING, queue::RING2, queue::COMPLETIONS];
        let sizes = [queue::SIZE, queue::SIZE2, queue::COMPLETIONS_SIZE];
        for ((address, size), ring) in addresses.into_iter().zip(sizes).zip(rings) {
            self.set_wide(at + address, ring.0);
            self.set(at + size, ring.1.into());
        }
        self.set(at + queue::VECTOR, 0);
    }
}

impl Shared for Area {
    fn ram_bytes() -> usize {
        at::END + ALIGN
    }

    fn new(ram: &Arc<Ram>, low: &mut Pool, options: &Options) -> Self {
        let at = low.take(at::END, ALIGN);
        Self { words: ram.view(at, at::END / 4), gpa: ram.guest_phys(at), fence: options.fence }
    }

    /// A device that finds a descriptor wrong stops its queue.
    fn is_sound(&self) -> bool {
        [at::TX, at::RX].iter().all(|queue| self.get(queue + queue::STOPPED) & 0xff == 0)
    }
}

impl ThresholdFields for Area {
    #[inline]
    fn fence(&self) {
        if self.fence {
            fence(SeqCst);
        }
    }

    #[inline]
    fn deferred(&self) -> u32 {
        u32::from_le(self.word(at::TX + queue::DEFERRED).load(Relaxed))
    }

    #[inline]
    fn set_deferred(&self, frames: u32) {
        self.set(at::TX + queue::DEFERRED, frames);
    }

    #[inline]
    fn threshold(&self) -> u32 {
        u32::from_le(self.word(at::TX + queue::THRESHOLD).load(Relaxed))
    }

    #[inline]
    fn update_rx_prod(&self) -> bool {
        u32::from_le(self.word(at::RX + queue::UPDATE_RX_PROD).load(Relaxed)) & 0xff != 0
    }
}
