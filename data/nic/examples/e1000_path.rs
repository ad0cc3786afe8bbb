//! Cost of the e1000's data path for each frame, or of the e1000e's: `e1000_path local|cross
//! [BYTES] [ROUNDS] [KIND] [FRAMES] [BURST] [MODEL] [held|not] [csb]`.
//!
//! `local`: guest and device take turns in one thread (for callgrind: everything is in the cache).
//! `cross`: the guest runs on another core; what is timed are the device's calls that moved frames.
//! Doorbells are mapped: the guest stores TDT and RDT. KIND: `legacy` (one descriptor for each
//! frame) or `sum` (a context and a data descriptor, as Linux sends TCP). MODEL: `e1000`, with
//! interrupts whose causes are read, or `e1000e`, with MSI-X and extended receive descriptors.
//! `held`: what of the chip outlives its process is noted. `csb`: the tails are published in the
//! status block of an e1000, and nobody asks for an interrupt.
//! Prints the fastest of the rounds, since the machine is shared.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use vmlan_frame::{Batch, Mac, Offloads, Sink};
use vmlan_nic::chip::held::HELD;
use vmlan_nic::chip::{Config, Host, Nic, PciFunction, Space};
use vmlan_nic::e1000::E1000;
use vmlan_nic::e1000e::E1000e;
use vmlan_ram::{Map, Mapping, Region, Window};

const SIZE: u32 = 256;
const STRIDE: u64 = 2048 + 64;

/// In the window of ring registers.
const RDH: usize = 0x810;
const RDT: usize = 0x818;
const TDH: usize = 0x1810;
const TDT: usize = 0x1818;
const LAST: u64 = 0x0b << 24;

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
    pages: Window,
    map: Arc<Map>,
    desc: Window,
    buffers: u64,
    head: usize,
    /// Where the tail is published.
    tail: (Window, usize),
    /// The place of DD in the second word of a receive descriptor.
    dd: u32,
    /// First descriptor not known to be done, and next to post.
    done: u32,
    next: u32,
}

impl Ring {
    fn new(
        map: &Arc<Map>,
        pages: &Arc<Map>,
        at: u64,
        (head, tail): (usize, usize),
        dd: u32,
    ) -> Self {
        let window = |map: &Arc<Map>, at, len| map.window(at, len, 4).expect("inside");
        Self {
            pages: window(pages, 0, E1000::PAGES),
            map: map.clone(),
            desc: window(map, at, 16 * SIZE as usize),
            buffers: at + 0x1_0000,
            head,
            tail: (window(pages, 0, E1000::PAGES), tail),
            dd,
            done: 0,
            next: 0,
        }
    }

    /// Descriptors that are the chip's; one is always kept free.
    fn busy(&self) -> u32 {
        (self.next + SIZE - self.pages.u32(self.head, Ordering::Acquire)) % SIZE
    }

    fn put(&mut self, first: u64, second: u64) {
        let at = 16 * self.next as usize;
        self.desc.set_u64(at, first, Ordering::Relaxed);
        self.desc.set_u64(at + 8, second, Ordering::Relaxed);
        self.next = (self.next + 1) % SIZE;
    }

    fn ring(&self) {
        let (window, at) = &self.tail;
        window.set_u32(*at, self.next, Ordering::Release);
    }

    /// The tail is published in the CSB at `at` from now on, in its `word`.
    fn use_csb<C: Nic>(&mut self, chip: &C, at: u32, word: usize) {
        let csb = self.map.window(at.into(), 0x68, 4).expect("inside");
        set(chip, 0x2834, 0);
        set(chip, 0x2830, at);
        csb.set_u32(word, self.next, Ordering::Release);
        csb.set_u32(0x0c, 1, Ordering::Release);
        self.tail = (csb, word);
    }

    fn buffer(&self, index: u32) -> u64 {
        self.buffers + STRIDE * u64::from(index)
    }

    /// Sends a burst if there is room.
    fn send(&mut self, frame: &[u8], sums: bool, burst: u32) {
        let need = if sums { 2 * burst } else { burst };
        if self.busy() + need >= SIZE {
            return;
        }
        let len = frame.len() as u64;
        for _ in 0..burst {
            if sums {
                self.put(14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40, 0x23 << 24);
            }
            let at = self.buffer(self.next);
            self.map.slice_mut(at, frame.len()).expect("inside").write(0, frame);
            let options = if sums { 0x20 << 24 | 1 << 20 | 2 << 40 } else { 0 };
            self.put(at, len | LAST | options);
        }
        self.ring();
    }

