//! The body of the fuzz targets `e1000` and `e1000e`: see [`crate::chip::fuzz`]. The driver that
//! sets things up has rings of 32 descriptors; that of an 82574L has MSI-X.
//!
//! The byte of configuration has these bits. 1: long frames; 2: loopback; 7:4: RCTL 19:16.
//!
//! Steps. 4, 5: a ring register, trapped or mapped; 6: a tail moves on; 7: another register; 14:
//! MDIC; 15: EECD, or of an 82574L one of its own registers.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;

use vmlan_ram::Window;

use super::regs::*;
use super::{Intel, Model};
use crate::chip::fuzz::{Filled, Fuzzed, Part, RING, RX_RING, Run, TX_RING, run};
use crate::chip::{Config, Host};

/// Registers with effects of their own.
#[rustfmt::skip]
const REGISTERS: [u32; 16] = [
    CTRL, TCTL, RCTL, IMS, IMC, ICS, ICR, ITR, RXCSUM, EECD, EERD, MDIC, CTRL_EXT, PBA, VET, RA,
];

/// A model to fuzz.
pub trait FuzzedModel: Model {
    /// What a driver does first; `byte`: see [`Fuzzed::set_up`].
    fn set_up(_run: &mut Run<'_, Intel<Self>>, _byte: u8) {}
    /// Operation 15.
    fn step(run: &mut Run<'_, Intel<Self>>, n: u8);
}

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn intel<M: FuzzedModel>(data: &[u8]) -> (u64, u64) {
    run::<Intel<M>>(data)
}

impl<M: FuzzedModel> Fuzzed for Intel<M> {
    const CSBAL: u64 = CSBAL as u64;

    fn make(config: Config, pages: Window, host: Arc<dyn Host>, _: u8) -> Self {
        Self::new(config, pages, host)
    }

    fn set_up(run: &mut Run<'_, Self>, byte: u8) {
        run.configure(4, &[7, 0]);
        M::set_up(run, byte);
        run.write(CTRL, bit::CTRL_SLU | 1 << 30);
        for (base, at) in [(TDBAL, TX_RING), (RDBAL, RX_RING)] {
            run.write(base, at);
            run.write(base + 8, RING * 16);
        }
        run.write(RDT, RING - 1);
        run.write(TDT, RING - 1);
        run.write(IMS, 0x9d);
        run.write(TCTL, 0x0103_f0fa);
        let long = u32::from(byte >> 1 & 1) << 5;
        let loopback = u32::from(byte >> 2 & 1) << 6;
        let size = u32::from(byte >> 4) << 16;
        run.write(RCTL, 0x801a | long | loopback | size);
    }

    /// Legacy: with IFCS, and RS and EOP.
    fn put_part(run: &Run<'_, Self>, index: u32, part: Part) {
        let at = TX_RING + 16 * index;
        let end = if part.last { 0x09 << 24 } else { 0 };
        run.poke(at, part.at);
        run.poke(at + 8, part.len | 0x02 << 24 | end);
        run.poke(at + 12, 0);
    }

    fn put_buffer(run: &Run<'_, Self>, index: u32, at: u32, _: u32) {
        let desc = RX_RING + 16 * index;
        [at, 0, 0, 0].iter().zip(0..).for_each(|(word, n)| run.poke(desc + 4 * n, *word));
    }

    /// DD, EOP, VP.
    fn written(run: &Run<'_, Self>, index: u32) -> Option<Filled> {
        let desc = RX_RING + 16 * index;
        let (third, last) = (run.peek(desc + 8), run.peek(desc + 12));
        // Extended descriptors have status and length in the other order.
        let extended = run.chip.regs.get(RFCTL) >> 15 & 1 != 0;
        let (len, status) = if extended { (last & 0xffff, third) } else { (third & 0xffff, last) };
        let [_, _, low, high] = last.to_le_bytes();
        let tag = (status & 8 != 0).then(|| u16::from_le_bytes([low, high]));
        let filled = Filled { len, whole: false, last: status & 2 != 0, tag };
        (status & 1 != 0).then_some(filled)
    }

    fn offer(run: &Run<'_, Self>, transmit: u32, receive: u32) {
        run.write(TDT, transmit);
        run.write(RDT, receive);
    }

    fn step(run: &mut Run<'_, Self>, operation: u8, n: u8) {
        match operation {
            4 | 5 => ring_register(run, n, operation == 4),
            6 => {
                let at = if n & 8 == 0 { TDT } else { RDT };
                let tail = run.chip.regs.get(at).wrapping_add(u32::from(n & 7) + 1) & (RING - 1);
                run.write(at, tail);
            }
            7 => {
                let value = run.word();
                run.write(REGISTERS[usize::from(n)], value);
            }
            14 => {
                let value = run.half();
                run.write(MDIC, 1 << 26 | 1 << 21 | u32::from(n) << 16 | u32::from(value));
            }
            _ => M::step(run, n),
        }
    }

    fn restart(run: &mut Run<'_, Self>) {
        run.write(CTRL, bit::CTRL_RST);
    }
}

/// By a trapped write, or by a store to the mapped page.
fn ring_register<M: FuzzedModel>(run: &mut Run<'_, Intel<M>>, n: u8, trapped: bool) {
    let base = if n & 8 == 0 { TDBAL } else { RDBAL };
    let offset = base + [0, 4, 8, 16, 24, 32, 40, 44][usize::from(n & 7)];
    let value = run.word();
    if trapped {
        run.write(offset, value);
    } else {
        run.chip.regs.set(offset, value);
    }
}
