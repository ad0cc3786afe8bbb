//! What the fuzz targets of chips share: a guest's memory, and what its driver, its VMM and the
//! switch do. Each chip says in its `tests/fuzz.rs` what it is, how a driver sets it up, and what
//! else one may do: [`Fuzzed`].
//!
//! An input is a byte of configuration, two bytes that count the bytes of steps, the steps, and the
//! guest's memory from address 0 on (the rest of it is zero). Bit 0 of the configuration: nothing
//! is set up; bit 3: a floor under interrupts; the others are the chip's.
//!
//! A step is a byte, its high half the operation, then operands (0 past the end). Operations 4 to
//! 7, 14 and 15 are the chip's, the others are here: [`Run::step`]. The chip offers a CSB; a step
//! places it at [`BLOCK`], others change the guest's words in it.
//!
//! What must hold: nothing panics; a pass is bounded in frames and bytes; nothing outside the
//! guest's memory is written, nor what the chip says that it leaves alone; a cause that is pending
//! and enabled is delivered, or the timer is set, or the CSB keeps it in; and after all of it a
//! driver that starts again finds a chip that moves frames.
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

#[cfg(test)]
mod golden;
#[cfg(test)]
pub mod replay;
#[cfg(test)]
mod same;
pub mod state;
#[cfg(test)]
mod successor;
mod world;

use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vmlan_frame::{Batch, Mac, Offload, Sink};
use vmlan_ram::{Map, Slice, Window};

use super::{Chip, Config, Host, Interrupts, Irq, Nic, Space};
pub use world::MEMORY;
use world::{WORLD, World, fill};

/// Where the transmit ring of a set-up driver is.
pub const TX_RING: u32 = 0;
/// Where its receive ring is.
pub const RX_RING: u32 = 0x1000;
/// Descriptors in each.
pub const RING: u32 = 32;
/// Where the CSB is, if it is where it should be.
pub const CSB: u16 = 0x0a00;
/// Where the last driver has its frame, of 60 bytes.
pub const FRAME: u32 = 0x2000;
/// Where it has its receive buffers, all in the same place.
pub const BUFFER: u32 = 0x4000;
/// Bytes that one pass may move, at most.
const MOST_BYTES: usize = 4 << 20;

/// A chip to fuzz.
pub trait Fuzzed: Chip {
    /// Where CSBAL is in BAR 0.
    const CSBAL: u64;
    /// Bytes of FCS that a guest is given.
    const FCS: u32 = 4;

