//! Death before each store: the process that serves the chip dies there, the next one goes on from
//! what it has left, and no driver can tell.
//!
//! The driver does as Linux' does: it looks at its rings only when it is interrupted, masks
//! interrupts while it looks, clears what it takes of a descriptor before it gives that back.
#![allow(clippy::cast_possible_truncation, clippy::indexing_slicing)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vmlan_frame::Mac;
use vmlan_ram::Slice;

use super::guest::*;
use super::held_judge::{Judge, Random, Wire, all, make, sent, window, with_context};
use super::{Intel, Model};
use crate::chip::Space;
use crate::chip::fixture::FakeHost;
use crate::chip::held::fuse::{self, Died};
use crate::chip::held::{HELD, point};
use crate::e1000::I82540;
use crate::e1000e::I82574;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vmlan_frame::{Batch, Offload};
use vmlan_ram::Map;

const RING: u32 = 32;
const IMS: u64 = 0xd0;
const IMC: u64 = 0xd8;
const EECD: u64 = 0x10;
const MDIC: u64 = 0x20;
const IOADDR: u64 = 0;
const BUFFER: u64 = 1024;
const MTU: usize = 2400;

/// What the driver does otherwise with this chip.
trait Driven: Model {
    /// After a reset.
    fn prepare(machine: &mut Machine<Self>);
    /// Status and length of a received descriptor's second quadword.
    fn said_of(word: u64) -> (u32, usize);
    /// What it becomes when it is given back.
    fn cleared(word: u64) -> u64;
    /// The cause bits of IMS.
    const MASK: u32;
    /// Each interrupt says by its vector what it is for.
    const VECTORS: bool = false;
}

/// Legacy descriptors, INTA#.
impl Driven for I82540 {
    fn prepare(_: &mut Machine<Self>) {}

    fn said_of(word: u64) -> (u32, usize) {
        ((word >> 32) as u32 & 0xff, word as u16 as usize)
    }

    fn cleared(word: u64) -> u64 {
        word & !(0xff << 32)
    }

    const MASK: u32 = 0x9d;
}

/// Extended descriptors; MSI-X as Linux sets it up.
impl Driven for I82574 {
    fn prepare(machine: &mut Machine<Self>) {
        machine.configure(0xa2, &[0, 0x80]);
        let registers = [
            (0xe4, 0x800a_0908),
            (0xdc, 0x50_0000),
            (0xe0, u32::MAX),
            (0x18, 1 << 24),
            (0x5008, 1 << 15),
        ];
        registers.into_iter().for_each(|(at, value)| machine.set(at, value));
    }

    fn said_of(word: u64) -> (u32, usize) {
        (word as u32 & 0xff, (word >> 32) as u16 as usize)
    }

    fn cleared(word: u64) -> u64 {
        word & !0xff
    }

    const MASK: u32 = 0x150_0004;
    const VECTORS: bool = true;
}

struct Machine<M: Model> {
    chip: Intel<M>,
    map: Arc<Map>,
    registers: Arc<Map>,
    held: Arc<Map>,
    mapped: bool,
    host: Arc<FakeHost>,
    /// Interrupts seen.
    seen: u32,
    /// The driver masks interrupts while it looks.
    masks: bool,
    deaths: u32,
    /// After the first death: another one after so many stores.
    again: Option<u32>,
    config: Config,
    // Transmit: first not reaped, next to fill; the numbers of frames with their last descriptor.
    tx: (u32, u32),
    flights: VecDeque<(u32, u32)>,
    sent: u32,
    delivered: Judge,
    void: Vec<u32>,
    /// Nothing was sent since the last reset.
    fresh: bool,
    // Receive: next to look at, next to give back; a frame under way.
    rx: (u32, u32),
    partial: Vec<u8>,
    arriving: u32,
    received: Judge,
    turn: u32,
    microwire: Vec<bool>,
    _model: PhantomData<M>,
}

