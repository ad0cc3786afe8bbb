//! The body of the fuzz target `r8169`: see [`crate::chip::fuzz`].
//!
//! The byte of configuration has these bits. 1: long frames; 2: loopback; 4: tags are stripped; 5:
//! checksums are looked at; 6: frames bring their FCS; 7: moderation.
//!
//! Steps. 4: where a ring is; 5: bits of a descriptor, as `realtek/tests/fuzz.rs`; 6: descriptors
//! are given; 7: another register; 14: PHYAR; 15: 9346CR.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;

use vmlan_ram::Window;

use super::R8169;
use super::regs::*;
use crate::chip::fuzz::{Filled, Fuzzed, Part, RX_RING, Run, run};
use crate::chip::{Chip, Config, Gate, Host};
use crate::realtek::fuzz::{HIGH_RING, NORMAL_RING, flip, give, put_buffer, put_part, written};

/// Registers that say where things are: offset, bytes.
const PLACES: [(u8, usize); 8] = [
    (TNPDS, 4),
    (TNPDSH, 4),
    (THPDS, 4),
    (THPDSH, 4),
    (RDSAR, 4),
    (RDSARH, 4),
    (DTCCR, 4),
    (DTCCRH, 4),
];

/// Registers with effects of their own.
const REGISTERS: [(u8, usize); 16] = [
    (CR, 1),
    (TPPOLL, 1),
    (IMR, 2),
    (ISR, 2),
    (TCR, 4),
    (RCR, 4),
    (TCTR, 4),
    (TIMERINT, 4),
    (CR9346, 1),
    (MPC, 4),
    (RMS, 2),
    (CPCR, 2),
    (INTMIT, 2),
    (IDR0, 4),
    (CSBAL, 4),
    (CSBAH, 4),
];

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn r8169(data: &[u8]) -> (u64, u64) {
    run::<R8169>(data)
}

impl Fuzzed for R8169 {
    const CSBAL: u64 = CSBAL as u64;

    fn make(config: Config, _: Window, host: Arc<dyn Host>, _: u8) -> Self {
        R8169::new(config, host)
    }

    fn set_up(run: &mut Run<'_, Self>, byte: u8) {
        let on = |bit: u8, value: u32| if byte >> bit & 1 != 0 { value } else { 0 };
        run.configure(4, &[7, 0]);
        run.write_part(CPCR.into(), 2, on(4, cpcr::RXVLAN) | on(5, cpcr::RXCHKSUM));
        for (base, at) in [(TNPDS, NORMAL_RING), (THPDS, HIGH_RING), (RDSAR, RX_RING)] {
            run.write(u32::from(base) + 4, 0);
            run.write(base.into(), at);
        }
        run.write_part(RMS.into(), 2, if byte & 2 != 0 { 0x3fff } else { 0x5f3 });
        run.write_part(INTMIT.into(), 2, on(7, 0x5151));
        run.write_part(CR.into(), 1, cr::TE | cr::RE);
        run.write(TCR.into(), 0x0300_0700 | on(2, tcr::LBK) | on(6, tcr::CRC));
        run.write(RCR.into(), 0xe73f);
        run.write_part(IMR.into(), 2, 0xc1ff);
        run.write_part(TPPOLL.into(), 1, tppoll::NPQ);
    }

    fn put_part(run: &Run<'_, Self>, index: u32, part: Part) {
        put_part(run, index, part);
    }

    fn put_buffer(run: &Run<'_, Self>, index: u32, at: u32, len: u32) {
        put_buffer(run, index, at, len);
    }

    fn written(run: &Run<'_, Self>, index: u32) -> Option<Filled> {
        written(run, index)
    }

    /// OWN has said it.
    fn offer(run: &Run<'_, Self>, _transmit: u32, _receive: u32) {
        run.write_part(TPPOLL.into(), 1, tppoll::NPQ);
    }

    fn step(run: &mut Run<'_, Self>, operation: u8, n: u8) {
        match operation {
            4 => {
                let (at, bytes) = PLACES[usize::from(n & 7)];
                let value = run.word();
                run.write_part(at.into(), bytes, value);
            }
            5 => flip(run, n),
            6 => {
                give(run, n);
                run.write_part(TPPOLL.into(), 1, tppoll::NPQ | tppoll::HPQ);
            }
            7 => {
                let (at, bytes) = REGISTERS[usize::from(n)];
                let value = run.word();
                run.write_part(at.into(), bytes, value);
            }
            14 => {
                let value = run.half();
                run.write(PHYAR.into(), 1 << 31 | u32::from(n) << 16 | u32::from(value));
            }
            _ => run.write_part(CR9346.into(), 1, 0x80 | u32::from(n)),
        }
    }

    fn restart(run: &mut Run<'_, Self>) {
        run.write_part(CR.into(), 1, cr::RST);
        run.next = [0; 3];
    }

    fn may_write(&self, _: bool) -> Option<std::ops::Range<u64>> {
        let Gate { dma, .. } = self.gate();
        (!dma).then_some(0..0)
    }
}
