//! The registers that the 82540EM does not have, or has otherwise: offsets, and the table.

use crate::intel::regs::*;
use crate::intel::table::{ALL, Row, array, row, sticky};

pub const EIAC: u32 = 0x00dc; // Extended Interrupt Auto Clear.
pub const IAM: u32 = 0x00e0; // Interrupt Acknowledge Auto Mask.
pub const IVAR: u32 = 0x00e4; // Interrupt Vector Allocation.
pub const EITR: u32 = 0x00e8; // Extended Interrupt Throttle, 5 of them, 256 ns.
pub const EEWR: u32 = 0x102c; // EEPROM Write.
pub const PSRCTL: u32 = 0x2170; // Packet Split Receive Control.
pub const TARC0: u32 = 0x3840; // Transmit Arbitration Counter, of queue 0.
pub const TARC1: u32 = 0x3940; // Of queue 1.

const TARC: u32 = 0x0000_0403; // The queue is on (bit 10), with weight 3.

/// By offset.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("CTRL", CTRL, 0xdffc_1bed, 0x0000_0201),
    row("CTRL_DUP", CTRL_DUP, 0xdffc_1bed, 0),
    row("CTRL_EXT", CTRL_EXT, ALL, 0),
    row("EIAC", EIAC, 0x01f0_0000, 0),
    row("IAM", IAM, ALL, 0),
    row("IVAR", IVAR, ALL, 0),
    array("EITR", EITR, 5, 4, 0xffff),
    row("RCTL", RCTL, 0x7edf_bffe, 0),
    row("TCTL", TCTL, 0x733f_fffa, 0),
    row("EXTCNF_CTRL", 0x0f00, ALL, 0),
    row("POEMB", 0x0f10, ALL, 0),
    sticky(row("PBA", PBA, 0xffff, 0x0014_0014)),
    // Configuration is done.
    row("EEMNGCTL", 0x1010, 0, 1 << 18),
    row("EEWR", EEWR, ALL, 1 << 1),
    row("PSRCTL", PSRCTL, 0x3f3f_3f7f, 0x0004_0402),
    row("RXDCTL", RXDCTL, 0x013f_3f3f, 0x0001_0000),
    row("RDBAL1", RDBAL1, 0xffff_fff0, 0),
    row("RDBAH1", RDBAL1 + 0x04, ALL, 0),
    row("RDLEN1", RDBAL1 + 0x08, 0x000f_ff80, 0),
    row("RDH1", RDBAL1 + 0x10, 0xffff, 0),
    row("RDT1", RDT1, 0xffff, 0),
    row("RXDCTL1", RXDCTL + 0x100, 0x013f_3f3f, 0x0001_0000),
    row("RAID", 0x2c08, 0xffff, 0),
    row("TXDCTL", TXDCTL, 0xff3f_3f3f, 0),
    row("TARC0", TARC0, ALL, TARC),
    row("TDBAL1", TDBAL1, 0xffff_fff0, 0),
    row("TDBAH1", TDBAL1 + 0x04, ALL, 0),
    row("TDLEN1", TDBAL1 + 0x08, 0x000f_ff80, 0),
    row("TDH1", TDBAL1 + 0x10, 0xffff, 0),
    row("TDT1", TDT1, 0xffff, 0),
    row("TXDCTL1", TXDCTL + 0x100, 0xff3f_3f3f, 0),
    row("TARC1", TARC1, ALL, TARC),
    row("RXCSUM", RXCSUM, 0x37ff, 0),
    row("RFCTL", RFCTL, ALL, 0),
    row("MRQC", MRQC, 0xffff_0003, 0),
    row("MANC", 0x5820, 0, 0),
    row("MANC2H", MANC2H, 0, 0),
    row("GCR", 0x5b00, ALL, 0),
    row("FACTPS", 0x5b30, 0, 0),
    row("SWSM", SWSM, 3, 0),
    row("FWSM", 0x5b54, 0, 0),
    row("GCR2", 0x5b64, ALL, 0),
    row("PBACLR", 0x5b68, 0, 0),
    array("RETA", RETA, 32, 4, ALL),
    array("RSSRK", RSSRK, 10, 4, ALL),
];
