//! The body of the fuzz target `virtqueue`: a guest's memory and what is done to it. Kept inputs
//! are replayed as a plain test.
//!
//! An input is a byte of configuration, a byte that counts the steps, the steps, and the guest's
//! memory from address 0 on (the rest of it is zero):
//!
//! | | meaning |
//! | --- | --- |
//! | first byte, bits 0 to 2 | log2 of the ring's size |
//! | bit 3 | packed rings |
//! | bit 4 | header of 10 bytes |
//! | bits 5, 6, 7 | `EVENT_IDX`; `MRG_RXBUF`; no `INDIRECT_DESC` |
//! | a step, `0xxx_nnnn` | pull up to n frames; x: hold every x-th |
//! | a step, `10sn_nnnn` | push n frames, s: long ones |
//! | a step, `11nn_nnnn` | n more buffers become available, in both rings |
//!
//! Descriptors are at 0, the transmit side's avail ring at [`AVAIL`]; its used ring, and the
//! receive side's avail ring, follow at the next multiples of 0x1000. Packed rings have their event
//! suppression structures there, and the receive side's descriptors are at [`RECEIVE`]. Buffers may
//! lie anywhere, also over rings.
#![allow(clippy::expect_used, clippy::panic)]

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::{Batch, Counters, Gso, Offload, Sink};
use vmlan_ram::{Map, Mapping, Region, Slice, Window};

use crate::virtio::{Budget, Features, NetRx, NetTx, Rings, feature};

/// Where the transmit side's avail ring is.
pub const AVAIL: u64 = 0x1000;
/// Where the receive side's packed ring is.
pub const RECEIVE: u64 = 0x800;
const LEN: usize = 0x1_0000;
const MEMORY: u64 = LEN as u64;
/// The memory's two regions touch here: buffers that cross are split.
const BORDER: u64 = 0x8000;

/// What outlives an input.
struct World {
    map: Arc<Map>,
    batch: Batch<'static>,
}

fn world() -> RefCell<World> {
    let region = |gpa: u64, len: u64| {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let file = file.expect("a temporary file");
        file.set_len(len).expect("its length");
        let mapping = Arc::new(Mapping::new(file.as_fd(), 0, len).expect("a mapping"));
        Region::new(gpa, len, gpa, 0, mapping).expect("a region")
    };
    let regions = vec![region(0, BORDER), region(BORDER, MEMORY - BORDER)];
    let map = Arc::new(Map::new(regions, None).expect("a map"));
    RefCell::new(World { map, batch: Batch::new() })
}

thread_local! {
    static WORLD: RefCell<World> = world();
}

/// Holds every n-th frame, and reads all the others.
struct Reader {
    every: usize,
    bytes: usize,
}

impl Sink for Reader {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let Some(frame) = batch.frame(i) else { panic!("no frame {i}") };
            let mut copy = vec![0; frame.len];
            assert_eq!(frame.copy_to(&mut copy), frame.len, "a length that is not there");
            self.bytes += copy.len();
            if self.every > 0 && i % self.every == 0 {
                batch.hold(i);
            }
        }
    }
}

/// Feeds `data` through the data path of both sides.
///
/// # Panics
/// If a side does more than it was asked for, or completes what was not made available.
pub fn virtqueue(data: &[u8]) {
    let [config, count, rest @ ..] = data else { return };
    let (steps, memory) = rest.split_at(rest.len().min(usize::from(*count)));
    WORLD.with_borrow_mut(|world| {
        let mut zeros = vec![0; LEN];
        let n = memory.len().min(zeros.len());
        let (low, _) = zeros.split_at_mut(n);
        low.copy_from_slice(memory.get(..n).unwrap_or_default());
        for (gpa, part) in (0..).step_by(0x8000).zip(zeros.chunks(0x8000)) {
            world.map.slice_mut(gpa, part.len()).expect("memory").write(0, part);
        }
        run(world, *config, steps);
    });
}

fn features(config: u8) -> Features {
    let pick = |bit: u8, bits: u64| if config & bit != 0 { bits } else { 0 };
    let always = feature::CSUM | feature::HOST_TSO4 | feature::GUEST_CSUM;
    Features(
        always
            | if config & 16 == 0 { feature::VERSION_1 } else { 0 }
            | pick(8, feature::RING_PACKED)
            | pick(32, feature::EVENT_IDX)
            | pick(64, feature::MRG_RXBUF)
            | if config & 128 == 0 { feature::INDIRECT_DESC } else { 0 },
    )
}

