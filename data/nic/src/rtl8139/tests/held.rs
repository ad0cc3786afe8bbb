//! The next process goes on from what one has left that died before any of its stores: see
//! [`crate::chip::held_judge`]. Classic mode; C+ mode is in [`crate::realtek`].
#![allow(clippy::cast_possible_truncation, clippy::indexing_slicing)]

use std::collections::VecDeque;

use vmlan_frame::Mac;

use super::super::Rtl8139;
use crate::chip::fixture::{MAC, frame};
use crate::chip::held_judge::{Life, Mortal, Random, dies_everywhere, lives_watched};
use crate::chip::stepped::has_a_point_before_each_store;
use crate::chip::{Config, PciFunction as _, Space};
use vmlan_stepped::asked;

const TSD0: u64 = 0x10;
const TSAD0: u64 = 0x20;
const RBSTART: u64 = 0x30;
const CR: u64 = 0x37;
const CAPR: u64 = 0x38;
const CBR: u64 = 0x3a;
const IMR: u64 = 0x3c;
const ISR: u64 = 0x3e;
const TCR: u64 = 0x40;
const RCR: u64 = 0x44;
const CR9346: u64 = 0x50;
const ANAR: u64 = 0x66;

const OWN: u32 = 1 << 13;
const TOK: u32 = 1 << 15;
/// ROK, RER, TOK, TER, RXOVW, the link, FOVW.
const MASK: u32 = 0x7f;
const BUFFER: u64 = 0x8_0000;
const SIZE: u32 = 8192;
const TX_BUFFERS: u64 = 0x1_0000;

struct Machine {
    life: Life,
    chip: Rtl8139,
    /// Transmit: first not reaped, next to fill; the numbers of frames in between.
    tx: (u32, u32),
    flights: VecDeque<u32>,
    /// Where the next frame begins in the receive buffer.
    rx: u32,
    microwire: Vec<u32>,
}

fn make(life: &Life) -> Rtl8139 {
    let config = Config { mac: Mac::new(MAC), irq_rate_max: 0, csb: false };
    Rtl8139::new(config, false, life.host.clone())
}

impl Machine {
    fn new() -> Self {
        let life = Life::new(0x10_0000);
        let chip = make(&life);
        let (flights, microwire) = Default::default();
        let mut machine = Self { life, chip, tx: (0, 0), flights, rx: 0, microwire };
        machine.chip = machine.another().0;
        machine.chip.note();
        machine.chip.set_link(true);
        machine.set_up();
        machine
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

    /// In the order of Linux' 8139too.
    fn set_up(&mut self) {
        self.configure(4, &[7, 0]);
        (self.tx, self.rx) = ((0, 0), 0);
        self.set(CR, &[0x0c]);
        // No WRAP: what reaches the end goes on at the beginning.
        self.set(RCR, &0xe70eu32.to_le_bytes());
        self.set(TCR, &0x0300_0700u32.to_le_bytes());
        self.set(RBSTART, &(BUFFER as u32).to_le_bytes());
        for n in 0..4 {
            let at = (TX_BUFFERS + 0x1000 * n) as u32;
            self.set(TSAD0 + 4 * n, &at.to_le_bytes());
        }
        self.set(CR, &[0x0c]);
        self.set(IMR, &(MASK as u16).to_le_bytes());
    }

    fn reset(&mut self) {
        self.life.void.extend(&self.flights);
        self.flights.clear();
        self.set(IMR, &[0; 2]);
        self.set(CR, &[0x10]);
        // What it has not looked at is lost.
        self.life.received.next = self.life.received.next.max(self.life.arriving);
        self.set_up();
    }

    fn send(&mut self) {
        if self.tx.1 - self.tx.0 == 4 {
            return;
        }
        let n = self.life.sent;
        let mut bytes = frame([0xff; 6], 70 + n as usize * 31 % 200);
        bytes[60..64].copy_from_slice(&n.to_le_bytes());
        let pair = u64::from(self.tx.1 % 4);
        self.life.put(TX_BUFFERS + 0x1000 * pair, &bytes);
        self.flights.push_back(n);
        self.tx.1 += 1;
        self.life.sent += 1;
        self.set(TSD0 + 4 * pair, &(bytes.len() as u32).to_le_bytes());
    }

    fn reap(&mut self) {
        while self.tx.0 != self.tx.1 {
            let status = self.get(TSD0 + 4 * u64::from(self.tx.0 % 4), 4);
            if status & (OWN | TOK) != OWN | TOK {
                break;
            }
            let n = self.flights.pop_front().unwrap();
            assert!(n < self.life.delivered.high, "frame {n} is done, and was not sent");
            self.tx.0 += 1;
        }
    }

    /// Frames in the buffer. They are given back together.
    fn take(&mut self, gives_back: bool) {
        while self.get(CBR, 2) != self.rx {
            let around = |at: u32| BUFFER + u64::from(at % SIZE);
            let header = self.life.read(around(self.rx), 4);
            let len = u32::from(u16::from_le_bytes([header[2], header[3]]));
            assert_eq!((header[0], header[1] >> 4), (1, 2), "a broadcast");
            let before_end = len.min(SIZE - (self.rx + 4) % SIZE);
            let mut bytes = self.life.read(around(self.rx + 4), before_end as usize);
            bytes.extend(self.life.read(BUFFER, (len - before_end) as usize));
            self.has(&bytes);
            self.rx = (self.rx + 4 + len).next_multiple_of(4) % SIZE;
        }
        if gives_back {
            self.set(CAPR, &((self.rx.wrapping_sub(16)) as u16).to_le_bytes());
        }
    }
}

impl Mortal for Machine {
    type Chip = Rtl8139;
    const LONG: usize = 1500;
    const STEPS: u32 = 150;
    /// A batch is of four at most.
    const SELDOM: usize = 400;