    /// The chip that the byte of configuration asks for. `pages`: for registers that can be mapped.
    fn make(config: Config, pages: Window, host: Arc<dyn Host>, byte: u8) -> Self;
    /// What a driver does. `byte`: of configuration; 0 at the end of a run, and then the rings are
    /// good.
    fn set_up(run: &mut Run<'_, Self>, byte: u8);
    /// Writes the transmit descriptor of a part of a frame.
    fn put_part(run: &Run<'_, Self>, index: u32, part: Part);
    /// Writes the receive descriptor of a buffer.
    fn put_buffer(run: &Run<'_, Self>, index: u32, at: u32, len: u32);
    /// What the chip has written into the descriptor of a buffer; `None`: nothing yet.
    fn written(run: &Run<'_, Self>, index: u32) -> Option<Filled>;
    /// Tells the chip of descriptors before these.
    fn offer(run: &Run<'_, Self>, transmit: u32, receive: u32);
    /// Operations 4 to 7, 14 and 15.
    fn step(run: &mut Run<'_, Self>, operation: u8, n: u8);
    /// Reset by software.
    fn restart(run: &mut Run<'_, Self>);
    /// The part of the guest's memory that may be written while frames are pushed, or pulled;
    /// `None`: who knows.
    fn may_write(&self, _push: bool) -> Option<Range<u64>> {
        None
    }
}

/// A part of a frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Where it is.
    pub at: u32,
    /// Its bytes.
    pub len: u32,
    /// The frame begins here.
    pub first: bool,
    /// It ends here.
    pub last: bool,
}

/// What a receive descriptor says.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// Bytes of the frame, FCS included: in this buffer, or, if it is the last, of all of it
    /// ([`Filled::whole`]).
    pub len: u32,
    /// See there.
    pub whole: bool,
    /// The frame ends here.
    pub last: bool,
    /// The tag that was taken out.
    pub tag: Option<u16>,
}

#[derive(Default)]
struct Clock {
    now: AtomicU64,
    timer: Mutex<Option<u64>>,
    /// Interrupts and bells, in order.
    told: Mutex<DefaultHasher>,
}

impl Clock {
    fn note(&self, what: u16) {
        self.told.lock().expect("notes").write_u16(what);
    }
}

impl Host for Clock {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
    fn set_timer(&self, at: u64) {
        *self.timer.lock().expect("a timer") = Some(at);
    }
    fn raise(&self) {
        self.note(0x100);
    }
    fn lower(&self) {
        self.note(0x101);
    }
    fn send(&self, vector: u16) {
        self.note(vector);
    }
    fn doorbell(&self) {
        self.note(0x102);
    }
}

/// What frames that are pushed are full of.
static BODY: [u8; 4000] = [0x5a; 4000];

/// Holds every n-th frame, and reads all of them.
struct Reader<'s> {
    copy: Vec<u8>,
    every: usize,
    frames: usize,
    bytes: usize,
    seen: Option<&'s mut DefaultHasher>,
}

impl Sink for Reader<'_> {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let Some(frame) = batch.frame(i) else { panic!("no frame {i}") };
            self.copy.resize(frame.len.max(self.copy.len()), 0);
            let copy = &mut self.copy[..frame.len];
            assert_eq!(frame.copy_to(copy), frame.len, "a length that is not there");
            if let Some(seen) = &mut self.seen {
                seen.write(copy);
            }
            self.frames += 1;
            self.bytes += frame.len;
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
pub fn run<C: Fuzzed>(data: &[u8]) -> (u64, u64) {
    let [byte, low, high, rest @ ..] = data else { return (0, 0) };
    let count = usize::from(u16::from_le_bytes([*low, *high]));
    let (steps, memory) = rest.split_at(rest.len().min(count));
    WORLD.with_borrow_mut(|world| {
        world.load(memory);
        let frames = play::<C>(world, *byte, steps);
        world.check_guards();
        frames
    })
}

/// The chip that the byte of configuration asks for, and its driver.
fn start<'w, C: Fuzzed>(world: &'w mut World, byte: u8, steps: &'w [u8]) -> Run<'w, C> {
    let host = Arc::new(Clock::default());
    let mut run = Run::<'w, C> {
        chip: make(world, byte, &host),
        host,
        world,
        steps,
        next: [0; 3],
        mapped: true,
        seen: None,
    };
    drop(run.chip.set_map(run.world.guest.clone()));
    if byte & 1 == 0 {
        C::set_up(&mut run, byte);
    }
    run
}

fn make<C: Fuzzed>(world: &World, byte: u8, host: &Arc<Clock>) -> C {
    let irq_rate_max = if byte & 8 != 0 { 10_000 } else { 0 };
    let mac = Mac::new([2, 0, 0, 0, 0, 1]);
    let config = Config { mac, irq_rate_max, csb: true };
    C::make(config, world.pages(), host.clone(), byte)
}

fn play<C: Fuzzed>(world: &mut World, byte: u8, steps: &[u8]) -> (u64, u64) {
    let mut run = start::<C>(world, byte, steps);
    while !run.steps.is_empty() {
        run.step();
        run.check();
    }
    let device = run.chip.device();
    assert!(device.held <= device.raised && device.delivered >= device.raised - device.held);
    let frames = run.frames();
    run.start_anew();
    frames
}

/// A chip under way.
pub struct Run<'w, C> {
    /// The chip.
    pub chip: C,
    host: Arc<Clock>,
    world: &'w mut World,
    steps: &'w [u8],
    /// For a driver to remember where in its rings it is.
    pub next: [u32; 3],
    /// The chip has the guest's memory.
    mapped: bool,
    /// What was read and sent, if anybody wants to know.
    seen: Option<DefaultHasher>,
}

impl<C: Fuzzed> Run<'_, C> {
    /// The next operand.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.steps.split_first() else { return 0 };
        self.steps = rest;
        *first
    }

