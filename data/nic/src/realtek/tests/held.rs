//! The next process goes on from what one has left that died before any of its stores: see
//! [`crate::chip::held_judge`]. Rings of descriptors.
#![allow(clippy::cast_possible_truncation, clippy::indexing_slicing)]

use std::collections::VecDeque;

use vmlan_frame::Mac;

use super::cplus::Cplus;
use crate::chip::fixture::{MAC, frame};
use crate::chip::held::HELD;
use crate::chip::held_judge::words::*;
use crate::chip::held_judge::{Block, Life, Mortal, Random, all, dies_everywhere, lives_watched};
use crate::chip::stepped::has_a_point_before_each_store;
use crate::chip::{Config, PciFunction as _, Space};
use crate::r8169::R8169;
use crate::rtl8139::Rtl8139;
use vmlan_stepped::asked;

const TNPDS: u64 = 0x20;
const THPDS: u64 = 0x28;
const CR: u64 = 0x37;
const IMR: u64 = 0x3c;
const ISR: u64 = 0x3e;
const TCR: u64 = 0x40;
const RCR: u64 = 0x44;
const TCTR: u64 = 0x48;
const CR9346: u64 = 0x50;
const TIMERINT: u64 = 0x58;
const CPCR: u64 = 0xe0;
const RDSAR: u64 = 0xe4;
const CSBAL: u64 = 0xf0;
const CSBAH: u64 = 0xf4;

const OWN: u32 = 1 << 31;
const EOR: u32 = 1 << 30;
const FS: u32 = 1 << 29;
const LS: u32 = 1 << 28;
const TAGC: u32 = 1 << 17;

/// ROK, RER, TOK, TER, RDU, the link, FOVW, TDU.
const MASK: u32 = 0xff;
const BUFFER: u64 = 1024;
const TX_BUFFERS: u64 = 0x1_0000;
const RX_BUFFERS: u64 = 0x8_0000;

/// What the driver does otherwise with this chip.
trait Driven: Cplus {
    fn make(life: &Life) -> Self;
    /// C+CR.
    const COMMAND: u16;
    /// TPPoll.
    const POLL: u64;
    /// Descriptors of each ring: more than words are kept for, and not a multiple, if it can be.
    const RING: u32;
    /// Where received lengths are.
    const LEN: u32;
    /// What the PHY is told to advertise.
    fn advertise(machine: &mut Machine<Self>, value: u16);
    /// Registers of its own.
    const KNOWN: &'static [u64];
}

impl Driven for R8169 {
    fn make(life: &Life) -> Self {
        Self::new(Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: true }, life.host.clone())
    }

    const COMMAND: u16 = 8;
    const POLL: u64 = 0x38;
    const RING: u32 = 72;
    const LEN: u32 = 0x3fff;

    fn advertise(machine: &mut Machine<Self>, value: u16) {
        machine.set(0x60, &(1 << 31 | 4 << 16 | u32::from(value)).to_le_bytes());
        machine.set(0x60, &(4u32 << 16).to_le_bytes());
    }

    const KNOWN: &'static [u64] = &[0x60, 0x6c, 0xda];
}

impl Driven for Rtl8139 {
    fn make(life: &Life) -> Self {
        let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: true };
        Self::new(config, true, life.host.clone())
    }

    const COMMAND: u16 = 3;
    const POLL: u64 = 0xd9;
    const RING: u32 = 48;
    const LEN: u32 = 0x1fff;

    fn advertise(machine: &mut Machine<Self>, value: u16) {
        machine.set(0x66, &value.to_le_bytes());
    }

    const KNOWN: &'static [u64] = &[0x58, 0x62, 0x66];
}

struct Machine<C> {
    life: Life,
    chip: C,
    // Transmit: first not reaped, next to fill; the numbers of frames with their last descriptor.
    tx: (u32, u32),
    flights: VecDeque<(u32, u32)>,
    // Receive: next to look at, next to give back; a frame under way.
    rx: (u32, u32),
    partial: Vec<u8>,
    turn: u32,
    microwire: Vec<u32>,
    csb: Option<Block>,
}