    /// Takes what was received, and posts its buffers again.
    fn reap(&mut self) {
        let mut sum = 0u64;
        let mut any = false;
        while self.desc.u64(16 * self.done as usize + 8, Ordering::Acquire) >> self.dd & 1 != 0 {
            let at = self.buffer(self.done);
            let bytes = self.map.slice(at, 14).and_then(|s| s.read_array::<14>());
            sum += u64::from(bytes.map_or(0, |b| b[0]));
            self.put(self.buffer(self.next), 0);
            self.done = (self.done + 1) % SIZE;
            any = true;
        }
        std::hint::black_box(sum);
        if any {
            self.ring();
        }
    }
}

struct To<'a, C> {
    chip: &'a C,
    list: &'a [u16],
    spent: u64,
}

impl<C: Nic> Sink for To<'_, C> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        let start = Instant::now();
        let n = batch.len();
        // Unfinished checksums are finished by the switch; here only the two ends are measured.
        assert!(batch.needs() == Offloads::NONE || batch.needs() == Offloads::CSUM);
        let done = push_rx(self.chip, batch, &self.list[..n]);
        (done..n).for_each(|i| batch.hold(i));
        self.spent += ns(start);
    }
}

fn ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(0)
}

#[inline(never)]
fn push_rx<C: Nic>(chip: &C, batch: &Batch<'_>, list: &[u16]) -> usize {
    chip.push(batch, list)
}

#[inline(never)]
fn pull_tx<C: Nic>(chip: &C, batch: &mut Batch<'static>, sink: &mut dyn Sink) -> usize {
    chip.pull(batch, 256, sink)
}

fn pin(core: usize) {
    let tid = std::fs::read_link("/proc/thread-self").expect("proc");
    let tid = tid.file_name().expect("tid").to_owned();
    let core = core.to_string();
    let _ = std::process::Command::new("taskset").args(["-pc", &core]).arg(tid).output();
}

/// What a driver of either model does.
struct Model<C> {
    make: fn(Config, Window, Arc<dyn Host>) -> C,
    /// Registers beside those of the rings.
    registers: &'static [(u64, u32)],
    /// What an interrupt costs: a read of ICR, or a write of IMS.
    handle: fn(&C),
    dd: u32,
}

fn set<C: Nic>(chip: &C, at: u64, value: u32) {
    chip.write(Space::Bar(0), at, &value.to_le_bytes());
}

/// IMS: what Linux enables.
const READS: Model<E1000> = Model {
    make: |config, pages, host| E1000::new(config, pages, host),
    registers: &[(0xd0, 0x9d)],
    handle: |chip| chip.read(Space::Bar(0), 0xc0, &mut [0; 4]),
    dd: 32,
};

/// IVAR, EIAC, IAM, CTRL_EXT.EIAME, RFCTL.EXTEN, IMS.
const WRITES: Model<E1000e> = Model {
    make: |config, pages, host| E1000e::new(config, pages, host),
    registers: &[
        (0xe4, 0x800a_0908),
        (0xdc, 0x50_0000),
        (0xe0, u32::MAX),
        (0x18, 1 << 24),
        (0x5008, 1 << 15),
        (0xd0, 0x150_0004),
    ],
    handle: |chip| set(chip, 0xd0, 0x50_0000),
    dd: 0,
};

fn has_csb() -> bool {
    std::env::args().nth(9).as_deref() == Some("csb")
}

/// A chip that its driver has brought up with one ring.
fn chip<C: Nic>(model: &Model<C>, map: &Arc<Map>, registers: [(u64, u32); 6]) -> (C, Arc<Map>) {
    let pages = memory(E1000::PAGES as u64);
    let window = pages.window(0, E1000::PAGES, 4).expect("pages");
    let config = Config { mac: Mac::new([2; 6]), irq_rate_max: 0, csb: has_csb() };
    let chip = (model.make)(config, window, Arc::new(Quiet(Instant::now())));
    if std::env::args().nth(8).as_deref() == Some("held") {
        assert!(chip.hold(memory(HELD as u64).window(0, HELD, 4).expect("memory")));
    }
    drop(chip.set_map(map.clone()));
    chip.write(Space::Config, 4, &[7, 0]);
    // MSI-X, of the model that has it.
    chip.write(Space::Config, 0xa2, &[0, 0x80]);
    chip.set_link(true);
    set(&chip, 0, 1 << 6);
    registers.iter().for_each(|(at, value)| set(&chip, *at, *value));
    model.registers.iter().for_each(|(at, value)| set(&chip, *at, *value));
    (chip, pages)
}

