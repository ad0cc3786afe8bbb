//! Cost of the r8169's data path for each frame: `r8169_path [BYTES] [ROUNDS] [FRAMES] [BURST]
//! [held|not] [csb]`.
//!
//! Guest and device take turns in one thread, as in `e1000_path local` (for callgrind: everything
//! is in the cache). One descriptor for each frame. `held`: what of the chip outlives its process
//! is noted. `csb`: what is posted is announced in the CSB. Prints the fastest of the rounds, since
//! the machine is shared.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlan_frame::{Batch, Mac, Offloads, Sink};
use vmlan_nic::chip::held::HELD;
use vmlan_nic::chip::{Config, Host, Nic, PciFunction, Space};
use vmlan_nic::r8169::R8169;
use vmlan_ram::{Map, Mapping, Region, Window};

const SIZE: u32 = 256;
const STRIDE: u64 = 2048 + 64;
const RX_RING: u64 = 0x20_0000;

const OWN: u32 = 1 << 31;
const EOR: u32 = 1 << 30;
const WHOLE: u32 = 3 << 28;

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

/// Our guest's half of one ring, with buffers for all descriptors.
struct Ring {
    map: Arc<Map>,
    desc: Window,
    buffers: u64,
    next: u32,
    /// Where it is announced.
    csb: Option<(Window, usize)>,
}

impl Ring {
    fn new(map: &Arc<Map>, at: u64) -> Self {
        let desc = map.window(at, 16 * SIZE as usize, 16).expect("inside");
        let mut ring = Self { map: map.clone(), desc, buffers: at + 0x1_0000, next: 0, csb: None };
        for _ in 0..SIZE {
            ring.desc.set_u64(16 * ring.next as usize + 8, ring.buffer(), Ordering::Relaxed);
            ring.put(0);
        }
        ring
    }

    fn buffer(&self) -> u64 {
        self.buffers + STRIDE * u64::from(self.next)
    }

    /// What is posted is announced in the CSB at `at` from now on, in its `word`.
    fn use_csb(&mut self, chip: &R8169, at: u32, word: usize) {
        let csb = self.map.window(at.into(), 0x68, 4).expect("inside");
        chip.write(Space::Bar(1), 0xf4, &[0; 4]);
        chip.write(Space::Bar(1), 0xf0, &at.to_le_bytes());
        csb.set_u32(0x0c, 1, Ordering::Release);
        self.csb = Some((csb, word));
        self.announce();
    }

    fn announce(&self) {
        if let Some((csb, word)) = &self.csb {
            csb.set_u32(*word, self.next, Ordering::Release);
        }
    }

    /// The next descriptor is the guest's.
    fn is_ours(&self) -> bool {
        self.desc.u32(16 * self.next as usize, Ordering::Acquire) & OWN == 0
    }

    fn put(&mut self, opts1: u32) {
        let eor = if self.next + 1 == SIZE { EOR } else { 0 };
        self.desc.set_u32(16 * self.next as usize, opts1 | eor, Ordering::Release);
        self.next = (self.next + 1) % SIZE;
    }

    /// Sends a burst as far as there is room.
    fn send(&mut self, frame: &[u8], burst: u32) {
        for _ in 0..burst {
            if !self.is_ours() {
                break;
            }
            self.map.slice_mut(self.buffer(), frame.len()).expect("inside").write(0, frame);
            self.put(OWN | WHOLE | u32::try_from(frame.len()).expect("a length"));
        }
        self.announce();
    }

    /// Takes what was received, and posts its buffers again.
    fn reap(&mut self) {
        let mut sum = 0u64;
        while self.is_ours() {
            let bytes = self.map.slice(self.buffer(), 14).and_then(|s| s.read_array::<14>());
            sum += u64::from(bytes.map_or(0, |b| b[0]));
            self.put(OWN | 2048);
        }
        self.announce();
        std::hint::black_box(sum);
    }
}

struct To<'a> {
    chip: &'a R8169,
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
fn push_rx(chip: &R8169, batch: &Batch<'_>, list: &[u16]) -> usize {
    chip.push(batch, list)
}

#[inline(never)]
fn pull_tx(chip: &R8169, batch: &mut Batch<'static>, sink: &mut dyn Sink) -> usize {
    chip.pull(batch, 256, sink)
}

fn has_csb() -> bool {
    std::env::args().nth(6).as_deref() == Some("csb")
}

/// A chip that its driver has brought up with one ring, whose address is in the register `at`.
fn chip(map: &Arc<Map>, at: u64, ring: u32, command: u8) -> R8169 {
    let config = Config { mac: Mac::new([2; 6]), irq_rate_max: 0, csb: has_csb() };
    let chip = R8169::new(config, Arc::new(Quiet(Instant::now())));
    if std::env::args().nth(5).as_deref() == Some("held") {
        assert!(chip.hold(memory(HELD as u64).window(0, HELD, 4).expect("memory")));
        chip.note();
    }
    drop(chip.set_map(map.clone()));
    chip.write(Space::Config, 4, &[7, 0]);
    chip.set_link(true);
    let set = |at: u64, bytes: &[u8]| chip.write(Space::Bar(1), at, bytes);
    set(at, &ring.to_le_bytes());
    set(0x44, &0xe70f_u32.to_le_bytes());
    // IMR: what Linux enables.
    set(0x3c, &0x80ef_u16.to_le_bytes());
    set(0x37, &[command]);
    chip
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize, or: usize| args.get(n).map_or(or, |s| s.parse().expect("a number"));
    let (bytes, rounds, goal) = (number(1, 60), number(2, 10), number(3, 200_000));
    let burst = u32::try_from(number(4, 32)).expect("a burst");
    let map = memory(0x40_0000);
    let (mut a, mut b) = (Ring::new(&map, 0x100), Ring::new(&map, RX_RING));
    let tx = chip(&map, 0x20, 0x100, 4);
    let rx = chip(&map, 0xe4, u32::try_from(RX_RING).expect("below 4 GiB"), 8);
    b.reap();
    if has_csb() {
        a.use_csb(&tx, 0x3f_0000, 0);
        b.use_csb(&rx, 0x3f_1000, 0x10);
    }
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
            // Interrupt handlers clear ISR.
            tx.write(Space::Bar(1), 0x3e, &[0xff; 2]);
            rx.write(Space::Bar(1), 0x3e, &[0xff; 2]);
        }
        let per = |ns: u64| ns as f64 / frames as f64;
        let now = (per(pulling), per(pushing));
        if now.0 + now.1 < best.0 + best.1 {
            best = now;
        }
    }
    println!("{bytes} B: pull {:.1} ns, push {:.1} ns a frame", best.0, best.1);
}
