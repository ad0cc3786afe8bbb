//! The body of the fuzz target `e1000`: a guest's memory, and what its driver, its VMM and the switch do. Kept inputs are
//! replayed as a plain test.
//!
//! An input is a byte of configuration, two bytes that count the bytes of steps, the steps, and the guest's memory from
//! address 0 on (the rest of it is zero).
//!
//! | byte | bits |
//! | --- | --- |
//! | configuration | 0: nothing is set up; 1: long frames; 2: loopback; 3: a floor under interrupts; 7:4: RCTL 19:16 |
//!
//! A step is a byte, its high half the operation, then operands (0 past the end): see [`Run::step`]. The driver that sets
//! things up puts the transmit ring at 0 and the receive ring at [`RX_RING`], 32 descriptors each.
//!
//! The chip offers a shared status block; a step places it at [`BLOCK`], others change the guest's words in it.
//!
//! What must hold: nothing panics; a pass is bounded in frames and bytes; nothing outside the guest's memory is written; a cause
//! that is pending and enabled is delivered, or the timer is set, or the block keeps it in.
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Batch, Mac, Offload, Sink};
use vmlan_ram::{Map, Mapping, Region, Slice};

use crate::chip::{Chip, Config, Host};
use crate::e1000::E1000;
use crate::e1000::regs::*;

/// Where the receive ring is.
pub const RX_RING: u32 = 0x1000;
/// Where the shared status block is, if it is where it should be.
pub const BLOCK: u16 = 0x0a00;
const MEMORY: u64 = 0x1_0000;
/// Bytes before, between and after the two regions of the guest's memory, which the guest does not have.
const GUARD: u64 = 0x1000;
const HALF: u64 = MEMORY / 2;
/// Frames and bytes that one pass may move, at most.
const MOST_BYTES: usize = 4 << 20;
/// The guard's bytes.
const CANARY: u8 = 0xc5;

/// Registers with effects of their own.
#[rustfmt::skip]
const REGISTERS: [u32; 16] = [
    CTRL, TCTL, RCTL, IMS, IMC, ICS, ICR, ITR, RXCSUM, EECD, EERD, MDIC, CTRL_EXT, PBA, VET, RA,
];

/// What outlives an input.
struct World {
    /// All of the file, guards included, from address 0.
    file: Arc<Map>,
    /// The guest's memory: two regions that touch.
    guest: Arc<Map>,
    /// The ring registers' pages.
    pages: Arc<Map>,
    batch: Batch<'static>,
}

fn mapping(len: u64) -> Arc<Mapping> {
    let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
    let file = file.expect("a temporary file");
    file.set_len(len).expect("its length");
    Arc::new(Mapping::new(file.as_fd(), 0, len).expect("a mapping"))
}

fn map(regions: &[(u64, u64, u64)], mapping: &Arc<Mapping>) -> Arc<Map> {
    let region = |(gpa, len, offset): &(u64, u64, u64)| {
        Region::new(*gpa, *len, *gpa, *offset, mapping.clone()).expect("a region")
    };
    Arc::new(Map::new(regions.iter().map(region).collect(), None).expect("a map"))
}

fn world() -> World {
    let len = MEMORY + 3 * GUARD;
    let memory = mapping(len);
    let file = map(&[(0, len, 0)], &memory);
    let guest = map(&[(0, HALF, GUARD), (HALF, HALF, HALF + 2 * GUARD)], &memory);
    for at in guards() {
        fill(&file, at, &[CANARY; GUARD as usize]);
    }
    World { file, guest, pages: map(&[(0, 0x2000, 0)], &mapping(0x2000)), batch: Batch::new() }
}

fn guards() -> [u64; 3] {
    [0, GUARD + HALF, 2 * GUARD + MEMORY]
}

fn fill(map: &Map, at: u64, bytes: &[u8]) {
    map.slice_mut(at, bytes.len()).expect("memory").write(0, bytes);
}

thread_local! {
    static WORLD: std::cell::RefCell<World> = std::cell::RefCell::new(world());
}

#[derive(Default)]
struct Clock {
    now: AtomicU64,
    timer: Mutex<Option<u64>>,
}

impl Host for Clock {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
    fn set_timer(&self, at: u64) {
        *self.timer.lock().expect("a timer") = Some(at);
    }
    fn raise(&self) {}
    fn doorbell(&self) {}
}

/// Holds every n-th frame, and reads all the others.
struct Reader {
    every: usize,
    frames: usize,
    bytes: usize,
}

