//! The body of the fuzz target `vmxnet3`: see [`crate::chip::fuzz`].
//!
//! The byte of configuration has these bits. 1: an MTU of 9000; 2: vectors do not mask themselves;
//! 4: tags are stripped; 5: checksums are looked at; 6: bodies in the second receive ring; 7:
//! moderation.
//!
//! Steps. 4: a word of DriverShared or of a queue's descriptor; 5: bits of a descriptor; 6:
//! descriptors are given; 7: a command; 14: a mask, or ICR; 15: another register.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;

use vmlan_ram::Window;

use super::Vmxnet3;
use crate::chip::fuzz::{Filled, Fuzzed, Part, RING, RX_RING, Run, TX_RING, run};
use crate::chip::{Chip, Config, Gate, Host, PciFunction, Space};

/// Where a set-up driver has the rest.
const SHARED: u32 = 0x400;
const TX_DONE: u32 = 0x1200;
const QUEUES: u32 = 0x1400;
const SECOND: u32 = 0x1600;
const RX_DONE: u32 = 0x1800;
const BODIES: u32 = 0x3000;
/// By the numbers that steps have for them: the ring, and the place of its generation bit.
const RINGS: [(u32, u32); 3] = [(TX_RING, 14), (RX_RING, 31), (SECOND, 31)];
const SIZE: u32 = 16;

const CMD: u64 = 0x20;
const ACTIVATE: u32 = 0xcafe_0000;
const RESET: u32 = 0xcafe_0002;

const EOP: u32 = 1 << 12;
const CQ: u32 = 1 << 13;

/// Registers of BAR1 that are written.
const REGISTERS: [u64; 8] = [0x00, 0x08, 0x10, 0x18, 0x28, 0x30, 0x38, 0x40];

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn vmxnet3(data: &[u8]) -> (u64, u64) {
    run::<Vmxnet3>(data)
}

fn set(run: &Run<'_, Vmxnet3>, at: u64, value: u32) {
    run.chip.write(Space::Bar(1), at, &value.to_le_bytes());
}

/// Gives a descriptor to the device: its generation bit becomes another than it was.
fn give(run: &Run<'_, Vmxnet3>, ring: usize, index: u32, word: u32) {
    let (base, bit) = RINGS[ring];
    let at = base + SIZE * index + 8;
    let generation = !run.peek(at) & 1 << bit;
    run.poke(at, word & !(1 << bit) | generation);
}

/// DriverShared and the descriptors of one queue each way.
fn share(run: &Run<'_, Vmxnet3>, byte: u8) {
    let on = |bit: u8, value: u32| if byte >> bit & 1 != 0 { value } else { 0 };
    let (second, level) = (on(6, RING), on(7, 0x0b0b_0b0b));
    for (at, value) in [
        (0x00, 0xbabe_fee1),
        (0x18, on(4, 4) | on(5, 1)),
        (0x28, QUEUES),
        (0x2c, 0),
        (0x34, 512),
        (0x38, if byte & 2 != 0 { 9000 } else { 1500 }),
        (0x3c, 1 << 16 | 1 << 24),
        (0x50, u32::from(byte & 4 == 0) | 25 << 8 | 1 << 16),
        (0x54, level),
        (0x78, 0x1f),
    ] {
        run.poke(SHARED + at, value);
    }
    for (at, value) in [
        (0x10, TX_RING),
        (0x20, TX_DONE),
        (0x38, RING),
        (0x40, RING),
        (0x110, RX_RING),
        (0x118, SECOND),
        (0x120, RX_DONE),
        (0x138, RING),
        (0x13c, second),
        (0x140, RING + second),
    ] {
        run.poke(QUEUES + at, value);
    }
}

impl Fuzzed for Vmxnet3 {
    /// There is no CSB.
    const CSBAL: u64 = 0xff8;
    const FCS: u32 = 0;

    fn make(config: Config, _: Window, host: Arc<dyn Host>, _: u8) -> Self {
        let chip = Self::new(config, host);
        chip.set_link(true);
        chip
    }