/// `goal` frames: nanoseconds of pull and of push for each, and the mean batch.
fn round<C: Nic>(
    goal: usize,
    (tx, rx, handle): (&C, &C, fn(&C)),
    batch: &mut Batch<'static>,
    mut turn: impl FnMut(),
) -> (f64, f64, f64) {
    let list: Vec<u16> = (0..256).collect();
    let (mut frames, mut pulling, mut pushing, mut pulls) = (0usize, 0, 0, 0u32);
    while frames < goal {
        turn();
        let start = Instant::now();
        let mut to = To { chip: rx, list: &list, spent: 0 };
        let n = pull_tx(tx, batch, &mut to);
        if n > 0 {
            pushing += to.spent;
            pulling += ns(start) - to.spent;
            frames += n;
            pulls += 1;
            handle(tx);
            handle(rx);
        }
    }
    let per = |ns: u64| ns as f64 / frames as f64;
    (per(pulling), per(pushing), frames as f64 / f64::from(pulls))
}

/// A frame for the receiver; with `sums` it is TCP.
fn frame(bytes: usize, sums: bool) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[..12].copy_from_slice(&[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4]);
    if sums {
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        let len = u16::try_from(bytes - 14).expect("length");
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame[23] = 6;
        frame[46] = 0x50;
    }
    frame
}

fn main() {
    match std::env::args().nth(7).as_deref() {
        Some("e1000e") if has_csb() => panic!("an e1000e has no CSB"),
        Some("e1000e") => measure(&WRITES),
        _ => measure(&READS),
    }
}

fn measure<C: Nic>(model: &Model<C>) {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize, or: usize| args.get(n).map_or(or, |s| s.parse().expect("a number"));
    let (cross, bytes) = (args.get(1).is_some_and(|m| m == "cross"), number(2, 60));
    let (rounds, sums) = (number(3, 10), args.get(4).is_some_and(|k| k == "sum"));
    let (goal, burst) = (number(5, 200_000), number(6, 32));
    let burst = u32::try_from(burst).expect("a burst");
    let map = memory(0x40_0000);
    let len = SIZE * 16;
    let (tx, pages) = chip(
        model,
        &map,
        [(0x3800, 0), (0x3808, len), (0x3810, 0), (0x3818, 0), (0x400, 0xa), (0x100, 0)],
    );
    let mut a = Ring::new(&map, &pages, 0, (TDH, TDT), model.dd);
    let (rx, pages) = chip(
        model,
        &map,
        [(0x2800, 0x20_0000), (0x2808, len), (0x2810, 0), (0x2818, 0), (0x100, 0x8002), (0x400, 0)],
    );
    let mut b = Ring::new(&map, &pages, 0x20_0000, (RDH, RDT), model.dd);
    (1..SIZE).for_each(|_| b.put(b.buffer(b.next), 0));
    b.ring();
    let mut batch = Batch::new();
    if has_csb() {
        a.use_csb(&tx, 0x3f_0000, 0);
        b.use_csb(&rx, 0x3f_1000, 0x10);
        // Nobody here writes TDT when that is wished for: the chip sees that the CSB is on before
        // the word and the register differ.
        pull_tx(&tx, &mut batch, &mut To { chip: &rx, list: &[], spent: 0 });
    }
    let pair = (&tx, &rx, model.handle);
    let frame = frame(bytes, sums);
    let mut times = Vec::new();
    if cross {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        pin(1);
        let thread = std::thread::spawn(move || {
            pin(0);
            while !seen.load(Ordering::Relaxed) {
                a.send(&frame, sums, burst);
                b.reap();
            }
        });
        times.extend((0..rounds).map(|_| round(goal, pair, &mut batch, || ())));
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("guest");
    } else {
        let mut turn = || {
            a.send(&frame, sums, burst);
            b.reap();
        };
        times.extend((0..rounds).map(|_| round(goal, pair, &mut batch, &mut turn)));
    }
    let best = times.into_iter().min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
    let (pull, push, mean) = best.expect("a round");
    println!("{bytes} B: pull {pull:.1} ns, push {push:.1} ns a frame, mean batch {mean:.1}");
}