impl<C: Driven> Machine<C> {
    fn new() -> Self {
        let life = Life::new(0x10_0000);
        let chip = C::make(&life);
        let (flights, partial, microwire) = Default::default();
        let (tx, rx, turn) = ((0, 0), (0, 0), 0);
        let mut machine = Self { life, chip, tx, flights, rx, partial, turn, microwire, csb: None };
        machine.chip = machine.another().0;
        machine.chip.note();
        machine.chip.set_link(true);
        machine.set_up();
        machine
    }

    /// Its driver has a CSB from the beginning.
    fn with_csb() -> Self {
        let mut machine = Self { csb: Some(Block::default()), ..Self::new() };
        machine.place();
        machine.turn_on();
        machine
    }

    /// The CSB is at the next place, or nowhere any more.
    fn place(&mut self) {
        let Some(csb) = &mut self.csb else { return };
        let at = csb.go();
        self.set(CSBAH, &[0; 4]);
        self.set(CSBAL, &at.to_le_bytes());
    }

    /// The CSB, if it is on.
    fn on(&self) -> Option<Block> {
        self.csb.filter(|csb| csb.is_on(&self.life))
    }

    fn turn_on(&mut self) {
        let Some(csb) = self.csb else { return };
        csb.turn_on(&self.life, (self.tx.1, self.rx.1));
        self.give_back();
    }

    fn turn_off(&mut self) {
        let Some(csb) = self.on() else { return };
        self.kick();
        csb.put(&self.life, CSB_ON, 0);
    }

    /// The driver turns its CSB on or off, moves it, places it once more; or stops a side for a
    /// while.
    fn around_csb(&mut self, random: &mut Random) {
        match random.below(4) {
            0..2 if self.on().is_some() => self.turn_off(),
            0..2 => self.turn_on(),
            2 => {
                self.turn_off();
                self.place();
            }
            _ if self.on().is_some() => {
                let low = self.get(CSBAL, 4);
                self.set(CSBAL, &low.to_le_bytes());
            }
            _ => {}
        }
    }

    /// The ring of high priority is used.
    fn high(&self) -> bool {
        self.csb.is_none() && !self.turn.is_multiple_of(2)
    }

    fn kick(&mut self) {
        self.set(C::POLL, &[if self.high() { 0x80 } else { 0x40 }]);
    }

    /// What was sent is published.
    fn publish(&mut self) {
        if self.on().is_none_or(|csb| csb.sends(&self.life, self.tx.1)) {
            self.kick();
        }
    }

    fn set(&mut self, at: u64, bytes: &[u8]) {
        self.access(|chip| chip.write(Space::Bar(1), at, bytes));
    }

    fn get(&mut self, at: u64, len: usize) -> u32 {
        self.access(|chip| {
            let mut bytes = [0; 4];
            chip.read(Space::Bar(1), at, &mut bytes[..len]);
            u32::from_le_bytes(bytes)
        })
    }

    /// Where the rings are: elsewhere after each reset.
    fn ring_at(&self, receive: bool) -> u64 {
        0x1000 + u64::from(self.turn % 2) * 0x2000 + u64::from(receive) * 0x1000
    }

    fn desc(&self, receive: bool, index: u32) -> u64 {
        self.ring_at(receive) + 16 * u64::from(index)
    }

    fn eor(index: u32) -> u32 {
        if index == C::RING - 1 { EOR } else { 0 }
    }

    fn next(index: u32) -> u32 {
        (index + 1) % C::RING
    }

    /// A descriptor, OWN last.
    fn give(&self, at: u64, opts1: u32, opts2: u32, addr: u64) {
        self.life.put(at + 8, &addr.to_le_bytes());
        self.life.put(at + 4, &opts2.to_le_bytes());
        self.life.put(at, &opts1.to_le_bytes());
    }

