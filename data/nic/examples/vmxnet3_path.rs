//! Cost of the vmxnet3's data path for each frame:
//! `vmxnet3_path [BYTES] [ROUNDS] [FRAMES] [BURST]`.
//!
//! Guest and device take turns in one thread, as in `r8169_path` (for callgrind: everything is in
//! the cache). One descriptor and one report for each frame. Prints the fastest of the rounds,
//! since the machine is shared.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

use vmlan_frame::{Batch, Mac, Offloads, Sink};
use vmlan_nic::chip::{Config, Host, Nic, PciFunction, Space};
use vmlan_nic::vmxnet3::Vmxnet3;
use vmlan_ram::{Map, Mapping, Region, Window};

const SIZE: u32 = 256;
const STRIDE: u64 = 2048 + 64;
/// Places behind a guest's base: rings, their reports, buffers.
const TX: u64 = 0x1000;
const TX_DONE: u64 = 0x2000;
const RX: u64 = 0x3000;
const RX_DONE: u64 = 0x4000;
const BUFFERS: u64 = 0x1_0000;
const BASE: [u64; 2] = [0x10_0000, 0x20_0000];

/// Generation bits: of descriptors (in word 2), of reports (in word 3).
const TX_GENERATION: u32 = 1 << 14;
const GENERATION: u32 = 1 << 31;
/// Of a transmit descriptor, word 3: the frame ends, and is to be reported.
const WHOLE: u32 = 3 << 12;

struct Quiet(Instant);

impl Host for Quiet {
    fn now(&self) -> u64 {
        ns(self.0)
    }
    fn set_timer(&self, _: u64) {}
    fn raise(&self) {}
    fn doorbell(&self) {}
}

fn memory(size: u64) -> Arc<Map> {
    let file = tempfile::tempfile_in("/dev/shm").expect("file");
    file.set_len(size).expect("size");
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, size).expect("map"));
    Arc::new(
        Map::new(vec![Region::new(0, size, 0, 0, mapping).expect("region")], None).expect("map"),
    )
}

/// A place in a ring, and what its generation bit is there.
#[derive(Clone, Copy)]
struct Cursor {
    at: u32,
    set: bool,
}

impl Cursor {
    const START: Self = Self { at: 0, set: true };

    fn place(self) -> usize {
        16 * self.at as usize
    }

    fn step(&mut self) {
        self.at = (self.at + 1) % SIZE;
        self.set ^= self.at == 0;
    }
}

/// Our guest's half of one ring, with buffers for all descriptors.
struct Ring {
    map: Arc<Map>,
    desc: Window,
    done: Window,
    buffers: u64,
    next: Cursor,
    report: Cursor,
    under_way: u32,
}

impl Ring {
    fn new(map: &Arc<Map>, base: u64, desc: u64, done: u64) -> Self {
        let ring = |at| map.window(base + at, 16 * SIZE as usize, 16).expect("inside");
        let (desc, done, buffers) = (ring(desc), ring(done), base + BUFFERS);
        let (next, report) = (Cursor::START, Cursor::START);
        Self { map: map.clone(), desc, done, buffers, next, report, under_way: 0 }
    }

    fn buffer(&self, at: u32) -> u64 {
        self.buffers + STRIDE * u64::from(at)
    }

    /// Hands the next descriptor over.
    fn put(&mut self, generation: u32, length: u32, command: u32) {
        let at = self.next.place();
        self.desc.set_u64(at, self.buffer(self.next.at), Relaxed);
        self.desc.set_u32(at + 12, command, Relaxed);
        let generation = if self.next.set { generation } else { 0 };
        self.desc.set_u32(at + 8, length | generation, Release);
        self.next.step();
        self.under_way += 1;
    }

    /// The descriptor of the next report, if it has come.
    fn reported(&mut self) -> Option<u32> {
        let at = self.report.place();
        if (self.done.u32(at + 12, Acquire) & GENERATION != 0) != self.report.set {
            return None;
        }
        self.report.step();
        self.under_way -= 1;
        Some(self.done.u32(at, Relaxed) & 0xfff)
    }

    /// Sends a burst as far as there is room.
    fn send(&mut self, frame: &[u8], burst: u32) {
        while self.reported().is_some() {}
        for _ in 0..burst {
            if self.under_way + 1 == SIZE {
                return;
            }
            let to = self.buffer(self.next.at);
            self.map.slice_mut(to, frame.len()).expect("inside").write(0, frame);
            self.put(TX_GENERATION, u32::try_from(frame.len()).expect("a length"), WHOLE);
        }
    }

    /// Posts all buffers but one.
    fn fill(&mut self) {
        while self.under_way + 1 < SIZE {
            self.put(GENERATION, 2048, 0);
        }
    }