    /// The next operand, of two bytes.
    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next operand, of four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from(self.half()) | u32::from(self.half()) << 16
    }

    /// Writes a register of four bytes in BAR 0.
    pub fn write(&self, offset: u32, value: u32) {
        self.chip.write(Space::Bar(0), offset.into(), &value.to_le_bytes());
    }

    /// Writes a register of so many bytes.
    pub fn write_part(&self, offset: u32, bytes: usize, value: u32) {
        self.chip.write(Space::Bar(0), offset.into(), &value.to_le_bytes()[..bytes]);
    }

    /// Writes configuration space.
    pub fn configure(&self, offset: u64, bytes: &[u8]) {
        self.chip.write(Space::Config, offset, bytes);
    }

    /// Four bytes of the guest's memory.
    pub fn peek(&self, at: u32) -> u32 {
        let mut word = [0; 4];
        self.world.guest.slice(at.into(), 4).expect("memory").read(&mut word);
        u32::from_le_bytes(word)
    }

    /// Writes four bytes of it.
    pub fn poke(&self, at: u32, value: u32) {
        fill(&self.world.guest, at.into(), &value.to_le_bytes());
    }

    fn frames(&self) -> (u64, u64) {
        let counters = self.chip.counters();
        (counters.input.frames.get(), counters.output.frames.get())
    }

    fn step(&mut self) {
        let step = self.byte();
        let n = step & 15;
        match step >> 4 {
            0 => self.pull(16 * usize::from(n), 0),
            1 => self.pull(200, usize::from(n)),
            2 => self.push(n, 46),
            3 => self.push(n, 3000),
            8 => {
                let (offset, data) = (self.word(), [self.word(), self.word(), self.word(), 0]);
                let bytes: Vec<u8> = data.iter().flat_map(|w| w.to_le_bytes()).collect();
                self.access(offset, &bytes[..usize::from(n)]);
            }
            9 => {
                let within = 2 * self.chip.layout().bars[0] - 1;
                let at = u64::from(self.half()) & within;
                let data = &mut [0; 16][..usize::from(n)];
                self.chip.read(Space::Bar(0), at, data);
                if let Some(seen) = &mut self.seen {
                    seen.write(data);
                }
            }
            10 => {
                let (at, value) = (self.byte(), self.byte());
                self.configure(at.into(), &[n, value]);
            }
            11 => self.sleep(u64::from(n) * 50_000),
            12 => {
                let (at, value) =
                    (self.half(), u64::from(self.word()) | u64::from(self.word()) << 32);
                if let Some(mut slice) = self.world.guest.slice_mut(at.into(), 8) {
                    slice.write(0, &value.to_le_bytes());
                }
            }
            13 if n >= 9 => self.csb(n),
            13 => self.control(n),
            operation => C::step(self, operation, n),
        }
    }

    fn access(&self, offset: u32, bytes: &[u8]) {
        let bars = self.chip.layout().bars;
        let (space, within) = match offset >> 30 {
            0 => (Space::Bar(0), bars[0] - 1),
            1 => (Space::Bar(1), bars[1] - 1),
            2 => (Space::Bar(0), u64::MAX),
            _ => (Space::Config, 0x1ff),
        };
        self.chip.write(space, u64::from(offset) & within, bytes);
    }

    fn control(&mut self, n: u8) {
        match n {
            0 | 1 => self.chip.set_link(n == 1),
            2 => self.chip.reset(),
            3 => C::restart(self),
            4 | 5 => {
                self.mapped = n == 5;
                drop(self.chip.set_map(self.map()));
            }
            6 => {
                let _ = (self.chip.room(), self.chip.want_room(), Nic::is_up(&self.chip));
            }
            7 => {
                let _ = (self.chip.arm(), self.chip.fault());
            }
            _ => self.chip.disarm(),
        }
    }

    /// The memory that the chip has.
    fn map(&self) -> Arc<Map> {
        if self.mapped { self.world.guest.clone() } else { Arc::default() }
    }

    /// The guest's words of the CSB, as a driver changes them; and where the CSB is.
    fn csb(&mut self, n: u8) {
        let csb = u32::from(CSB);
        match n {
            9 => self.chip.write(Space::Bar(0), C::CSBAL, &csb.to_le_bytes()),
            // guest_csb_on: on, or any value.
            10 => self.poke(csb + 0x0c, 1),
            11 => {
                let value = self.byte();
                self.poke(csb + 0x0c, value.into());
            }
            // guest_tdt, guest_rdt: they move on.
            12 | 13 => {
                let at = csb + if n == 12 { 0x00 } else { 0x10 };
                let by = u32::from(self.byte());
                self.poke(at, self.peek(at).wrapping_add(by) & (RING - 1));
            }
            // The wishes.
            14 => {
                let wishes = u32::from(self.byte());
                self.poke(csb + 0x04, wishes & 3);
                self.poke(csb + 0x08, wishes >> 2 & 3);
            }
            _ => self.chip.timer(),
        }
    }

    fn sleep(&self, ns: u64) {
        let now = self.host.now.fetch_add(ns, Ordering::Relaxed) + ns;
        let due = self.host.timer.lock().expect("a timer").take_if(|at| *at <= now);
        if due.is_some() {
            self.chip.timer();
        }
    }

    fn pull(&mut self, limit: usize, every: usize) {
        let seen = self.seen.as_mut();
        let mut reader = Reader { copy: Vec::new(), every, frames: 0, bytes: 0, seen };
        self.chip.disarm();
        let may = self.world.except(self.chip.may_write(false));
        self.chip.pull(&mut self.world.batch, limit, &mut reader);
        self.world.check(may);
        assert!(reader.frames <= limit && reader.bytes <= MOST_BYTES, "a pass without bound");
        assert!(self.world.batch.is_empty(), "the batch was not given back");
    }

    /// Frames to a broadcast address, some of them tagged.
    fn push(&mut self, n: u8, len: usize) {
        let batch = &mut self.world.pushed;
        batch.clear();
        for i in 0..n {
            let mut head = [0xff; 18];
            if i % 4 == 3 {
                head[12..16].copy_from_slice(&[0x81, 0, 0x20, i]);
            }
            let body = [Slice::from_bytes(&BODY[..len + usize::from(i)])];
            let _ =
                batch.add_parts(&head, body, Offload { csum_valid: i % 2 == 0, ..Offload::NONE });
        }
        let list: Vec<u16> = (0..n.into()).collect();
        let may = self.world.except(self.chip.may_write(true));
        assert!(self.chip.push(&self.world.pushed, &list) <= list.len());
        self.world.check(may);
    }

    fn check(&self) {
        let irq = &self.chip.core().irq;
        let (asserted, pending) = (irq.level(), irq.pending());
        assert!(pending || !asserted, "asserted for nothing");
        let timer = self.host.timer.lock().expect("a timer");
        let soon = self.host.now() + 100_000_000;
        let shut = irq.with_csb().is_some_and(Irq::is_shut);
        let waits = shut || timer.is_some_and(|at| at <= soon);
        assert!(asserted || !pending || waits, "an interrupt is lost");
    }

    /// Whatever it was: the next driver, in the next machine, sends a frame and receives one.
    fn start_anew(&mut self) {
        self.chip.set_link(true);
        self.chip.renew();
        drop(self.chip.set_map(self.world.guest.clone()));
        self.world.load(&[]);
        self.next = [0; 3];
        let frame = [0xff; 60];
        fill(&self.world.guest, FRAME.into(), &frame);
        for i in 0..RING {
            C::put_part(self, i, Part { at: FRAME, len: 60, first: true, last: true });
            C::put_buffer(self, i, BUFFER, 2048);
        }
        C::set_up(self, 0);
        let before = self.frames();
        self.pull(200, 0);
        self.push(1, 46);
        let after = self.frames();
        assert!(after.0 > before.0, "the next driver cannot send");
        assert!(after.1 > before.1, "the next driver does not receive");
    }
}