    fn set_up(&mut self) {
        self.configure(4, &[7, 0]);
        (0..C::RING).for_each(|i| self.give(self.desc(false, i), Self::eor(i), 0, 0));
        (self.tx, self.rx) = ((0, 0), (0, 0));
        (0..C::RING).for_each(|i| self.post(i));
        self.partial.clear();
        self.set(CR9346, &[0xc0]);
        self.set(CPCR, &C::COMMAND.to_le_bytes());
        self.set(0xda, &[0xff, 0x3f]);
        // The ring of high priority, each other time.
        let (used, other) = if self.high() { (THPDS, TNPDS) } else { (TNPDS, THPDS) };
        for (at, base) in [(used, self.ring_at(false)), (other, 0), (RDSAR, self.ring_at(true))] {
            self.set(at + 4, &[0; 4]);
            self.set(at, &(base as u32).to_le_bytes());
        }
        self.set(CR9346, &[0]);
        self.set(CR, &[0x0c]);
        self.set(RCR, &0xe70eu32.to_le_bytes());
        self.set(TCR, &0x0300_0700u32.to_le_bytes());
        self.set(ISR, &[0xff; 2]);
        self.set(IMR, &(MASK as u16).to_le_bytes());
    }

    fn reset(&mut self) {
        self.life.void.extend(self.flights.iter().map(|(n, _)| *n));
        self.flights.clear();
        self.set(IMR, &[0; 2]);
        self.set(CR, &[0x10]);
        // What it has not looked at is lost.
        self.life.received.next = self.life.received.next.max(self.life.arriving);
        self.turn += 1;
        self.set_up();
    }

    fn post(&self, index: u32) {
        let addr = RX_BUFFERS + BUFFER * u64::from(index);
        self.give(self.desc(true, index), OWN | Self::eor(index) | BUFFER as u32, 0, addr);
    }

    /// It looks at both rings.
    fn round(&mut self, gives_back: bool) {
        self.reap();
        self.take();
        if gives_back {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        while self.rx.1 != self.rx.0 {
            self.post(self.rx.1);
            self.rx.1 = Self::next(self.rx.1);
            if let Some(csb) = self.on() {
                csb.put(&self.life, GUEST_RDT, self.rx.1);
                if csb.get(&self.life, HOST_RXKICK_AT) == self.rx.1 {
                    self.kick();
                }
            }
        }
    }

    /// A frame, in one piece or two, some with a tag to be inserted.
    fn send(&mut self) {
        let free = (self.tx.0 + C::RING - self.tx.1 - 1) % C::RING;
        let n = self.life.sent;
        let mut random = Random(u64::from(n) * 0x9e37_79b9 + 1);
        random.below(1);
        let mut bytes = frame([0xff; 6], 70 + random.below(200) as usize);
        bytes[56..60].copy_from_slice(&n.to_le_bytes());
        bytes[60..64].copy_from_slice(&n.to_le_bytes());
        let at = TX_BUFFERS + 512 * u64::from(n % 256);
        self.life.put(at, &bytes);
        let tag = if random.below(4) == 0 { TAGC | n & 0xfff } else { 0 };
        let len = bytes.len() as u32;
        let parts =
            if random.below(3) == 0 { vec![(0u32, 40), (40, len - 40)] } else { vec![(0, len)] };
        let last = parts.len() as u32 - 1;
        if last + 1 > free {
            return;
        }
        let first = self.tx.1;
        let at_index = |i| (first + i) % C::RING;
        // The first one last, as drivers do.
        for (i, (offset, len)) in (0u32..).zip(parts).collect::<Vec<_>>().into_iter().rev() {
            let index = at_index(i);
            let bits = if i == 0 { FS } else { 0 } | if i == last { LS } else { 0 };
            let opts1 = OWN | Self::eor(index) | bits | len;
            self.give(self.desc(false, index), opts1, tag, at + u64::from(offset));
        }
        self.tx.1 = at_index(last + 1);
        self.flights.push_back((n, at_index(last)));
        self.life.sent += 1;
    }

    fn opts1(&self, at: u64) -> u32 {
        self.life.word(at) as u32
    }

    /// Frames that are sent, in order. Nothing of them stays but the end of the ring.
    fn reap(&mut self) {
        while let Some((n, last)) = self.flights.front().copied() {
            if self.opts1(self.desc(false, last)) & OWN != 0 {
                break;
            }
            assert!(n < self.life.delivered.high, "frame {n} is done, and was not sent");
            self.flights.pop_front();
            while self.tx.0 != Self::next(last) {
                let at = self.desc(false, self.tx.0);
                assert_eq!(self.opts1(at) & (OWN | EOR), Self::eor(self.tx.0));
                self.life.put(at, &Self::eor(self.tx.0).to_le_bytes());
                self.tx.0 = Self::next(self.tx.0);
            }
        }
    }

    fn take(&mut self) {
        // All but those that wait to be given back.
        while Self::next(self.rx.0) != self.rx.1 {
            let at = self.desc(true, self.rx.0);
            let opts1 = self.opts1(at);
            if opts1 & OWN != 0 {
                break;
            }
            assert_eq!(opts1 & EOR, Self::eor(self.rx.0));
            assert_eq!(opts1 & FS != 0, self.partial.is_empty());
            let mut len = (opts1 & C::LEN) as usize;
            if opts1 & LS != 0 {
                len -= self.partial.len();
            }
            let bytes = self.life.read(RX_BUFFERS + BUFFER * u64::from(self.rx.0), len);
            self.partial.extend(bytes);
            self.rx.0 = Self::next(self.rx.0);
            if opts1 & LS != 0 {
                let frame = std::mem::take(&mut self.partial);
                self.has(&frame);
            }
        }
    }

    /// The EEPROM's bus, the PHY and the timer, whose answers are compared.
    fn pins(&mut self, random: &mut Random) {
        self.set(CR9346, &[0x80 | random.below(16) as u8]);
        let read = self.get(CR9346, 1);
        self.microwire.push(read);
        let value = random.below(1 << 16);
        match random.below(4) {
            0 => C::advertise(self, value as u16),
            1 => self.set(TCTR, &[0; 4]),
            2 => self.set(TIMERINT, &(value as u32).to_le_bytes()),
            _ => {}
        }
    }
}

impl<C: Driven> Mortal for Machine<C> {
    type Chip = C;

