//! The registers, as the RTL8139C+ datasheet (chapter 6) lists them: name, offset, width, which
//! bits can be written, value after power-on. They are bytes, words and doublewords next to each
//! other, and any of them may be read or written with others in one access.
//!
//! What else a register does (bits that clear themselves, side effects) is in `access.rs`.

use super::regs::*;
use crate::realtek::regs::{Row, row};

const ALL: u32 = u32::MAX;

/// Those of every chip.
#[rustfmt::skip]
pub static CLASSIC: &[Row] = &[
    // From the EEPROM.
    row("IDR0", IDR0, 4, ALL, 0),
    row("IDR4", IDR4, 2, ALL, 0),
    row("MAR0", MAR0, 4, ALL, 0),
    row("MAR4", MAR4, 4, ALL, 0),
    row("TSD0", TSD0, 4, tsd::WRITABLE, tsd::OWN),
    row("TSD1", TSD0 + 4, 4, tsd::WRITABLE, tsd::OWN),
    row("TSD2", TSD0 + 8, 4, tsd::WRITABLE, tsd::OWN),
    row("TSD3", TSD0 + 12, 4, tsd::WRITABLE, tsd::OWN),
    row("TSAD0", TSAD0, 4, ALL, 0),
    row("TSAD1", TSAD0 + 4, 4, ALL, 0),
    row("TSAD2", TSAD0 + 8, 4, ALL, 0),
    row("TSAD3", TSAD0 + 12, 4, ALL, 0),
    row("RBSTART", RBSTART, 4, ALL, 0),
    row("ERBCR", ERBCR, 2, 0, 0),
    row("ERSR", ERSR, 1, 0, 0),
    row("CR", CR, 1, 0x0c, 0),
    row("CAPR", CAPR, 2, 0xffff, 0xfff0),
    row("CBR", CBR, 2, 0, 0),
    row("IMR", IMR, 2, 0xffff, 0),
    row("ISR", ISR, 2, 0xffff, 0),
    row("TCR", TCR, 4, tcr::WRITABLE, 0x0300_0000),
    row("RCR", RCR, 4, 0x0f03_ffbf, 0),
    row("TCTR", TCTR, 4, ALL, 0),
    row("MPC", MPC, 4, ALL, 0),
    row("9346CR", EECR, 1, 0xff, 0),
    row("CONFIG0", CONFIG0, 1, 0, 0),
    row("CONFIG1", CONFIG1, 1, 0xf3, 0x8d),
    row("TimerInt", TIMERINT, 4, ALL, 0),
    row("MSR", MSR, 1, 0xc0, 0),
    row("CONFIG3", CONFIG3, 1, 0x75, 0x00),
    row("CONFIG4", CONFIG4, 1, 0xff, 0x80),
    row("MULINT", MULINT, 2, 0x0fff, 0),
    row("RERID", RERID, 1, 0, 0x10),
    row("TSAD", TSAD, 2, 0, 0),
    row("BMCR", BMCR, 2, 0xffff, 0),
    row("BMSR", BMSR, 2, 0, 0),
    row("ANAR", ANAR, 2, 0xffff, 0),
    row("ANLPAR", ANLPAR, 2, 0, 0),
    row("ANER", ANER, 2, 0, 0),
    row("DIS", DIS, 2, 0, 0),
    row("FCSC", FCSC, 2, 0, 0),
    row("NWAYTR", NWAYTR, 2, 0x0081, 0),
    row("REC", REC, 2, 0, 0),
    // With bit 11, by which 8139too knows that LinkChg may be about the link.
    row("CSCR", CSCR, 2, 0x8be5, 0x0bc0),
    row("PHY1_PARM", PHY1_PARM, 4, ALL, 0),
    row("TW_PARM", TW_PARM, 4, ALL, 0),
    row("PHY2_PARM", PHY2_PARM, 1, 0xff, 0),
    // Patterns that wake a machine. Here nothing wakes it.
    row("CRC0-3", 0x84, 4, ALL, 0),
    row("CRC4-7", 0x88, 4, ALL, 0),
    row("Wakeup", 0x8c, 4, ALL, 0), row("Wakeup", 0x90, 4, ALL, 0),
    row("Wakeup", 0x94, 4, ALL, 0), row("Wakeup", 0x98, 4, ALL, 0),
    row("Wakeup", 0x9c, 4, ALL, 0), row("Wakeup", 0xa0, 4, ALL, 0),
    row("Wakeup", 0xa4, 4, ALL, 0), row("Wakeup", 0xa8, 4, ALL, 0),
    row("Wakeup", 0xac, 4, ALL, 0), row("Wakeup", 0xb0, 4, ALL, 0),
    row("Wakeup", 0xb4, 4, ALL, 0), row("Wakeup", 0xb8, 4, ALL, 0),
    row("Wakeup", 0xbc, 4, ALL, 0), row("Wakeup", 0xc0, 4, ALL, 0),
    row("Wakeup", 0xc4, 4, ALL, 0), row("Wakeup", 0xc8, 4, ALL, 0),
    row("LSBCRC0-3", 0xcc, 4, ALL, 0),
    row("LSBCRC4-7", 0xd0, 4, ALL, 0),
    row("FLASH", FLASH, 4, 0, 0),
    row("CONFIG5", CONFIG5, 1, 0x7e, 0),
];

/// Those of a C+ chip beside them.
#[rustfmt::skip]
pub static PLUS: &[Row] = &[
    row("TPPoll", TPPOLL, 1, 0xff, 0),
    row("CPCR", CPCR, 2, 0x027b, 0),
    row("RDSAR", RDSAR, 4, 0xffff_ff00, 0),
    row("RDSAR_HI", RDSAR_HI, 4, ALL, 0),
    row("ETThR", ETTHR, 1, 0x3f, 0),
];

/// Those that a C+ chip has in place of TSD0 to TSAD3 while its C+ transmitter is on.
#[rustfmt::skip]
pub static PLUS_MODE: &[Row] = &[
    row("DTCCR", DTCCR, 4, 0xffff_ffc9, 0),
    row("DTCCR_HI", DTCCR_HI, 4, ALL, 0),
    row("TNPDS", TNPDS, 4, 0xffff_ff00, 0),
    row("TNPDS_HI", TNPDS_HI, 4, ALL, 0),
    row("THPDS", THPDS, 4, 0xffff_ff00, 0),
    row("THPDS_HI", THPDS_HI, 4, ALL, 0),
];

/// Those of a CSB.
#[rustfmt::skip]
pub static CSB: &[Row] = &[
    row("CSBAL", CSBAL, 4, ALL, 0),
    row("CSBAH", CSBAH, 4, ALL, 0),
];

/// Survives a software reset (CR.RST): the addresses, what the EEPROM initializes, wake-up
/// patterns, the CSB.
pub fn is_sticky(row: &Row) -> bool {
    let at = row.offset;
    at < TSD0
        || (PHY1_PARM..=CONFIG5).contains(&at)
        || matches!(at, CONFIG0 | CONFIG1 | CONFIG3 | CONFIG4 | CSBAL | CSBAH)
}
