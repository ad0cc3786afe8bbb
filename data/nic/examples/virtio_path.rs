//! Cost of the data path for each frame: `virtio_path local|cross [BYTES] [ROUNDS] [packed]`.
//!
//! `local`: guest and device take turns in one thread (for callgrind: everything is in the cache).
//! `cross`: the guest runs on another core; what is timed are the device's calls that moved frames.
//! Prints the fastest of the rounds, since the machine is shared.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use vmlan_frame::{Batch, Counters, Sink};
use vmlan_nic::virtio::{Budget, Features, NetRx, NetTx, Rings, feature};
use vmlan_ram::{Map, Mapping, Region, Window};

const SIZE: u16 = 256;
const BURST: u16 = 32;
const STRIDE: u64 = 2304;

/// Our guest's half of one ring, with a buffer for each descriptor.
struct Ring {
    rings: Rings,
    map: Arc<Map>,
    desc: Window,
    avail: Window,
    used: Window,
    buffers: u64,
    posted: u16,
    seen: u16,
    write: bool,
    packed: bool,
}

/// AVAIL and USED of the descriptor at a position of a packed ring.
fn lap(position: u16, used: bool) -> u64 {
    let first = (position / SIZE).is_multiple_of(2);
    (if first { 1 << 7 } else { 0 } | if first == used { 1 << 15 } else { 0 }) << 48
}

impl Ring {
    fn new(map: &Arc<Map>, at: u64, write: bool, packed: bool) -> Self {
        let n = u64::from(SIZE);
        let (desc, avail, used) = (at, at + 0x2000, at + 0x3000);
        let rings = Rings { size: SIZE, desc, avail, used, log: None, base: 0 };
        let window = |at, len| map.window(at, len, 4).expect("inside");
        Self {
            rings,
            map: map.clone(),
            desc: window(desc, 16 * usize::from(SIZE)),
            avail: window(avail, 8 + 2 * usize::from(SIZE)),
            used: window(used, 8 + 8 * usize::from(SIZE)),
            buffers: at + 0x1_0000 + n,
            posted: 0,
            seen: 0,
            write,
            packed,
        }
    }

    /// Up to which position buffers were used.
    fn used(&self) -> u16 {
        if !self.packed {
            return self.used.u16(2, Ordering::Acquire);
        }
        let mut at = self.seen;
        while at != self.posted {
            let word = self.desc.u64(16 * usize::from(at & (SIZE - 1)) + 8, Ordering::Acquire);
            if word & (1 << 63 | 1 << 55) != lap(at, true) {
                break;
            }
            at = at.wrapping_add(1);
        }
        at
    }

    fn free(&mut self) -> u16 {
        if self.packed {
            self.seen = self.used();
        }
        SIZE - self.posted.wrapping_sub(self.used())
    }

    /// Posts `n` buffers of `len` bytes.
    fn post(&mut self, n: u16, len: usize, frame: &[u8]) {
        for k in 0..n {
            let slot = self.posted.wrapping_add(k) & (SIZE - 1);
            let addr = self.buffers + STRIDE * u64::from(slot);
            if !self.write {
                self.map.slice_mut(addr, len).expect("inside").write(0, frame);
            }
            let at = 16 * usize::from(slot);
            self.desc.set_u64(at, addr, Ordering::Relaxed);
            if self.packed {
                let write = if self.write { 2 << 48 } else { 0 };
                let flags = write | lap(self.posted.wrapping_add(k), false);
                let word = len as u64 | u64::from(slot) << 32 | flags;
                self.desc.set_u64(at + 8, word, Ordering::Release);
            } else {
                let write = if self.write { 2 << 32 } else { 0 };
                self.desc.set_u64(at + 8, len as u64 | write, Ordering::Relaxed);
                self.avail.set_u16(4 + 2 * usize::from(slot), slot, Ordering::Relaxed);
            }
        }
        self.posted = self.posted.wrapping_add(n);
        if !self.packed {
            self.avail.set_u16(2, self.posted, Ordering::Release);
        }
    }

    /// Looks at what was received; returns how many.
    fn reap(&mut self) -> u16 {
        let n = self.used().wrapping_sub(self.seen);
        let mut sum = 0;
        for _ in 0..n {
            let slot = usize::from(self.seen & (SIZE - 1));
            let id = if self.packed {
                self.desc.u16(16 * slot + 12, Ordering::Relaxed).into()
            } else {
                self.used.u32(4 + 8 * slot, Ordering::Relaxed)
            };
            let addr = self.buffers + STRIDE * u64::from(id);
            sum += self
                .map
                .slice(addr + 12, 14)
                .and_then(|s| s.read_array::<14>())
                .map_or(0, |b| b[0]) as u32;
            self.seen = self.seen.wrapping_add(1);
        }
        std::hint::black_box(sum);
        n
    }
}

struct To<'a> {
    rx: &'a mut NetRx,
    counters: &'a Counters,
    list: &'a [u16],
    spent: u64,
}

