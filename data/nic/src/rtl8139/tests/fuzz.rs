//! The body of the fuzz target `rtl8139`: see [`crate::chip::fuzz`].
//!
//! The byte of configuration has these bits. 1: WRAP, or tags and checksums are looked at; 2:
//! loopback; 4: classic mode; 5: there is no other (8139C); 7:6: RBLEN.
//!
//! Steps. 4: where things are; 5: bits of a descriptor, as `realtek/tests/fuzz.rs`, or TSD; 6:
//! descriptors are given, frames sent, the buffer read; 7: another register; 14: see [`hostile`];
//! 15: 9346CR.
#![allow(clippy::indexing_slicing)]

use std::ops::Range;
use std::sync::Arc;

use vmlan_ram::Window;

use super::Rtl8139;
use super::buffer::{Look, OVERRUN};
use super::regs::*;
use crate::chip::fuzz::{BUFFER, FRAME, Filled, Fuzzed, Part, RX_RING, Run, run};
use crate::chip::{Chip, Config, Gate, Host};
use crate::realtek::fuzz::{HIGH_RING, NORMAL_RING, flip, give, put_buffer, put_part, written};

/// Registers that say where things are: offset, bytes. Some of them are others in C+ mode.
const PLACES: [(u8, usize); 16] = [
    (TSAD0, 4),
    (TSAD0 + 4, 4),
    (TSAD0 + 8, 4),
    (TSAD0 + 12, 4),
    (RDSAR, 4),
    (RDSAR_HI, 4),
    (RBSTART, 4),
    (CAPR, 2),
    (CBR, 2),
    (TSD0, 4),
    (TSD0 + 4, 4),
    (TSD0 + 8, 4),
    (TSD0 + 12, 4),
    (CSBAL, 4),
    (CSBAH, 4),
    (TPPOLL, 1),
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
    (EECR, 1),
    (MPC, 4),
    (CONFIG1, 1),
    (CPCR, 2),
    (BMCR, 2),
    (ANAR, 2),
    (IDR0, 4),
    (MSR, 1),
];

/// PMCSR in configuration space.
const PMCSR: u64 = 0x54;

/// Runs one input. Returns the frames that came from the guest and those that went to it.
///
/// # Panics
/// If something that must hold does not.
pub fn rtl8139(data: &[u8]) -> (u64, u64) {
    run::<Rtl8139>(data)
}

impl Fuzzed for Rtl8139 {
    const CSBAL: u64 = CSBAL as u64;

    fn make(config: Config, _: Window, host: Arc<dyn Host>, byte: u8) -> Self {
        Rtl8139::new(config, byte & 0x20 == 0, host)
    }

    fn set_up(run: &mut Run<'_, Self>, byte: u8) {
        let on = |bit: u8, value: u32| if byte >> bit & 1 != 0 { value } else { 0 };
        let plus = byte & 0x10 == 0 && run.chip.regs.kind().plus;
        run.configure(4, &[7, 0]);
        if plus {
            let looked_at = on(1, cpcr::RXVLAN) | on(1, cpcr::RXCHKSUM);
            run.write_part(CPCR.into(), 2, cpcr::TXE | cpcr::RXE | looked_at);
            for (base, at) in [(TNPDS, NORMAL_RING), (THPDS, HIGH_RING), (RDSAR, RX_RING)] {
                run.write(u32::from(base) + 4, 0);
                run.write(base.into(), at);
            }
        } else {
            // In the middle of the memory, where two regions meet.
            let size = 0x2000 << (byte >> 6);
            run.write(RBSTART.into(), if byte == 0 { BUFFER } else { 0x8400 - size / 2 });
        }
        run.write_part(CR.into(), 1, cr::TE | cr::RE);
        run.write(TCR.into(), 0x0300_0700 | on(2, tcr::LBK));
        let buffer = u32::from(byte >> 6) << rcr::RBLEN_SHIFT;
        run.write(RCR.into(), 0x073f | buffer | on(1, rcr::WRAP));
        run.write_part(IMR.into(), 2, 0xffff);
        if plus {
            run.write_part(TPPOLL.into(), 1, tppoll::NPQ);
        } else {
            for i in (0..16).step_by(4) {
                run.write(u32::from(TSAD0) + i, FRAME);
                run.write(u32::from(TSD0) + i, 60);
            }
        }
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
        let (sends, _) = run.chip.regs.plus_mode();
        match operation {
            4 => {
                let (at, bytes) = PLACES[usize::from(n)];
                let value = run.word();
                run.write_part(at.into(), bytes, value);
            }
            5 if sends => flip(run, n),
            5 => {
                let value = run.half();
                run.write(u32::from(TSD0) + 4 * u32::from(n & 3), value.into());
            }
            6 if sends => {
                give(run, n);
                run.write_part(TPPOLL.into(), 1, tppoll::NPQ | tppoll::HPQ);
            }
            6 => classic(run, n),
            7 => {
                let (at, bytes) = REGISTERS[usize::from(n)];
                let value = run.word();
                run.write_part(at.into(), bytes, value);
            }
            14 => hostile(run, n),
            _ => run.write_part(EECR.into(), 1, 0x80 | u32::from(n)),
        }
    }

    fn restart(run: &mut Run<'_, Self>) {
        run.write_part(CR.into(), 1, cr::RST);
        run.next = [0; 3];
    }

    /// In classic mode: the receive buffer, and what WRAP lets the chip have behind it.
    fn may_write(&self, push: bool) -> Option<Range<u64>> {
        let Gate { dma, loopback, .. } = self.gate();
        let (sends, receives) = self.regs.plus_mode();
        match push {
            _ if !dma => Some(0..0),
            true if !receives => {
                let Look { base, size, wrap, .. } = Look::new(&self.regs);
                let len = if base == 0 { 0 } else { size + if wrap { OVERRUN } else { 0 } };
                Some(base.into()..u64::from(base) + u64::from(len))
            }
            false if !sends && !loopback => Some(0..0),
            _ => None,
        }
    }
}

/// A driver in classic mode sends frames of the usual lengths in turn, or reads.
fn classic(run: &mut Run<'_, Rtl8139>, n: u8) {
    if n & 8 == 0 {
        for _ in 0..=n & 3 {
            let at = u32::from(TSD0) + 4 * run.next[0];
            run.write(at, if n & 4 == 0 { 60 } else { 1514 });
            run.next[0] = (run.next[0] + 1) % 4;
        }
    } else {
        // All of it, or up to some bytes before.
        let read = run.chip.regs.get(CBR).wrapping_sub(16 + 4 * u32::from(n & 7));
        run.write_part(CAPR.into(), 2, read);
    }
}

/// What no good driver does with the receive side, and changes of mode.
fn hostile(run: &mut Run<'_, Rtl8139>, n: u8) {
    match n {
        0..=3 => {
            let value = run.half();
            run.write_part(CAPR.into(), 2, value.into());
        }
        // Buffer length and WRAP change under it.
        4..=7 => {
            let value = u32::from(run.byte());
            run.write(RCR.into(), 0x073f | (value & 0x18) << 8 | (value & 1) << 7);
        }
        8 | 9 => run.write_part(CR.into(), 1, if n == 8 { cr::TE } else { cr::TE | cr::RE }),
        10 | 11 => {
            let value = run.half();
            run.write(RBSTART.into(), value.into());
        }
        12 | 13 => {
            let value = u32::from(run.byte());
            run.write_part(CPCR.into(), 2, value);
        }
        _ => {
            let state = run.byte();
            run.configure(PMCSR, &[state & 3]);
        }
    }
}