    fn life(&mut self) -> &mut Life {
        &mut self.life
    }

    fn chip(&self) -> &C {
        &self.chip
    }

    fn another(&mut self) -> (C, bool) {
        let chip = C::make(&self.life);
        self.hold(&chip);
        (chip, false)
    }

    fn replace(&mut self, chip: C) {
        self.chip = chip;
    }

    fn look(&mut self, gives_back: bool) {
        let interrupted = self.life.interrupted();
        if let Some(csb) = self.on() {
            let acknowledge = |machine: &mut Self| {
                let causes = machine.get(ISR, 2) as u16;
                machine.set(ISR, &causes.to_le_bytes());
            };
            return csb.look(self, (interrupted, gives_back), acknowledge, Self::round);
        }
        if !interrupted {
            return;
        }
        let causes = self.get(ISR, 2);
        if causes & MASK == 0 {
            return;
        }
        if self.life.masks {
            self.set(IMR, &[0; 2]);
        }
        self.set(ISR, &(causes as u16).to_le_bytes());
        self.round(gives_back);
        self.set(IMR, &(MASK as u16).to_le_bytes());
    }

    fn send_some(&mut self) {
        (0..4).for_each(|_| self.send());
        self.publish();
    }

    fn unseen(&self) -> Option<&'static str> {
        let given = |receive, index| self.opts1(self.desc(receive, index)) & OWN == 0;
        let arrived = Self::next(self.rx.0) != self.rx.1 && given(true, self.rx.0);
        let sent = self.flights.front().is_some_and(|(_, last)| given(false, *last));
        arrived.then_some("what has arrived").or(sent.then_some("what was sent"))
    }