impl Sink for To<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let start = Instant::now();
        let n = batch.len();
        let done = deliver_rx(self.rx, batch, &self.list[..n], self.counters);
        for i in done..n {
            batch.hold(i);
        }
        self.spent += ns(start);
    }
}

fn ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(0)
}

#[inline(never)]
fn deliver_rx(rx: &mut NetRx, batch: &Batch<'_>, list: &[u16], counters: &Counters) -> usize {
    rx.push(batch, list, counters, &mut Budget::default())
}

#[inline(never)]
fn pull_tx(
    tx: &mut NetTx,
    batch: &mut Batch<'static>,
    sink: &mut dyn Sink,
    counters: &Counters,
) -> usize {
    tx.pull(batch, 256, sink, counters)
}

fn pin(core: usize) {
    let tid = std::fs::read_link("/proc/thread-self").expect("proc");
    let tid = tid.file_name().expect("tid").to_owned();
    let core = core.to_string();
    let _ = std::process::Command::new("taskset").args(["-pc", &core]).arg(tid).output();
}

/// The guest's turn: sends what it can, takes what came.
fn guest(a: &mut Ring, b: &mut Ring, len: usize, frame: &[u8]) {
    let n = a.free().min(BURST);
    if n == BURST {
        a.post(n, len, frame);
    }
    let n = b.reap();
    if n > 0 {
        b.post(n, 2048, &[]);
    }
}

/// The guest's memory, its two rings, and the device's two sides on them.
fn world(packed: bool) -> (Ring, Ring, NetTx, NetRx) {
    let file = tempfile::tempfile_in("/dev/shm").expect("file");
    let size = 0x40_0000;
    file.set_len(size).expect("size");
    let mapping = Arc::new(Mapping::new(file.as_fd(), 0, size).expect("map"));
    let region = Region::new(0, size, 0, 0, mapping).expect("region");
    let map = Arc::new(Map::new(vec![region], None).expect("map"));
    let (a, mut b) = (Ring::new(&map, 0, false, packed), Ring::new(&map, 0x20_0000, true, packed));
    let layout = if packed { feature::RING_PACKED } else { 0 };
    let bits = feature::VERSION_1 | feature::MRG_RXBUF | feature::IN_ORDER | layout;
    let (mut tx, mut rx) = (NetTx::new(), NetRx::new());
    tx.set_map(map.clone());
    rx.set_map(map);
    tx.set_features(Features(bits));
    rx.set_features(Features(bits));
    tx.start(0, a.rings).expect("tx");
    rx.start(0, b.rings).expect("rx");
    tx.enable(0, true).expect("tx");
    rx.enable(0, true).expect("rx");
    b.post(SIZE, 2048, &[]);
    (a, b, tx, rx)
}

/// Moves 200,000 frames: nanoseconds of pull and of push for each, and the mean batch.
fn round(
    tx: &mut NetTx,
    rx: &mut NetRx,
    batch: &mut Batch<'static>,
    mut turn: impl FnMut(),
) -> (f64, f64, f64) {
    let (counters, list): (Counters, Vec<u16>) = (Counters::default(), (0..256).collect());
    let (mut frames, mut pulling, mut pushing, mut pulls) = (0usize, 0, 0, 0u32);
    while frames < 200_000 {
        turn();
        let start = Instant::now();
        let mut to = To { rx, counters: &counters, list: &list, spent: 0 };
        let n = pull_tx(tx, batch, &mut to, &counters);
        if n > 0 {
            pushing += to.spent;
            pulling += ns(start) - to.spent;
            frames += n;
            pulls += 1;
        }
    }
    let per = |ns: u64| ns as f64 / frames as f64;
    (per(pulling), per(pushing), frames as f64 / f64::from(pulls))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let cross = args.get(1).is_some_and(|m| m == "cross");
    let bytes: usize = args.get(2).map_or(60, |s| s.parse().expect("bytes"));
    let rounds: usize = args.get(3).map_or(10, |s| s.parse().expect("rounds"));
    let packed = args.get(4).is_some_and(|word| word == "packed");
    let (mut a, mut b, mut tx, mut rx) = world(packed);
    let frame = vec![0u8; 12 + bytes];
    let mut batch = Batch::new();
    let mut times = Vec::new();
    if cross {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        pin(1);
        let thread = std::thread::spawn(move || {
            pin(0);
            while !seen.load(Ordering::Relaxed) {
                guest(&mut a, &mut b, frame.len(), &frame);
            }
        });
        times.extend((0..rounds).map(|_| round(&mut tx, &mut rx, &mut batch, || ())));
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("guest");
    } else {
        let mut turn = || guest(&mut a, &mut b, frame.len(), &frame);
        times.extend((0..rounds).map(|_| round(&mut tx, &mut rx, &mut batch, &mut turn)));
    }
    let best = times.into_iter().min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
    let (pull, push, mean) = best.expect("a round");
    println!("{bytes} B: pull {pull:.1} ns, push {push:.1} ns a frame, mean batch {mean:.1}");
}