    /// Takes what was received, and posts its buffers again.
    fn reap(&mut self) {
        let mut sum = 0u64;
        while let Some(at) = self.reported() {
            let bytes = self.map.slice(self.buffer(at), 14).and_then(|s| s.read_array::<14>());
            sum += u64::from(bytes.map_or(0, |b| b[0]));
        }
        self.fill();
        std::hint::black_box(sum);
    }
}

struct To<'a> {
    chip: &'a Vmxnet3,
    list: &'a [u16],
    spent: u64,
}

impl Sink for To<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let start = Instant::now();
        let n = batch.len();
        assert!(batch.needs() == Offloads::NONE);
        let done = push_rx(self.chip, batch, &self.list[..n]);
        (done..n).for_each(|i| batch.hold(i));
        self.spent += ns(start);
    }
}

fn ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(0)
}

#[inline(never)]
fn push_rx(chip: &Vmxnet3, batch: &Batch<'_>, list: &[u16]) -> usize {
    chip.push(batch, list)
}

#[inline(never)]
fn pull_tx(chip: &Vmxnet3, batch: &mut Batch<'static>, sink: &mut dyn Sink) -> usize {
    chip.pull(batch, 256, sink)
}

/// Takes the mask of vector 0 away, which has masked itself.
fn unmask(chip: &Vmxnet3) {
    chip.write(Space::Bar(0), 0, &[0; 4]);
}

/// A chip that its driver has brought up, with its shared area at `base` and the descriptions of
/// one transmit and one receive queue behind it.
fn chip(map: &Arc<Map>, base: u64) -> Vmxnet3 {
    let area = map.window(base, 0x600, 16).expect("inside");
    let words: [(usize, u32); 7] = [
        (0x00, 0xbabe_fee1),
        (0x10, 1),
        (0x14, 1),
        (0x34, 512),
        (0x38, 1500),
        // One queue of each kind; one vector, which masks itself; what is received.
        (0x3c, 0x0101_0000),
        (0x50, 0x0000_0101),
    ];
    words.iter().for_each(|(at, value)| area.set_u32(*at, *value, Relaxed));
    area.set_u32(0x78, 7, Relaxed);
    area.set_u64(0x28, base + 0x400, Relaxed);
    for (queue, ring, done) in [(0x400, TX, TX_DONE), (0x500, RX, RX_DONE)] {
        area.set_u64(queue + 0x10, base + ring, Relaxed);
        area.set_u64(queue + 0x20, base + done, Relaxed);
        area.set_u32(queue + 0x38, SIZE, Relaxed);
        area.set_u32(queue + 0x40, SIZE, Relaxed);
    }
    let config = Config { mac: Mac::new([2; 6]), ..Config::default() };
    let chip = Vmxnet3::new(config, Arc::new(Quiet(Instant::now())));
    drop(chip.set_map(map.clone()));
    // Memory and bus master; MSI-X.
    chip.write(Space::Config, 4, &[6, 0]);
    chip.write(Space::Config, 0x9e, &[24, 0x80]);
    chip.set_link(true);
    let low = u32::try_from(base).expect("below 4 GiB");
    for (at, value) in [(0x00, 4), (0x08, 1), (0x10, low), (0x18, 0), (0x20, 0xcafe_0000)] {
        chip.write(Space::Bar(1), at, &u32::to_le_bytes(value));
    }
    let mut answer = [0; 4];
    chip.read(Space::Bar(1), 0x20, &mut answer);
    assert_eq!(answer, [0; 4], "it is activated");
    unmask(&chip);
    chip
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize, or: usize| args.get(n).map_or(or, |s| s.parse().expect("a number"));
    let (bytes, rounds, goal) = (number(1, 60), number(2, 10), number(3, 200_000));
    let burst = u32::try_from(number(4, 32)).expect("a burst");
    let map = memory(0x40_0000);
    let mut a = Ring::new(&map, BASE[0], TX, TX_DONE);
    let mut b = Ring::new(&map, BASE[1], RX, RX_DONE);
    b.fill();
    let [tx, rx] = BASE.map(|base| chip(&map, base));
    let mut frame = vec![0; bytes];
    frame[..12].copy_from_slice(&[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4]);
    let mut batch = Batch::new();
    let list: Vec<u16> = (0..256).collect();
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        let (mut frames, mut pulling, mut pushing) = (0usize, 0, 0);
        while frames < goal {
            a.send(&frame, burst);
            b.reap();
            let start = Instant::now();
            let mut to = To { chip: &rx, list: &list, spent: 0 };
            frames += pull_tx(&tx, &mut batch, &mut to);
            pushing += to.spent;
            pulling += ns(start) - to.spent;
            // As interrupt handlers do.
            unmask(&tx);
            unmask(&rx);
        }
        let per = |ns: u64| ns as f64 / frames as f64;
        let now = (per(pulling), per(pushing));
        if now.0 + now.1 < best.0 + best.1 {
            best = now;
        }
    }
    println!("{bytes} B: pull {:.1} ns, push {:.1} ns a frame", best.0, best.1);
}