impl Sink for Reader {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let Some(frame) = batch.frame(i) else { panic!("no frame {i}") };
            let mut copy = vec![0; frame.len];
            assert_eq!(frame.copy_to(&mut copy), frame.len, "a length that is not there");
            self.frames += 1;
            self.bytes += copy.len();
            if self.every > 0 && i % self.every == 0 {
                batch.hold(i);
            }
        }
    }
}

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn e1000(data: &[u8]) -> (u64, u64) {
    let [config, low, high, rest @ ..] = data else { return (0, 0) };
    let count = usize::from(u16::from_le_bytes([*low, *high]));
    let (steps, memory) = rest.split_at(rest.len().min(count));
    WORLD.with_borrow_mut(|world| {
        let mut bytes = [0; MEMORY as usize];
        let n = memory.len().min(bytes.len());
        bytes[..n].copy_from_slice(&memory[..n]);
        fill(&world.guest, 0, &bytes[..HALF as usize]);
        fill(&world.guest, HALF, &bytes[HALF as usize..]);
        let frames = run(world, *config, steps);
        for at in guards() {
            let mut guard = [0; GUARD as usize];
            world.file.slice(at, guard.len()).expect("a guard").read(&mut guard);
            assert!(guard.iter().all(|b| *b == CANARY), "written outside the guest's memory");
        }
        frames
    })
}

fn run(world: &mut World, config: u8, steps: &[u8]) -> (u64, u64) {
    let host = Arc::new(Clock::default());
    let irq_rate_max = if config & 8 != 0 { 10_000 } else { 0 };
    let mac = Mac::new([2, 0, 0, 0, 0, 1]);
    let pages = world.pages.window(0, 0x2000, 4).expect("pages");
    let chip = E1000::new(Config { mac, irq_rate_max, csb: true }, pages, host.clone());
    drop(chip.set_map(world.guest.clone()));
    let mut run = Run { chip, host, world, steps };
    if config & 1 == 0 {
        run.set_up(config);
    }
    while !run.steps.is_empty() {
        run.step();
        run.check();
    }
    let device = run.chip.device();
    assert!(device.held <= device.raised && device.delivered >= device.raised - device.held);
    let counters = run.chip.counters();
    (counters.input.frames.get(), counters.output.frames.get())
}