    fn life(&mut self) -> &mut Life {
        &mut self.life
    }

    fn chip(&self) -> &Rtl8139 {
        &self.chip
    }

    fn another(&mut self) -> (Rtl8139, bool) {
        let chip = make(&self.life);
        self.hold(&chip);
        (chip, false)
    }

    fn replace(&mut self, chip: Rtl8139) {
        self.chip = chip;
    }

    fn look(&mut self, gives_back: bool) {
        if !self.life.interrupted() {
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
        self.reap();
        self.take(gives_back);
        self.set(IMR, &(MASK as u16).to_le_bytes());
    }

    fn send_some(&mut self) {
        (0..4).for_each(|_| self.send());
    }

    fn unseen(&self) -> Option<&'static str> {
        let register = |at, len: usize| {
            let mut bytes = [0; 4];
            self.chip.read(Space::Bar(1), at, &mut bytes[..len]);
            u32::from_le_bytes(bytes)
        };
        let arrived = register(CBR, 2) != self.rx;
        let status = register(TSD0 + 4 * u64::from(self.tx.0 % 4), 4);
        let sent = self.tx.0 != self.tx.1 && status & (OWN | TOK) == OWN | TOK;
        arrived.then_some("what has arrived").or(sent.then_some("what was sent"))
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(16) {
            0..5 => {
                let count = random.below(5);
                (0..count).for_each(|_| self.send());
            }
            5..8 => {
                let every = if random.below(3) == 0 { 1 + random.below(3) as usize } else { 0 };
                self.pull(256, every);
            }
            8..10 => self.push(1 + random.below(6) as u32),
            10..14 => {
                let gives_back = random.below(3) > 0;
                self.look(gives_back);
            }
            14 => {
                self.set(CR9346, &[0x80 | random.below(16) as u8]);
                let read = self.get(CR9346, 1);
                self.microwire.push(read);
                let value = random.below(1 << 16) as u16;
                self.set(ANAR, &value.to_le_bytes());
            }
            _ if random.below(6) == 0 => self.reset(),
            _ => {}
        }
    }

    fn end(&mut self) -> Vec<u32> {
        assert!(self.flights.is_empty(), "not said to be sent");
        assert_eq!(self.get(CBR, 2) % SIZE, self.rx);
        assert_eq!(self.get(CAPR, 2).wrapping_add(16) % SIZE, self.rx);
        let known = [0, 4, 8, TSAD0, RBSTART, TCR, RCR, 0x58, 0x62, ANAR];
        let mut list: Vec<u32> = known.into_iter().map(|at| self.get(at, 4)).collect();
        list.push(self.get(IMR, 2));
        list.push(self.get(CR, 1));
        list.append(&mut self.microwire);
        let mut config = [0; 256];
        self.chip.read(Space::Config, 0, &mut config);
        list.extend(config.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        list
    }
}

/// A worker has sent a frame before anybody noted that it was given, and the switch dies.
#[test]
fn a_frame_that_was_sent_is_not_given_again() {
    let mut machine = Machine::new();
    for n in 0..6u32 {
        machine.send();
        machine.pull(256, 0);
        machine.die();
        let len = 70 + n * 31 % 200;
        machine.set(TSD0 + 4 * u64::from(n % 4), &len.to_le_bytes());
        machine.pull(256, 0);
        machine.look(true);
        assert_eq!((machine.life.delivered.repeats, machine.flights.len()), (0, 0));
    }
}

#[test]
fn rtl8139_classic() {
    dies_everywhere(Machine::new, 0x9e37_79b9, 3);
    (1..6).for_each(|seed| dies_everywhere(Machine::new, seed * 0x1234_5677, 23));
}

#[test]
#[ignore = "run by the next one"]
fn lives() {
    if asked().is_some() {
        lives_watched(Machine::new);
    }
}

#[test]
fn death_at_any_instruction_is_death_before_a_store() {
    has_a_point_before_each_store("rtl8139::tests::held::lives", "rtl8139");
}
