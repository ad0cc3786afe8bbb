//! Every register against the datasheet (RTL8139C+ rev. 1.6, chapter 6): value after reset, bits
//! that can be written. This table was written apart from the one in `table.rs`; where it departs
//! from the datasheet, it says why.

use super::guest::*;
use crate::chip::PciFunction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// These bits keep what is written, the others read as 0.
    Rw(u32),
    /// As [`Mode::Rw`], while 9346CR says so.
    Locked(u32),
    Ro,
    /// Has a test of its own, named here.
    Own(&'static str),
}
use Mode::*;

/// Name, offset, bytes, value after power-on, mode.
type Line = (&'static str, u64, usize, u32, Mode);

const ALL: u32 = u32::MAX;

#[rustfmt::skip]
const MANUAL: &[Line] = &[
    // From the EEPROM.
    ("IDR0",     0x00, 4, 0x0100_5452, Rw(ALL)),
    ("IDR4",     0x04, 2, 0x0302, Rw(0xffff)),
    ("MAR0",     0x08, 4, 0, Rw(ALL)),
    ("MAR4",     0x0c, 4, 0, Rw(ALL)),
    // SIZE, OWN, ERTXTH.
    ("TSD0",     0x10, 4, 0x2000, Rw(0x003f_3fff)),
    ("TSD1",     0x14, 4, 0x2000, Rw(0x003f_3fff)),
    ("TSD2",     0x18, 4, 0x2000, Rw(0x003f_3fff)),
    ("TSD3",     0x1c, 4, 0x2000, Rw(0x003f_3fff)),
    ("TSAD0",    0x20, 4, 0, Rw(ALL)),
    ("TSAD1",    0x24, 4, 0, Rw(ALL)),
    ("TSAD2",    0x28, 4, 0, Rw(ALL)),
    ("TSAD3",    0x2c, 4, 0, Rw(ALL)),
    ("RBSTART",  0x30, 4, 0, Rw(ALL)),
    ("ERBCR",    0x34, 2, 0, Ro),
    ("ERSR",     0x36, 1, 0, Ro),
    ("CR",       0x37, 1, 0x01, Own("command")),
    ("CAPR",     0x38, 2, 0xfff0, Rw(0xffff)),
    ("CBR",      0x3a, 2, 0, Ro),
    ("IMR",      0x3c, 2, 0, Own("interrupts")),
    ("ISR",      0x3e, 2, 0, Own("interrupts")),
    // Hardware version 8139C+; IFG.
    ("TCR",      0x40, 4, 0x7780_0000, Own("tcr")),
    // ERTH, MulERINT, RER8, RXFTH, RBLEN, MXDMA, WRAP, AER to AAP; not 9356SEL (6), which the
    // EEPROM decides.
    ("RCR",      0x44, 4, 0, Rw(0x0f03_ffbf)),
    ("TCTR",     0x48, 4, 0, Own("timer")),
    ("MPC",      0x4c, 4, 0, Own("overflow")),
    ("9346CR",   0x50, 1, 0, Own("eeprom")),
    ("CONFIG0",  0x51, 1, 0, Ro),
    // LEDS, DVRLOAD, LWACT, VPD, PMEn; MEMMAP, IOMAP are the EEPROM's (and both on).
    ("CONFIG1",  0x52, 1, 0x8d, Own("config1")),
    ("TimerInt", 0x54, 4, 0, Rw(ALL)),
    // RXFCE, TXFCE; the rest is the link's.
    ("MSR",      0x58, 1, 0, Own("link")),
    ("CONFIG3",  0x59, 1, 0, Locked(0x75)),
    ("CONFIG4",  0x5a, 1, 0x80, Locked(0xff)),
    ("MULINT",   0x5c, 2, 0, Rw(0x0fff)),
    ("RERID",    0x5e, 1, 0x10, Ro),
    // OWN of all four.
    ("TSAD",     0x60, 2, 0x000f, Ro),
    ("BMCR",     0x62, 2, 0x3100, Own("phy")),
    ("BMSR",     0x64, 2, 0x782d, Ro),
    ("ANAR",     0x66, 2, 0x01e1, Own("phy")),
    // The switch does not send PAUSE.
    ("ANLPAR",   0x68, 2, 0x41e1, Ro),
    ("ANER",     0x6a, 2, 0x0003, Ro),
    ("DIS",      0x6c, 2, 0, Ro),
    ("FCSC",     0x6e, 2, 0, Ro),
    ("NWAYTR",   0x70, 2, 0, Rw(0x0081)),
    ("REC",      0x72, 2, 0, Ro),
    ("CSCR",     0x74, 2, 0x0bc8, Own("link")),
    ("PHY1",     0x78, 4, 0, Rw(ALL)),
    ("TW",       0x7c, 4, 0, Rw(ALL)),
    ("PHY2",     0x80, 1, 0, Rw(0xff)),
    ("CRC0",     0x84, 4, 0, Rw(ALL)),
    ("CRC4",     0x88, 4, 0, Rw(ALL)),
    ("Wakeup0",  0x8c, 4, 0, Rw(ALL)),
    ("Wakeup7",  0xc8, 4, 0, Rw(ALL)),
    ("LSBCRC0",  0xcc, 4, 0, Rw(ALL)),
    ("LSBCRC4",  0xd0, 4, 0, Rw(ALL)),
    // There is none.
    ("FLASH",    0xd4, 4, 0, Ro),
    // PME_STS (0) is never set: nothing wakes.
    ("CONFIG5",  0xd8, 1, 0, Rw(0x7e)),
    ("TPPoll",   0xd9, 1, 0, Own("plus")),
    ("CPCR",     0xe0, 2, 0, Rw(0x027b)),
    ("RDSAR",    0xe4, 4, 0, Rw(0xffff_ff00)),
    ("RDSAR_HI", 0xe8, 4, 0, Rw(ALL)),
    ("ETThR",    0xec, 1, 0, Rw(0x3f)),
    // Function events of CardBus: not here.
    ("FER",      0xf0, 4, 0, Ro),
    ("FEMR",     0xf4, 4, 0, Ro),
    ("FPSR",     0xf8, 4, 0, Ro),
    ("FFER",     0xfc, 4, 0, Ro),
];

fn load(guest: &Guest, at: u64, len: usize) -> u32 {
    let mut bytes = [0; 4];
    guest.chip.read(crate::chip::Space::Bar(0), at, &mut bytes[..len]);
    u32::from_le_bytes(bytes)
}

fn write(guest: &Guest, at: u64, len: usize, value: u32) {
    guest.set(at, &value.to_le_bytes()[..len]);
}

fn mask(len: usize) -> u32 {
    if len == 4 { ALL } else { (1 << (8 * len)) - 1 }
}

/// What a register test writes, and a bit at a time.
fn patterns() -> impl Iterator<Item = u32> {
    [0x5a5a_5a5a, 0xa5a5_a5a5, 0, ALL].into_iter().chain((0..32).map(|bit| 1 << bit))
}

/// Whether another view of the same place is in the way: in C+ mode TSD and TSAD are not there.
fn settle(guest: &Guest, at: u64) {
    if at != 0xe0 {
        guest.set16(CPCR, 0);
    }
}

#[test]
fn values_after_power_on() {
    let guest = Guest::bare(false, Guest::config());
    for (name, at, len, reset, _) in MANUAL {
        assert_eq!(load(&guest, *at, *len), *reset, "{name} at {at:#x}");
    }
}

#[test]
fn bits_that_can_be_written() {
    for (name, at, len, reset, mode) in MANUAL {
        let guest = Guest::bare(false, Guest::config());
        for value in patterns().map(|value| value & mask(*len)) {
            let want = match mode {
                Rw(bits) => value & bits,
                Locked(bits) => {
                    write(&guest, *at, *len, !value);
                    assert_eq!(load(&guest, *at, *len), load(&guest, *at, *len), "{name}");
                    guest.set8(EECR, 0xc0);
                    value & bits
                }
                Ro => *reset,
                Own(_) => continue,
            };
            write(&guest, *at, *len, value);
            assert_eq!(load(&guest, *at, *len), want, "{name} {value:#x}");
            guest.set8(EECR, 0);
            if matches!(mode, Locked(_)) {
                write(&guest, *at, *len, !value);
                assert_eq!(load(&guest, *at, *len), want, "{name} is locked");
            }
            settle(&guest, *at);
        }
    }
}

/// Byte by byte it is the same register.
#[test]
fn bytes_of_registers() {
    let guest = Guest::bare(false, Guest::config());
    for (name, at, len, _, mode) in MANUAL {
        let Rw(bits) = mode else { continue };
        if *at == 0xe0 {
            continue;
        }
        write(&guest, *at, *len, 0);
        for i in 0..*len as u64 {
            guest.set8(at + i, 0x96);
            let want = 0x9696_9696 & bits & mask(i as usize + 1);
            assert_eq!(load(&guest, *at, *len), want, "{name} byte {i}");
            assert_eq!(u32::from(guest.get8(at + i)), want >> (8 * i), "{name} byte {i}");
        }
    }
}

/// What survives a software reset, and what none does.
#[test]
fn software_reset_and_pci_reset() {
    let guest = Guest::bare(false, Guest::config());
    let sticky = |at: u64| at < 0x10 || (0x78..=0xd8).contains(&at);
    let fill = || {
        for (_, at, len, _, mode) in MANUAL.iter().filter(|line| line.1 != 0xe0) {
            if let Rw(_) = mode {
                write(&guest, *at, *len, 0xa5a5_a5a5);
            }
        }
        guest.set16(CPCR, 0x20);
    };
    fill();
    guest.set8(CR, RST);
    for (name, at, len, reset, mode) in MANUAL {
        match mode {
            Rw(bits) if sticky(*at) => {
                assert_eq!(load(&guest, *at, *len), 0xa5a5_a5a5 & bits & mask(*len), "{name}");
            }
            Own("phy") => {}
            _ => assert_eq!(load(&guest, *at, *len), *reset, "{name}"),
        }
    }
    fill();
    guest.chip.reset();
    for (name, at, len, reset, _) in MANUAL {
        assert_eq!(load(&guest, *at, *len), *reset, "{name}");
    }
}

/// An 8139C has no C+ registers: what is not there reads as 0, and keeps nothing.
#[test]
fn the_8139c_has_no_more_than_it_has() {
    let guest = Guest::classic();
    assert_eq!(guest.get32(TCR) & 0x7cc0_0000, 0x7400_0000);
    for at in [TPPOLL, CPCR, RDSAR, RDSAR + 4, 0xec, CSBAL, CSBAH] {
        guest.set32(at, ALL);
        assert_eq!(guest.get32(at), 0, "{at:#x}");
    }
    assert_eq!(guest.count("CPCR"), (0, 0));
    assert_eq!(guest.tsd(0), T_OWN, "still classic mode");
}

/// With a CSB, CSBAL and CSBAH are where FER and FEMR were, and survive a software reset.
#[test]
fn registers_of_the_csb() {
    let guest = Guest::plus_with(true);
    guest.set32(CSBAH, 7);
    guest.set32(CSBAL, 0x1240);
    guest.set8(CR, RST);
    assert_eq!((guest.get32(CSBAL), guest.get32(CSBAH)), (0x1240, 7));
    guest.chip.reset();
    assert_eq!((guest.get32(CSBAL), guest.get32(CSBAH)), (0, 0));
}