impl<M: Driven> Machine<M> {
    fn new(mapped: bool) -> Self {
        let host = Arc::new(FakeHost::default());
        let (map, registers) = (memory(MEMORY), memory(0x2000));
        let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: true };
        let (chip, held) = make(config, &registers, &host);
        drop(chip.set_map(map.clone()));
        chip.note();
        let (flights, void, partial) = Default::default();
        let (delivered, received) = Default::default();
        let mut machine = Self {
            chip,
            map,
            registers,
            held,
            mapped,
            host,
            seen: 0,
            masks: true,
            deaths: 0,
            again: None,
            config,
            tx: (0, 0),
            flights,
            sent: 0,
            delivered,
            void,
            fresh: true,
            rx: (0, 0),
            partial,
            arriving: 0,
            received,
            turn: 0,
            microwire: Vec::new(),
            _model: PhantomData,
        };
        machine.chip.set_link(true);
        machine.set_up();
        machine
    }

    /// Something that the switch does. True: it died of it.
    fn device<T>(&mut self, does: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| does(self))) {
            Ok(done) => Some(done),
            Err(why) if why.is::<Died>() => {
                self.die();
                None
            }
            Err(why) => resume_unwind(why),
        }
    }

    fn die(&mut self) {
        self.deaths += 1;
        fuse::set(None);
        let remains = all(&self.held, HELD);
        if !self.mapped {
            self.registers = memory(0x2000);
        }
        let pages = all(&self.registers, 0x2000);
        let (chip, held) = make(self.config, &self.registers, &self.host);
        drop(chip.set_map(self.map.clone()));
        if self.mapped {
            self.registers.slice_mut(0, pages.len()).unwrap().write(0, &pages);
        }
        assert_eq!(chip.revive(&remains, self.mapped), Ok(()));
        chip.set_link(true);
        (self.chip, self.held) = (chip, held);
        self.chip.note();
        self.host.raised.fetch_add(1, Ordering::Relaxed);
        self.delivered.credit += 1;
        self.received.credit += 1;
        fuse::set(self.again);
    }

    /// An access, which is repeated if the switch died before it noted that it was done.
    fn access<T>(&mut self, does: impl Fn(&Intel<M>) -> T) -> T {
        let done = self.device(|machine| {
            let value = does(&machine.chip);
            machine.chip.note();
            point();
            value
        });
        done.unwrap_or_else(|| {
            // Some are more stores than there are between two deaths.
            let left = fuse::set(None);
            let value = does(&self.chip);
            self.chip.note();
            fuse::set(left);
            value
        })
    }

    fn set(&mut self, at: u64, value: u32) {
        let tail = at & 0xfff == 0x818;
        if self.mapped && tail {
            return window(&self.registers, 0x2000).set_u32(
                at as usize - 0x2000,
                value,
                Ordering::Release,
            );
        }
        self.access(|chip| chip.write(Space::Bar(0), at, &value.to_le_bytes()));
    }

    fn get(&mut self, at: u64) -> u32 {
        self.read(0, at)
    }

    fn read(&mut self, bar: u8, at: u64) -> u32 {
        self.access(|chip| {
            let mut bytes = [0; 4];
            chip.read(Space::Bar(bar), at, &mut bytes);
            u32::from_le_bytes(bytes)
        })
    }

    fn configure(&mut self, at: u64, bytes: &[u8]) {
        self.access(|chip| chip.write(Space::Config, at, bytes));
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.map.slice(at, 8).unwrap().read(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.map.slice_mut(at, bytes.len()).unwrap().write(0, bytes);
    }

    /// Where the rings are: elsewhere after each reset.
    fn ring_at(&self, receive: bool) -> u64 {
        0x1000 + u64::from(self.turn % 2) * 0x2000 + u64::from(receive) * 0x1000
    }

    fn set_up(&mut self) {
        self.configure(4, &[7, 0]);
        M::prepare(self);
        self.set(0, SLU);
        for (base, receive) in [(TD, false), (RD, true)] {
            let at = self.ring_at(receive);
            self.put(at, &[0; 16 * RING as usize]);
            self.set(base, at as u32);
            self.set(base + LEN, RING * 16);
            self.set(base + HEAD, 0);
            self.set(base + TAIL, 0);
        }
        (self.tx, self.rx) = ((0, 0), (0, 0));
        self.partial.clear();
        self.fresh = true;
        self.give_back();
        self.set(IMS, M::MASK);
        self.set(0x400, 2 | 8);
        // Broadcasts, long ones; buffers of 1 KiB.
        self.set(0x100, 2 | 1 << 15 | 1 << 5 | 1 << 16);
    }

    fn reset(&mut self) {
        self.void.extend(self.flights.iter().map(|(n, _)| *n));
        self.flights.clear();
        self.set(IMC, u32::MAX);
        self.set(0, 1 << 26);
        // What it has not looked at is lost.
        self.received.next = self.received.next.max(self.arriving);
        self.turn += 1;
        self.set_up();
    }

    /// Gives receive buffers back: the address anew, nothing else.
    fn give_back(&mut self) {
        let (looks, mut at) = self.rx;
        while (at + 1) % RING != looks {
            let desc = self.ring_at(true) + 16 * u64::from(at);
            self.put(desc, &(RX_BUFFERS + BUFFER * u64::from(at)).to_le_bytes());
            at = (at + 1) % RING;
        }
        if at != self.rx.1 {
            self.rx.1 = at;
            self.set(RD + TAIL, at);
        }
    }

    /// A packet for which the chip is to find the checksum, with a context or without a new one.
    fn send(&mut self) {
        let free = (self.tx.0 + RING - self.tx.1 - 1) % RING;
        let n = self.sent;
        let at = TX_BUFFERS + 512 * u64::from(n % 256);
        let (packet, list) = sent(n, at, self.fresh);
        self.put(at, &packet);
        if list.len() as u32 > free {
            return;
        }
        for (first, second) in list {
            let desc = self.ring_at(false) + 16 * u64::from(self.tx.1);
            self.put(desc, &first.to_le_bytes());
            self.put(desc + 8, &second.to_le_bytes());
            self.tx.1 = (self.tx.1 + 1) % RING;
        }
        self.flights.push_back((n, (self.tx.1 + RING - 1) % RING));
        self.sent += 1;
        self.fresh = false;
    }

    /// The second quadword of a transmit descriptor.
    fn said_of_sent(&self, index: u32) -> u64 {
        self.word(self.ring_at(false) + 16 * u64::from(index) + 8)
    }

    /// Frames whose last descriptor is done, in order, and those before one that is.
    fn reap(&mut self) {
        let done = |(_, last): &(u32, u32)| self.said_of_sent(*last) >> 32 & 1 != 0;
        let count = self.flights.iter().rposition(done);
        for _ in 0..count.map_or(0, |count| count + 1) {
            let (n, last) = self.flights.pop_front().unwrap();
            assert!(n < self.delivered.high, "frame {n} is done, and was not sent");
            while self.tx.0 != (last + 1) % RING {
                let status = self.ring_at(false) + 16 * u64::from(self.tx.0) + 12;
                self.put(status, &[0; 4]);
                self.tx.0 = (self.tx.0 + 1) % RING;
            }
        }
        // Nothing more is said of what has been taken back.
        let mut free = self.tx.1;
        while free != (self.tx.0 + RING - 1) % RING {
            assert_eq!(self.said_of_sent(free) >> 32 & 1, 0, "descriptor {free} is the driver's");
            free = (free + 1) % RING;
        }
    }

    fn take(&mut self) {
        while self.rx.0 != self.rx.1 {
            let desc = self.ring_at(true) + 16 * u64::from(self.rx.0);
            let word = self.word(desc + 8);
            let (status, len) = M::said_of(word);
            if status & 1 == 0 {
                break;
            }
            self.put(desc + 8, &M::cleared(word).to_le_bytes());
            let buffer = RX_BUFFERS + BUFFER * u64::from(self.rx.0);
            let mut bytes = vec![0; len];
            self.map.slice(buffer, len).unwrap().read(&mut bytes);
            self.partial.extend(bytes);
            self.rx.0 = (self.rx.0 + 1) % RING;
            if status & 2 != 0 {
                let frame = std::mem::take(&mut self.partial);
                let n = u32::from_le_bytes(frame[20..24].try_into().unwrap());
                self.received.came(n, &frame, Offload::NONE, &[]);
            }
        }
    }

    /// The driver, if it was interrupted.
    fn interrupted(&mut self, gives_back: bool) {
        let told = self.host.raises() + self.host.sent.lock().unwrap().len() as u32;
        if told == self.seen {
            return;
        }
        self.seen = told;
        let causes = self.get(ICR);
        if !M::VECTORS && causes & M::MASK == 0 {
            // Not from here.
            return;
        }
        let mask = if self.masks { M::MASK } else { 0 };
        self.set(IMC, mask);
        self.reap();
        self.take();
        if gives_back {
            self.give_back();
        }
        self.set(IMS, mask);
    }

    /// Nothing happens any more, but for interrupts: they were enough for the driver to see all.
    fn assert_told(&mut self) {
        (0..4).for_each(|_| self.interrupted(true));
        let word = self.word(self.ring_at(true) + 16 * u64::from(self.rx.0) + 8);
        let unseen = self.rx.0 != self.rx.1 && M::said_of(word).0 & 1 != 0;
        assert!(!unseen, "nobody told the driver what has arrived");
        let done =
            |(_, last): &(u32, u32)| self.said_of_sent(*last) & (1 << 32 | RS) == 1 << 32 | RS;
        assert!(!self.flights.iter().any(done), "nobody told the driver what was sent");
    }

    fn pull(&mut self, limit: usize, every: usize) {
        self.device(|machine| {
            let mut wire = Wire { judge: &mut machine.delivered, every, void: &machine.void };
            let mut batch = Batch::new();
            machine.chip.pull(&mut batch, limit, &mut wire)
        });
    }

    /// Frames arrive until there is no room; their sender has those that were not dealt with.
    fn push(&mut self, count: u32) {
        let mut batch = Batch::new();
        let frames: Vec<_> = (self.arriving..self.arriving + count)
            .map(|n| {
                let len = if n.is_multiple_of(5) { MTU } else { 60 + n as usize % 300 };
                let mut bytes = frame([0xff; 6], len);
                bytes[20..24].copy_from_slice(&n.to_le_bytes());
                bytes
            })
            .collect();
        for frame in &frames {
            let head = &frame[..frame.len().min(128)];
            let rest = Slice::from_bytes(&frame[head.len()..]);
            let rest = (!rest.is_empty()).then_some(rest);
            batch.add_parts(head, rest, Offload::NONE).unwrap();
        }
        let list: Vec<u16> = (0..count as u16).collect();
        let done = self.device(|machine| machine.chip.push(&batch, &list));
        self.arriving += done.unwrap_or(0) as u32;
    }

    /// The EEPROM's bus and the PHY, whose answers are compared.
    fn pins(&mut self, random: &mut Random) {
        let pins = random.below(16) as u32;
        self.set(EECD, pins | 0x40);
        let read = self.get(EECD) & 8 != 0;
        self.microwire.push(read);
        if random.below(3) == 0 {
            let value = random.below(1 << 16) as u32;
            self.set(MDIC, 1 << 26 | 1 << 21 | 4 << 16 | value);
        }
        let offset = random.below(0x100) as u32 * 4;
        self.access(|chip| chip.write(Space::Bar(M::PORTS), IOADDR, &offset.to_le_bytes()));
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(16) {
            0..4 => {
                (0..=random.below(8)).for_each(|_| self.send());
                let tail = self.tx.1;
                self.set(TD + TAIL, tail);
            }
            4..7 => {
                let limit = 1 + random.below(40) as usize;
                let every = if random.below(3) == 0 { 1 + random.below(5) as usize } else { 0 };
                self.pull(limit, every);
            }
            7..10 => self.push(1 + random.below(12) as u32),
            10..14 => {
                let gives_back = random.below(3) > 0;
                self.interrupted(gives_back);
            }
            14 => self.pins(random),
            _ if random.below(6) == 0 => self.reset(),
            _ => {}
        }
    }

    /// Frames arrive last, or are sent last.
    fn ends_by(&mut self, arriving: bool) {
        (0..4).for_each(|_| self.send());
        self.set(TD + TAIL, self.tx.1);
        if arriving {
            self.push(6);
        } else {
            self.pull(256, 0);
        }
    }

    /// All that is under way ends.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.pull(256, 0);
            self.interrupted(true);
            self.push(4);
            self.interrupted(true);
        }
    }

    /// What is read and sent is as it should be; the registers that a driver knows.
    fn end(&mut self) -> Vec<u32> {
        let wanted = self.sent;
        while self.void.contains(&self.delivered.next) {
            self.delivered.next += 1;
        }
        assert_eq!(self.delivered.next, wanted, "frames that were never sent");
        assert_eq!(self.received.next, self.arriving, "frames that were never received");
        let reported = |(_, last): &(u32, u32)| self.said_of_sent(*last) & RS != 0;
        assert!(!self.flights.iter().any(reported), "not said to be sent");
        for (base, tail) in [(TD, self.tx.1), (RD, self.rx.1)] {
            assert_eq!(self.get(base + TAIL), tail);
        }
        assert_eq!(self.get(TD + HEAD), self.tx.1);
        assert_eq!(self.get(RD + HEAD), self.rx.0);
        let known =
            [0, 0x8, 0x18, 0x20, IMS, 0x100, 0x400, 0x5008, RA, RA + 4, MTA, TD, RD, 0x3808];
        let mut list: Vec<u32> = known.into_iter().map(|at| self.get(at)).collect();
        list.extend(self.microwire.iter().map(|bit| u32::from(*bit)));
        list.push(self.read(M::PORTS, IOADDR));
        let mut config = [0; 256];
        self.chip.read(Space::Config, 0, &mut config);
        list.extend(config.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        list
    }
}