    fn set_up(run: &mut Run<'_, Self>, byte: u8) {
        run.configure(4, &[6, 0]);
        run.configure(0x9e, &[0x18, 0x80]);
        share(run, byte);
        if byte & 0x40 != 0 {
            for index in 0..RING {
                run.poke(SECOND + SIZE * index, BODIES);
                give(run, 2, index, 512 | 1 << 14);
            }
        }
        set(run, 0x10, SHARED);
        set(run, 0x18, 0);
        set(run, CMD, ACTIVATE);
        for vector in 0..25 {
            run.write(8 * vector, 0);
        }
    }

    fn put_part(run: &Run<'_, Self>, index: u32, part: Part) {
        let at = TX_RING + SIZE * index;
        run.poke(at, part.at);
        run.poke(at + 4, 0);
        run.poke(at + 12, if part.last { EOP | CQ } else { 0 });
        give(run, 0, index, part.len);
    }

    fn put_buffer(run: &Run<'_, Self>, index: u32, at: u32, len: u32) {
        run.poke(RX_RING + SIZE * index, at);
        run.poke(RX_RING + SIZE * index + 4, 0);
        give(run, 1, index, len);
    }

    /// The completion of the same index, while each buffer has one.
    fn written(run: &Run<'_, Self>, index: u32) -> Option<Filled> {
        let at = RX_DONE + SIZE * index;
        let [first, _, third, last] = [0, 4, 8, 12].map(|i| run.peek(at + i));
        let generation = run.peek(RX_RING + SIZE * index + 8) >> 31;
        let there = last >> 31 == generation && last >> 24 & 0x7f == 3;
        let tag = (third >> 15 & 1 != 0).then_some((third >> 16) as u16);
        let filled = Filled { len: third & 0x3fff, whole: false, last: first >> 14 & 1 != 0, tag };
        there.then_some(filled)
    }

    fn offer(run: &Run<'_, Self>, transmit: u32, receive: u32) {
        run.write(0x600, transmit);
        run.write(0x800, receive);
    }

    fn step(run: &mut Run<'_, Self>, operation: u8, n: u8) {
        match operation {
            4 => {
                let at = if n & 1 == 0 { SHARED } else { QUEUES };
                let (place, value) = (u32::from(run.half()), run.word());
                run.poke(at + (place & 0x2fc), value);
            }
            5 => {
                let (index, bits) = (u32::from(run.byte()), run.word());
                let (ring, _) = RINGS[usize::from(n & 3).min(2)];
                let at = ring + SIZE * (index % RING) + if n & 4 == 0 { 8 } else { 12 };
                run.poke(at, run.peek(at) ^ bits);
            }
            6 => {
                let ring = usize::from(n >> 2 & 3).min(2);
                for _ in 0..[1, 2, 7, RING - 1][usize::from(n & 3)] {
                    let index = run.next[ring];
                    let word = run.peek(RINGS[ring].0 + SIZE * index + 8);
                    give(run, ring, index, word);
                    run.next[ring] = (index + 1) % RING;
                }
                run.write(0x600, 0);
                run.write(0x800, 0);
            }
            7 => {
                let base = if run.byte() & 1 == 0 { 0xcafe_0000 } else { 0xf00d_0000 };
                set(run, CMD, base + u32::from(n));
            }
            14 => {
                let masked = run.byte();
                run.write(u32::from(n) * 8, masked.into());
                if n == 15 {
                    run.chip.read(Space::Bar(1), 0x38, &mut [0; 4]);
                }
            }
            _ => {
                let value = run.word();
                set(run, REGISTERS[usize::from(n & 7)], value);
            }
        }
    }

    fn restart(run: &mut Run<'_, Self>) {
        set(run, CMD, RESET);
        run.next = [0; 3];
    }

    fn may_write(&self, _: bool) -> Option<std::ops::Range<u64>> {
        let Gate { dma, receive, .. } = self.gate();
        (!dma || !receive).then_some(0..0)
    }
}
