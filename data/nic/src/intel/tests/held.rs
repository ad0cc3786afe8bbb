//! The next process goes on from what one has left that died before any of its stores: see
//! [`crate::chip::held_judge`].
#![allow(clippy::cast_possible_truncation, clippy::indexing_slicing)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::{Mac, Offload};
use vmlan_ram::Map;

use super::guest::*;
use super::{Intel, Model};
use crate::chip::Space;
use crate::chip::held::fuse;
use crate::chip::held_judge::{Block, Life, Mortal, Random, all, dies_everywhere, window};
use crate::e1000::I82540;
use crate::e1000e::I82574;

#[path = "held_csb.rs"]
mod csb;
#[path = "held_link.rs"]
mod link;
use csb::{CSBAH, CSBAL};

const RING: u32 = 32;
const IMS: u64 = 0xd0;
const IMC: u64 = 0xd8;
const EECD: u64 = 0x10;
const MDIC: u64 = 0x20;
const IOADDR: u64 = 0;
const BUFFER: u64 = 1024;

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
    life: Life,
    chip: Intel<M>,
    registers: Arc<Map>,
    mapped: bool,
    // Transmit: first not reaped, next to fill; the numbers of frames with their last descriptor.
    tx: (u32, u32),
    flights: VecDeque<(u32, u32)>,
    /// Nothing was sent since the last reset.
    fresh: bool,
    // Receive: next to look at, next to give back; a frame under way.
    rx: (u32, u32),
    partial: Vec<u8>,
    turn: u32,
    microwire: Vec<bool>,
    csb: Option<Block>,
    goes_on: bool,
}

fn make<M: Model>(registers: &Arc<Map>, life: &Life) -> Intel<M> {
    let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: true };
    Intel::new(config, window(registers, 0x2000), life.host.clone())
}

