//! The registers that the 82574L does not have, or has otherwise.

use crate::intel::regs::*;
use crate::intel::table::{ALL, Row, array, row, sticky};

/// By offset.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("CTRL", CTRL, 0xdffc_1be9, 0x0000_0209),
    row("CTRL_DUP", CTRL_DUP, 0xdffc_1be9, 0),
    row("CTRL_EXT", CTRL_EXT, 0x00c2_afff, 0),
    row("RCTL", RCTL, 0x06df_b3fe, 0),
    row("TCTL", TCTL, 0x033f_fffa, 0),
    sticky(row("PBA", PBA, 0xffff, 0x0010_0030)),
    row("RXDCTL", RXDCTL, 0x013f_3f3f, 0x0001_0000),
    sticky(row("CSBAL", CSBAL, ALL, 0)),
    sticky(row("CSBAH", CSBAH, ALL, 0)),
    row("TXDCTL", TXDCTL, 0xff3f_3f3f, 0),
    row("RXCSUM", RXCSUM, 0x7ff, 0),
    row("MANC", 0x5820, ALL, 0),
    // Registers of later chips. Drivers of the whole family write and read back these on this chip,
    // too, and wait for what they wrote (U-Boot takes the semaphores before it reads the EEPROM):
    // they keep it, and it means nothing.
    row("RFCTL", RFCTL, ALL, 0),
    row("MANC2H", MANC2H, ALL, 0),
    row("SWSM", SWSM, ALL, 0),
    row("SW_FW_SYNC", SW_FW_SYNC, ALL, 0),
    sticky(array("FFLT", 0x5f00, 4, 8, 0x7ff)),
    sticky(array("FFMT", 0x9000, 128, 8, 0xf)),
    sticky(array("FFVT", 0x9800, 128, 8, ALL)),
    array("PBM", 0x1_0000, 0x4000, 4, 0),
];