struct Run<'w> {
    chip: E1000,
    host: Arc<Clock>,
    world: &'w mut World,
    steps: &'w [u8],
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.steps.split_first() else { return 0 };
        self.steps = rest;
        *first
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }

    fn write(&self, offset: u32, value: u32) {
        self.chip.write_bar0(offset.into(), &value.to_le_bytes());
    }

    /// What a driver does.
    fn set_up(&mut self, config: u8) {
        self.chip.write_config(4, &[7, 0]);
        self.write(CTRL, bit::CTRL_SLU | 1 << 30);
        for (base, at) in [(TDBAL, 0), (RDBAL, RX_RING)] {
            self.write(base, at);
            self.write(base + 8, 32 * 16);
        }
        self.write(RDT, 31);
        self.write(TDT, 31);
        self.write(IMS, 0x9d);
        self.write(TCTL, 0x0103_f0fa);
        let long = u32::from(config >> 1 & 1) << 5;
        let loopback = u32::from(config >> 2 & 1) << 6;
        let size = u32::from(config >> 4) << 16;
        self.write(RCTL, 0x801a | long | loopback | size);
    }

    fn step(&mut self) {
        let step = self.byte();
        let n = step & 15;
        match step >> 4 {
            0 => self.pull(16 * usize::from(n), 0),
            1 => self.pull(200, usize::from(n)),
            2 => self.push(n, 46),
            3 => self.push(n, 3000),
            4 | 5 => self.ring_register(n, step >> 4 == 4),
            // A tail moves on.
            6 => {
                let at = if n & 8 == 0 { TDT } else { RDT };
                let tail = self.chip.regs.get(at).wrapping_add(u32::from(n & 7) + 1) & 31;
                self.write(at, tail);
            }
            7 => {
                let value = self.word();
                self.write(REGISTERS[usize::from(n)], value);
            }
            8 => {
                let (offset, data) = (self.word(), [self.word(), self.word(), self.word(), 0]);
                let bytes: Vec<u8> = data.iter().flat_map(|w| w.to_le_bytes()).collect();
                self.access(offset, &bytes[..usize::from(n)]);
            }
            9 => {
                let at = self.half();
                self.chip.read_bar0(at.into(), &mut [0; 16][..usize::from(n)]);
            }
            10 => {
                let (at, value) = (self.byte(), self.byte());
                self.chip.write_config(at.into(), &[n, value]);
            }
            11 => self.sleep(u64::from(n) * 50_000),
            12 => {
                let (at, value) =
                    (self.half(), u64::from(self.word()) | u64::from(self.word()) << 32);
                if let Some(mut slice) = self.world.guest.slice_mut(at.into(), 8) {
                    slice.write(0, &value.to_le_bytes());
                }
            }
            13 if n >= 9 => self.block(n),
            13 => self.control(n),
            14 => {
                let value = self.half();
                self.write(MDIC, 1 << 26 | 1 << 21 | u32::from(n) << 16 | u32::from(value));
            }
            _ => self.write(EECD, u32::from(n) | 0x40),
        }
    }

    /// By a trapped write, or by a store to the mapped page.
    fn ring_register(&mut self, n: u8, trapped: bool) {
        let base = if n & 8 == 0 { TDBAL } else { RDBAL };
        let offset = base + [0, 4, 8, 16, 24, 32, 40, 44][usize::from(n & 7)];
        let value = self.word();
        if trapped {
            self.write(offset, value);
        } else {
            self.chip.regs.set(offset, value);
        }
    }

    fn access(&self, offset: u32, bytes: &[u8]) {
        match offset >> 30 {
            0 => self.chip.write_bar0((offset & 0x1_ffff).into(), bytes),
            1 => self.chip.write_bar1((offset & 0x3f).into(), bytes),
            2 => self.chip.write_bar0(offset.into(), bytes),
            _ => self.chip.write_config((offset & 0x1ff).into(), bytes),
        }
    }

    fn control(&mut self, n: u8) {
        match n {
            0 | 1 => self.chip.set_link(n == 1),
            2 => self.chip.reset(),
            3 => self.write(CTRL, bit::CTRL_RST),
            4 => drop(self.chip.set_map(Arc::default())),
            5 => drop(self.chip.set_map(self.world.guest.clone())),
            6 => {
                let _ = (self.chip.room(), self.chip.want_room(), self.chip.is_up());
            }
            7 => {
                let _ = (self.chip.arm(), self.chip.trouble());
            }
            _ => self.chip.disarm(),
        }
    }

    /// The guest's words of the block, as a driver changes them; and where the block is.
    fn block(&mut self, n: u8) {
        match n {
            9 => self.write(CSBAL, BLOCK.into()),
            // guest_csb_on: on, or any value.
            10 => self.poke(0x0c, 1),
            11 => {
                let value = self.byte();
                self.poke(0x0c, value.into());
            }
            // guest_tdt, guest_rdt: they move on.
            12 | 13 => {
                let at = if n == 12 { 0x00 } else { 0x10 };
                let by = u32::from(self.byte());
                self.poke(at, self.peek(at).wrapping_add(by) & 31);
            }
            // The wishes.
            14 => {
                let wishes = u32::from(self.byte());
                self.poke(0x04, wishes & 3);
                self.poke(0x08, wishes >> 2 & 3);
            }
            _ => self.chip.timer(),
        }
    }

    fn peek(&self, at: u16) -> u32 {
        let mut word = [0; 4];
        self.world.guest.slice((BLOCK + at).into(), 4).expect("memory").read(&mut word);
        u32::from_le_bytes(word)
    }

    fn poke(&self, at: u16, value: u32) {
        fill(&self.world.guest, (BLOCK + at).into(), &value.to_le_bytes());
    }

    fn sleep(&self, ns: u64) {
        let now = self.host.now.fetch_add(ns, Ordering::Relaxed) + ns;
        let due = self.host.timer.lock().expect("a timer").take_if(|at| *at <= now);
        if due.is_some() {
            self.chip.timer();
        }
    }

    fn pull(&mut self, limit: usize, every: usize) {
        let mut reader = Reader { every, frames: 0, bytes: 0 };
        self.chip.disarm();
        self.chip.pull(&mut self.world.batch, limit, &mut reader);
        assert!(reader.frames <= limit && reader.bytes <= MOST_BYTES, "a pass without bound");
        assert!(self.world.batch.is_empty(), "the batch was not given back");
    }

    /// Frames to a broadcast address, some of them tagged.
    fn push(&mut self, n: u8, len: usize) {
        let bytes = [0x5a; 4000];
        let mut batch = Batch::new();
        for i in 0..n {
            let mut head = [0xff; 18];
            if i % 4 == 3 {
                head[12..16].copy_from_slice(&[0x81, 0, 0x20, i]);
            }
            let body = [Slice::from_bytes(&bytes[..len + usize::from(i)])];
            let _ =
                batch.add_parts(&head, body, Offload { csum_valid: i % 2 == 0, ..Offload::NONE });
        }
        let list: Vec<u16> = (0..n.into()).collect();
        assert!(self.chip.push(&batch, &list) <= list.len());
    }

    fn check(&self) {
        let asserted = self.chip.core.irq.level();
        let pending = self.chip.core.irq.pending();
        assert!(pending || !asserted, "asserted for nothing");
        let timer = self.host.timer.lock().expect("a timer");
        let soon = self.host.now() + 100_000_000;
        let waits = self.chip.core.irq.is_shut() || timer.is_some_and(|at| at <= soon);
        assert!(asserted || !pending || waits, "an interrupt is lost");
    }
}