impl<M: Driven> Machine<M> {
    fn new(mapped: bool) -> Self {
        let (life, registers) = (Life::new(MEMORY), memory(0x2000));
        let chip = make(&registers, &life);
        let (flights, partial, microwire) = Default::default();
        let (tx, rx, fresh, turn) = ((0, 0), (0, 0), true, 0);
        let mut machine = Self {
            life,
            chip,
            registers,
            mapped,
            tx,
            flights,
            fresh,
            rx,
            partial,
            turn,
            microwire,
            csb: None,
            goes_on: false,
        };
        let chip = machine.another().0;
        chip.note();
        chip.set_link(true);
        machine.chip = chip;
        machine.set_up();
        machine
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
            self.life.put(at, &[0; 16 * RING as usize]);
            self.set(base, at as u32);
            self.set(base + LEN, RING * 16);
            self.set(base + HEAD, 0);
            self.set(base + TAIL, 0);
        }
        (self.tx, self.rx) = ((0, 0), (0, 0));
        self.partial.clear();
        self.fresh = true;
        self.csb.iter().for_each(|csb| csb.put(&self.life, csb::GUEST_TDT, 0));
        self.give_back();
        self.set(IMS, M::MASK);
        self.set(0x400, 2 | 8);
        // Broadcasts, long ones; buffers of 1 KiB.
        self.set(0x100, 2 | 1 << 15 | 1 << 5 | 1 << 16);
    }

    fn reset(&mut self) {
        self.life.void.extend(self.flights.iter().map(|(n, _)| *n));
        self.flights.clear();
        self.set(IMC, u32::MAX);
        self.set(0, 1 << 26);
        // What it has not looked at is lost.
        self.life.received.next = self.life.received.next.max(self.life.arriving);
        self.turn += 1;
        self.set_up();
    }

    /// It looks at both rings.
    fn round(&mut self, gives_back: bool) {
        self.reap();
        self.take();
        if gives_back {
            self.give_back();
        }
    }

    /// Gives receive buffers back: the address anew, nothing else.
    fn give_back(&mut self) {
        let (looks, mut at) = self.rx;
        while (at + 1) % RING != looks {
            let desc = self.ring_at(true) + 16 * u64::from(at);
            self.life.put(desc, &(RX_BUFFERS + BUFFER * u64::from(at)).to_le_bytes());
            at = (at + 1) % RING;
        }
        let before = std::mem::replace(&mut self.rx.1, at);
        if at == before {
            return;
        }
        if self.publish_buffers(before) {
            self.set(RD + TAIL, at);
        }
    }

    /// A packet for which the chip is to find the checksum, with a context or without a new one.
    fn send(&mut self) {
        let free = (self.tx.0 + RING - self.tx.1 - 1) % RING;
        let n = self.life.sent;
        let mut random = Random(u64::from(n) * 0x9e37_79b9 + 1);
        random.below(1);
        let mut packet = tcp(false, 60 + random.below(200) as usize);
        packet[60..64].copy_from_slice(&n.to_le_bytes());
        let at = TX_BUFFERS + 512 * u64::from(n % 256);
        self.life.put(at, &packet);
        let (len, mut list) = (packet.len() as u64, Vec::new());
        // One for four frames, and the first after a reset: where the checksum's range ends.
        if n.is_multiple_of(4) || self.fresh {
            let which = u64::from(n / 4 % 3);
            let end = if which == 0 { 0 } else { 90 + which };
            list.push((14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40 | end << 48, DEXT | 1 << 24));
        }
        let (bits, split) =
            (if random.below(4) > 0 { DATA | TXSM } else { 0 }, random.below(3) == 0);
        let parts = if split { vec![(0, 40), (40, len - 40)] } else { vec![(0, len)] };
        let last = parts.len() - 1;
        // Some are not reported by themselves.
        let report = if random.below(4) == 0 { 0 } else { RS };
        for (i, (offset, len)) in parts.into_iter().enumerate() {
            let end = if i == last { EOP | report } else { 0 };
            list.push((at + offset, len | bits | IFCS | end));
        }
        if list.len() as u32 > free {
            return;
        }
        for (first, second) in list {
            let desc = self.ring_at(false) + 16 * u64::from(self.tx.1);
            self.life.put(desc, &first.to_le_bytes());
            self.life.put(desc + 8, &second.to_le_bytes());
            self.tx.1 = (self.tx.1 + 1) % RING;
        }
        self.flights.push_back((n, (self.tx.1 + RING - 1) % RING));
        self.life.sent += 1;
        self.fresh = false;
    }

    /// The second quadword of a transmit descriptor.
    fn said_of_sent(&self, index: u32) -> u64 {
        self.life.word(self.ring_at(false) + 16 * u64::from(index) + 8)
    }

    /// Frames whose last descriptor is done, in order, and those before one that is.
    fn reap(&mut self) {
        let done = |(_, last): &(u32, u32)| self.said_of_sent(*last) >> 32 & 1 != 0;
        let count = self.flights.iter().rposition(done);
        for _ in 0..count.map_or(0, |count| count + 1) {
            let (n, last) = self.flights.pop_front().unwrap();
            assert!(n < self.life.delivered.high, "frame {n} is done, and was not sent");
            while self.tx.0 != (last + 1) % RING {
                let status = self.ring_at(false) + 16 * u64::from(self.tx.0) + 12;
                self.life.put(status, &[0; 4]);
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
            let word = self.life.word(desc + 8);
            let (status, len) = M::said_of(word);
            if status & 1 == 0 {
                break;
            }
            self.life.put(desc + 8, &M::cleared(word).to_le_bytes());
            let buffer = RX_BUFFERS + BUFFER * u64::from(self.rx.0);
            self.partial.extend(self.life.read(buffer, len));
            self.rx.0 = (self.rx.0 + 1) % RING;
            if status & 2 != 0 {
                let frame = std::mem::take(&mut self.partial);
                self.has(&frame);
            }
        }
    }

    /// The next switch goes on with the state.
    fn hand_over(&mut self) {
        let state = self.chip.save();
        let (chip, _) = self.another();
        assert_eq!(chip.restore(&state), Ok(()));
        chip.note();
        self.replace(chip);
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
}

impl<M: Driven> Mortal for Machine<M> {
    type Chip = Intel<M>;

    fn life(&mut self) -> &mut Life {
        &mut self.life
    }

    fn chip(&self) -> &Intel<M> {
        &self.chip
    }

    fn another(&mut self) -> (Intel<M>, bool) {
        if !self.mapped {
            self.registers = memory(0x2000);
        }
        let pages = all(&self.registers, 0x2000);
        let chip = make(&self.registers, &self.life);
        self.hold(&chip);
        if self.mapped {
            self.registers.slice_mut(0, pages.len()).unwrap().write(0, &pages);
        }
        (chip, self.mapped)
    }

    fn replace(&mut self, chip: Intel<M>) {
        self.chip = chip;
    }

    fn meanwhile(&mut self) -> Option<(u64, u32)> {
        self.send_meanwhile()
    }

    fn look(&mut self, gives_back: bool) {
        let interrupted = self.life.interrupted();
        if let Some(csb) = self.on() {
            let acknowledge = |machine: &mut Self| {
                machine.get(ICR);
            };
            return csb.look(self, (interrupted, gives_back), acknowledge, Self::round);
        }
        if !interrupted {
            return;
        }
        let causes = self.get(ICR);
        if !M::VECTORS && causes & M::MASK == 0 {
            // Not from here.
            return;
        }
        // Those of messages mask themselves.
        let mask = if M::VECTORS || self.life.masks { M::MASK } else { 0 };
        self.set(IMC, mask);
        self.round(gives_back);
        self.set(IMS, mask);
    }

    fn send_some(&mut self) {
        (0..4).for_each(|_| self.send());
        self.publish();
    }

    fn unseen(&self) -> Option<&'static str> {
        self.assert_heads();
        let word = self.life.word(self.ring_at(true) + 16 * u64::from(self.rx.0) + 8);
        let unseen = self.rx.0 != self.rx.1 && M::said_of(word).0 & 1 != 0;
        let done =
            |(_, last): &(u32, u32)| self.said_of_sent(*last) & (1 << 32 | RS) == 1 << 32 | RS;
        let sent = self.flights.iter().any(done);
        unseen.then_some("what has arrived").or(sent.then_some("what was sent"))
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(16) {
            0..4 => {
                (0..=random.below(8)).for_each(|_| self.send());
                self.publish();
            }
            4..7 => {
                let limit = 1 + random.below(40) as usize;
                let every = if random.below(3) == 0 { 1 + random.below(5) as usize } else { 0 };
                self.pull(limit, every);
            }
            7..10 => self.push(1 + random.below(12) as u32),
            10..14 => {
                let gives_back = random.below(3) > 0;
                self.look(gives_back);
            }
            14 if self.csb.is_some() => self.around_csb(random),
            14 => self.pins(random),
            _ if random.below(6) == 0 => self.reset(),
            _ => {}
        }
    }

    fn end(&mut self) -> Vec<u32> {
        self.turn_off_last();
        let reported = |(_, last): &(u32, u32)| self.said_of_sent(*last) & RS != 0;
        assert!(!self.flights.iter().any(reported), "not said to be sent");
        for (base, tail) in [(TD, self.tx.1), (RD, self.rx.1)] {
            assert_eq!(self.get(base + TAIL), tail);
        }
        assert_eq!(self.get(TD + HEAD), self.tx.1);
        assert_eq!(self.get(RD + HEAD), self.rx.0);
        let known = [
            CSBAL,
            CSBAH,
            0,
            0x8,
            0x18,
            0x20,
            IMS,
            0x100,
            0x400,
            0x5008,
            RA,
            RA + 4,
            MTA,
            TD,
            RD,
            0x3808,
        ];
        let mut list: Vec<u32> = known.into_iter().map(|at| self.get(at)).collect();
        list.extend(self.microwire.iter().map(|bit| u32::from(*bit)));
        list.push(self.read(M::PORTS, IOADDR));
        let mut config = [0; 256];
        self.chip.read(Space::Config, 0, &mut config);
        list.extend(config.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        list
    }
}

/// What descriptors have said outlives a hand-over, and a death after that.
fn contexts_stay<M: Driven>() {
    let run = |hands_over: bool, first: &HashMap<u32, (Vec<u8>, Offload)>| {
        let mut machine = Machine::<M>::new(false);
        machine.life.delivered.first.clone_from(first);
        // The first has a context, the others have not.
        machine.send();
        machine.set(TD + TAIL, machine.tx.1);
        machine.pull(1, 0);
        if hands_over {
            machine.hand_over();
            machine.die();
        }
        (1..4).for_each(|_| machine.send());
        machine.set(TD + TAIL, machine.tx.1);
        machine.pull(256, 0);
        assert_eq!(machine.life.delivered.next, 4);
        machine.life.delivered.first
    };
    let first = run(false, &HashMap::new());
    assert!(first.values().filter(|(_, offload)| *offload != Offload::NONE).count() > 2);
    run(true, &first);
}

#[test]
fn contexts_outlive_a_hand_over_and_a_death() {
    contexts_stay::<I82540>();
    contexts_stay::<I82574>();
}

/// A frame that no ring holds is given back before its end is posted. Wherever the switch dies, the
/// rest of it is no frame.
fn passes_over_the_rest<M: Driven>() {
    for stores in 0.. {
        let mut machine = Machine::<M>::new(false);
        let mut packet = tcp(false, 100);
        packet[60..64].fill(77);
        let buffer = TX_BUFFERS + 512 * 200;
        machine.life.put(buffer, &packet);
        let all = packet.len() as u64 | IFCS | RS;
        let put = |machine: &Machine<M>, at: u32, word: u64| {
            let desc = machine.ring_at(false) + 16 * u64::from(at);
            machine.life.put(desc, &buffer.to_le_bytes());
            machine.life.put(desc + 8, &word.to_le_bytes());
        };
        (0..RING - 1).for_each(|at| put(&machine, at, all));
        machine.set(TD + TAIL, RING - 1);
        fuse::set(Some(stores));
        machine.pull(256, 0);
        let lives = fuse::set(None).is_some();
        machine.pull(256, 0);
        assert_eq!(machine.get(TD + HEAD), RING - 1, "it waits for what there is no room for");
        // In the midst of it.
        (0..2).for_each(|_| machine.die());
        machine.hand_over();
        machine.die();
        put(&machine, RING - 1, all | EOP);
        machine.tx = (RING - 1, 0);
        machine.send();
        machine.set(TD + TAIL, machine.tx.1);
        machine.pull(256, 0);
        let came = &machine.life.delivered.first;
        assert_eq!(came.keys().copied().collect::<Vec<_>>(), [0], "died before store {stores}");
        assert_eq!(came[&0].0[60..64], [0; 4]);
        assert_eq!(machine.get(TD + HEAD), machine.tx.1);
        if lives {
            assert!(stores > 30, "{stores}");
            return;
        }
    }
}

#[test]
fn the_rest_of_a_frame_is_passed_over() {
    passes_over_the_rest::<I82540>();
    passes_over_the_rest::<I82574>();
}

/// One that is held stands in front of it, and has not been sent.
#[test]
fn a_frame_that_is_held_is_not_passed_over_with_the_next() {
    const ALL: u32 = 256;
    let mut machine = Machine::<I82540>::new(false);
    machine.set(TD + LEN, 16 * ALL);
    for at in 0..=130u32 {
        let buffer = TX_BUFFERS + 512 * u64::from(at.min(2));
        let mut packet = tcp(false, 100);
        packet[60..64].copy_from_slice(&at.to_le_bytes());
        machine.life.put(buffer, &packet);
        let end = if at < 2 { EOP } else { 0 };
        let desc = machine.ring_at(false) + 16 * u64::from(at);
        machine.life.put(desc, &buffer.to_le_bytes());
        machine.life.put(desc + 8, &(packet.len() as u64 | IFCS | RS | end).to_le_bytes());
    }
    machine.set(TD + TAIL, 131);
    machine.pull(256, 2);
    assert_eq!((machine.get(TD + HEAD), machine.life.delivered.next), (1, 1));
    machine.die();
    machine.pull(256, 0);
    assert_eq!((machine.get(TD + HEAD), machine.life.delivered.next), (131, 2));
}

#[test]
fn e1000_trapped() {
    dies_everywhere(|| Machine::<I82540>::new(false), 0x9e37_79b9, 1);
    (1..4)
        .for_each(|seed| dies_everywhere(|| Machine::<I82540>::new(false), seed * 0x1234_5677, 23));
}

#[test]
fn e1000_mapped() {
    dies_everywhere(|| Machine::<I82540>::new(true), 0x7f4a_7c15, 3);
    (1..4)
        .for_each(|seed| dies_everywhere(|| Machine::<I82540>::new(true), seed * 0x2345_6789, 23));
}

#[test]
fn e1000e_trapped() {
    dies_everywhere(|| Machine::<I82574>::new(false), 0x9e37_79b9, 3);
    (1..4)
        .for_each(|seed| dies_everywhere(|| Machine::<I82574>::new(false), seed * 0x1234_5677, 23));
}

#[test]
fn e1000e_mapped() {
    (1..4)
        .for_each(|seed| dies_everywhere(|| Machine::<I82574>::new(true), seed * 0x2345_6789, 23));
}