/// The driver's index of one ring.
struct Driver {
    desc: Window,
    avail: Window,
    packed: bool,
    size: u16,
    /// Descriptors made available in a packed ring.
    given: u16,
}

impl Driver {
    fn new(map: &Arc<Map>, rings: Rings, packed: bool) -> Option<Self> {
        let (size, bytes) = (rings.size, 16 * usize::from(rings.size));
        let desc = map.window(rings.desc, bytes, 16)?;
        Some(Self { desc, avail: map.window(rings.avail, 4, 4)?, packed, size, given: 0 })
    }

    fn announce(&mut self, n: u16) {
        if self.packed {
            (0..n).for_each(|_| self.announce_one());
        } else {
            let idx = self.avail.u16(2, Ordering::Relaxed);
            self.avail.set_u16(2, idx.wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// As the flags stand there, but for AVAIL and USED.
    fn announce_one(&mut self) {
        let at = 16 * usize::from(self.given % self.size) + 14;
        let even = (self.given / self.size).is_multiple_of(2);
        let lap = if even { 1 << 7 } else { 1 << 15 };
        let flags = self.desc.u16(at, Ordering::Relaxed) & !(1 << 7 | 1 << 15);
        self.desc.set_u16(at, flags | lap, Ordering::Release);
        self.given = (self.given + 1) % (2 * self.size);
    }
}

fn run(world: &mut World, config: u8, steps: &[u8]) {
    let size = 1 << (config & 7);
    let packed = config & 8 != 0;
    let rings = |desc: u64, avail: u64| {
        let desc = if packed { desc } else { 0 };
        Rings { size, desc, avail, used: avail + 0x1000, log: None, base: 1 << 15 }
    };
    let (tx_rings, rx_rings) = (rings(0, AVAIL), rings(RECEIVE, AVAIL + 0x2000));
    let (mut tx, mut rx) = (NetTx::new(), NetRx::new());
    tx.set_map(world.map.clone());
    rx.set_map(world.map.clone());
    tx.set_features(features(config));
    rx.set_features(features(config));
    let started = tx.start(0, tx_rings).is_ok() && rx.start(0, rx_rings).is_ok();
    assert!(started && tx.enable(0, true).is_ok() && rx.enable(0, true).is_ok());
    let drivers = [tx_rings, rx_rings].map(|r| Driver::new(&world.map, r, packed));
    let [Some(mut tx_driver), Some(mut rx_driver)] = drivers else { panic!("rings lie in memory") };
    let counters = Counters::default();
    for step in steps {
        let n = step & 0x1f;
        match step >> 6 {
            0 | 1 => {
                let every = usize::from(step >> 4 & 7);
                pull(&mut tx, world, usize::from(n & 15), every, &counters);
            }
            2 => push(&mut rx, n, step & 0x20 != 0, &counters),
            _ => {
                tx_driver.announce((step & 0x3f).into());
                rx_driver.announce((step & 0x3f).into());
            }
        }
    }
    assert!(counters.faults.get() <= 2, "a queue breaks once");
}

fn pull(tx: &mut NetTx, world: &mut World, limit: usize, every: usize, counters: &Counters) {
    let mut reader = Reader { every, bytes: 0 };
    tx.disarm();
    let before = counters.input.frames.get();
    tx.pull(&mut world.batch, limit, &mut reader, counters);
    assert!(counters.input.frames.get() - before <= limit as u64, "more than asked for");
    assert!(world.batch.is_empty(), "the batch was not given back");
    tx.arm();
}

fn push(rx: &mut NetRx, n: u8, long: bool, counters: &Counters) {
    let bytes = [0x5a; 5000];
    let len = if long { 4000 } else { 46 };
    let tcp = Offload {
        needs_csum: true,
        gso: if long { Gso::Tcp4 } else { Gso::None },
        gso_size: 1000,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
        ..Offload::NONE
    };
    let mut batch = Batch::new();
    for i in 0..u16::from(n) {
        let body = [Slice::from_bytes(bytes.get(..len + usize::from(i)).unwrap_or_default())];
        let _ = batch.add_parts(&[0xa5; 54], body, tcp);
    }
    let list: Vec<u16> = (0..n.into()).collect();
    let dealt = rx.push(&batch, &list, counters, &mut Budget::default());
    assert!(dealt <= list.len());
    rx.room(list.len());
    rx.want_room();
}