    fn step(&mut self, random: &mut Random) {
        self.life.host.sleep(1000);
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
        assert!(self.flights.is_empty(), "not said to be sent");
        if let Some(csb) = self.on() {
            let heads = [HOST_TDH, HOST_RDH].map(|at| csb.get(&self.life, at));
            assert_eq!(heads, [self.tx.1, self.rx.0], "a head was not told");
            assert_eq!(csb.get(&self.life, HOST_RXKICK_AT), u32::MAX, "a wish of before");
        }
        // What was sent leaves the tag as it was, and nothing of ours.
        for index in 0..C::RING {
            let word = self.life.word(self.desc(false, index));
            assert_eq!(word >> 32 & !u64::from(TAGC | 0xfff), 0, "descriptor {index}");
        }
        let known =
            [0, 4, 8, 0x34, IMR, TCR, RCR, TCTR, TIMERINT, CPCR, RDSAR, TNPDS, THPDS, CSBAL, CSBAH];
        let known = known.iter().chain(C::KNOWN);
        let mut list: Vec<u32> = known.map(|at| self.get(*at, 4)).collect();
        // ISR is of no time.
        list[4] &= 0xffff;
        list.append(&mut self.microwire);
        let mut config = [0; 256];
        self.chip.read(Space::Config, 0, &mut config);
        list.extend(config.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        list
    }
}

/// The driver says where the receive ring is while the chip is on, as older releases of Linux do;
/// a frame comes, and the switch dies before it notes that the access was made.
#[test]
fn a_ring_that_moves_does_not_begin_twice() {
    let mut machine = Machine::<R8169>::new();
    let base = (machine.ring_at(true) as u32).to_le_bytes();
    for arriving in [2, 0] {
        machine.chip.write(Space::Bar(1), RDSAR, &base);
        machine.rx = (0, 0);
        (0..R8169::RING).for_each(|i| machine.post(i));
        machine.push(arriving);
        machine.die();
        machine.set(RDSAR, &base);
        let before = machine.life.arriving;
        machine.push(3);
        assert_eq!(machine.life.arriving, before + 3, "it finds no room");
        machine.look(true);
        assert_eq!(machine.life.received.next, machine.life.arriving);
        assert_eq!(machine.unseen(), None);
    }
}

#[test]
fn r8169() {
    dies_everywhere(Machine::<R8169>::new, 0x9e37_79b9, 1);
    (1..4).for_each(|seed| dies_everywhere(Machine::<R8169>::new, seed * 0x1234_5677, 23));
}

#[test]
fn rtl8139_plus() {
    dies_everywhere(Machine::<Rtl8139>::new, 0x9e37_79b9, 3);
    (1..4).for_each(|seed| dies_everywhere(Machine::<Rtl8139>::new, seed * 0x1234_5677, 23));
}

#[test]
fn r8169_with_a_csb() {
    dies_everywhere(Machine::<R8169>::with_csb, 0x9e37_79b9, 3);
    (1..6).for_each(|seed| dies_everywhere(Machine::<R8169>::with_csb, seed * 0x1234_5677, 17));
}

#[test]
fn rtl8139_plus_with_a_csb() {
    dies_everywhere(Machine::<Rtl8139>::with_csb, 0x9e37_79b9, 5);
    (1..6).for_each(|seed| dies_everywhere(Machine::<Rtl8139>::with_csb, seed * 0x1234_5677, 17));
}

/// The heads are told again; and of whoever did not note where the CSB is, nothing is believed.
fn finds_its_csb<C: Driven>() {
    let mut machine = Machine::<C>::with_csb();
    machine.push(2);
    machine.send_some();
    machine.pull(256, 0);
    let csb = machine.on().unwrap();
    let heads = [HOST_TDH, HOST_RDH].map(|at| csb.get(&machine.life, at));
    [HOST_TDH, HOST_RDH].into_iter().for_each(|at| csb.put(&machine.life, at, 77));
    machine.die();
    assert_eq!([HOST_TDH, HOST_RDH].map(|at| csb.get(&machine.life, at)), heads);
    let mut remains = all(&machine.life.held, HELD);
    assert_eq!(machine.another().0.revive(&remains, false), Ok(()));
    remains[4] = 0;
    assert!(machine.another().0.revive(&remains, false).is_err());
}

#[test]
fn csbs_are_found() {
    finds_its_csb::<R8169>();
    finds_its_csb::<Rtl8139>();
}

#[test]
#[ignore = "run by the next one"]
fn lives() {
    match asked().as_deref() {
        Some("r8169") => lives_watched(Machine::<R8169>::new),
        Some("rtl8139, C+") => lives_watched(Machine::<Rtl8139>::new),
        Some("r8169, CSB") => lives_watched(Machine::<R8169>::with_csb),
        _ => {}
    }
}

#[test]
fn death_at_any_instruction_is_death_before_a_store() {
    for what in ["r8169", "rtl8139, C+", "r8169, CSB"] {
        has_a_point_before_each_store("realtek::held::lives", what);
    }
}