/// Runs the same steps. The switch dies before store `dies`, and from then on each `again` stores.
fn run<M: Driven>(
    (seed, mapped): (u64, bool),
    (dies, again): (Option<u32>, Option<u32>),
    clean: Option<&Machine<M>>,
) -> (Machine<M>, u32, Vec<u32>) {
    let mut random = Random(seed);
    let mut machine = Machine::<M>::new(mapped);
    // Those of messages mask themselves.
    machine.masks = M::VECTORS || seed & 1 == 0;
    if let Some(clean) = clean {
        machine.delivered.first.clone_from(&clean.delivered.first);
        machine.received.first.clone_from(&clean.received.first);
    }
    machine.again = again;
    fuse::set(Some(dies.unwrap_or(u32::MAX)));
    for _ in 0..60 {
        machine.step(&mut random);
    }
    machine.ends_by(seed & 2 == 0);
    let left = fuse::set(None).unwrap_or(0);
    machine.assert_told();
    machine.settle();
    let end = machine.end();
    (machine, u32::MAX - left, end)
}

/// Death at each `stride`-th store of a run.
fn dies_everywhere<M: Driven>(seed: u64, mapped: bool, stride: usize) {
    let (clean, stores, end) = run::<M>((seed, mapped), (None, None), None);
    assert!(stores > 500 && clean.sent > 25 && clean.arriving > 25, "{stores} {}", clean.sent);
    let (mut repeats, mut all) = (0, 0);
    for dies in (0..stores).step_by(stride) {
        let context = format!("seed {seed}, mapped {mapped}, store {dies} of {stores}");
        let (machine, _, as_before) =
            with_context(&context, || run::<M>((seed, mapped), (Some(dies), None), Some(&clean)));
        assert_eq!(machine.deaths, 1, "{context}");
        assert_eq!(end, as_before, "{context}");
        repeats += machine.delivered.repeats + machine.received.repeats;
        all += 1;
    }
    assert!(repeats > all / 50, "{repeats} frames came again in {all} runs");
    for again in [17, 97, 211] {
        let context = format!("seed {seed}, mapped {mapped}, each {again} stores");
        let (machine, ..) = with_context(&context, || {
            run::<M>((seed, mapped), (Some(again), Some(again)), Some(&clean))
        });
        assert!(machine.deaths > 1, "{context}");
    }
}

#[test]
fn e1000_trapped() {
    dies_everywhere::<I82540>(0x9e37_79b9, false, 1);
    (1..4).for_each(|seed| dies_everywhere::<I82540>(seed * 0x1234_5677, false, 23));
}

#[test]
fn e1000_mapped() {
    dies_everywhere::<I82540>(0x7f4a_7c15, true, 3);
    (1..4).for_each(|seed| dies_everywhere::<I82540>(seed * 0x2345_6789, true, 23));
}

#[test]
fn e1000e_trapped() {
    dies_everywhere::<I82574>(0x9e37_79b9, false, 3);
    (1..4).for_each(|seed| dies_everywhere::<I82574>(seed * 0x1234_5677, false, 23));
}

#[test]
fn e1000e_mapped() {
    (1..4).for_each(|seed| dies_everywhere::<I82574>(seed * 0x2345_6789, true, 23));
}
