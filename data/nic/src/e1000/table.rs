//! The registers of BAR0, as SDM table 13-2 lists them: name, offset, which bits can be written,
//! value after reset.
//!
//! What else a register does (read to clear, self-clearing bits, side effects) is in `access.rs`.

use super::regs::*;

/// A register, or an array of them.
#[derive(Debug)]
pub struct Row {
    /// The datasheet's name.
    pub name: &'static str,
    /// Of the first.
    pub offset: u32,
    /// How many.
    pub count: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// Bits that keep what is written to them. Others read as 0, unless the chip sets them.
    pub mask: u32,
    /// After reset.
    pub reset: u32,
    /// Survives CTRL.RST (SDM 14.7; PBA: the drivers repartition it and reset to make it so).
    pub sticky: bool,
}

impl Row {
    /// Of its registers that have values of their own: all but the packet buffer's words.
    pub fn offsets(&self) -> impl Iterator<Item = u32> {
        (0..self.count.min(128)).map(|i| self.offset + i * self.stride)
    }

    /// A register of it may hold this. The chip sets the transmitter's share in PBA.
    pub fn may_be(&self, value: u32) -> bool {
        let own = if self.offset == PBA { ALL } else { 0 };
        value & !(self.mask | self.reset | own) == 0
    }
}

const fn row(name: &'static str, offset: u32, mask: u32, reset: u32) -> Row {
    Row { name, offset, count: 1, stride: 4, mask, reset, sticky: false }
}

const fn array(name: &'static str, offset: u32, count: u32, stride: u32, mask: u32) -> Row {
    Row { name, offset, count, stride, mask, reset: 0, sticky: false }
}

const fn sticky(row: Row) -> Row {
    Row { sticky: true, ..row }
}

const fn count(name: &'static str, offset: u32) -> Row {
    row(name, offset, 0, 0)
}

const ALL: u32 = u32::MAX;

/// All registers, by offset.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("CTRL", CTRL, 0xdffc_1be9, 0x0000_0209),
    row("CTRL_DUP", CTRL_DUP, 0xdffc_1be9, 0),
    row("STATUS", STATUS, 0, 0),
    row("EECD", EECD, ALL, 0),
    row("EERD", EERD, ALL, 0),
    row("CTRL_EXT", CTRL_EXT, 0x00c2_afff, 0),
    row("MDIC", MDIC, ALL, 0x1000_0000),
    row("FCAL", FCAL, ALL, 0),
    row("FCAH", FCAH, 0xffff, 0),
    row("FCT", FCT, 0xffff, 0),
    row("VET", VET, 0xffff, 0x8100),
    row("ICR", ICR, ALL, 0),
    row("ITR", ITR, 0xffff, 0),
    row("ICS", ICS, ALL, 0),
    row("IMS", IMS, ALL, 0),
    row("IMC", IMC, ALL, 0),
    row("RCTL", RCTL, 0x06df_b3fe, 0),
    row("FCTTV", FCTTV, 0xffff, 0),
    row("TXCW", TXCW, 0xc000_ffff, 0),
    row("RXCW", RXCW, 0, 0),
    row("TCTL", TCTL, 0x033f_fffa, 0),
    row("TIPG", TIPG, 0x3fff_ffff, 0x0060_2008),
    row("AIFS", AIFS, 0xffff, 0),
    row("LEDCTL", LEDCTL, 0xcfcf_cfcf, 0x0706_8302),
    sticky(row("PBA", PBA, 0xffff, 0x0010_0030)),
    row("FCRTL", FCRTL, 0xfff8, 0),
    row("FCRTH", FCRTH, 0xfff8, 0),
    row("RDFH", 0x2410, 0x1fff, 0),
    row("RDFT", 0x2418, 0x1fff, 0),
    row("RDFHS", 0x2420, 0x1fff, 0),
    row("RDFTS", 0x2428, 0x1fff, 0),
    row("RDFPC", 0x2430, 0x1fff, 0),
    row("RDBAL", RDBAL, 0xffff_fff0, 0),
    row("RDBAH", RDBAH, ALL, 0),
    row("RDLEN", RDLEN, 0x000f_ff80, 0),
    row("RDH", RDH, 0xffff, 0),
    row("RDT", RDT, 0xffff, 0),
    row("RDTR", RDTR, 0xffff, 0),
    row("RXDCTL", RXDCTL, 0x013f_3f3f, 0x0001_0000),
    row("RADV", RADV, 0xffff, 0),
    sticky(row("CSBAL", CSBAL, ALL, 0)),
    sticky(row("CSBAH", CSBAH, ALL, 0)),
    row("RSRPD", RSRPD, 0xfff, 0),
    row("TDFH", 0x3410, 0x1fff, 0),
    row("TDFT", 0x3418, 0x1fff, 0),
    row("TDFHS", 0x3420, 0x1fff, 0),
    row("TDFTS", 0x3428, 0x1fff, 0),
    row("TDFPC", 0x3430, 0x1fff, 0),
    row("TDBAL", TDBAL, 0xffff_fff0, 0),
    row("TDBAH", TDBAH, ALL, 0),
    row("TDLEN", TDLEN, 0x000f_ff80, 0),
    row("TDH", TDH, 0xffff, 0),
    row("TDT", TDT, 0xffff, 0),
    row("TIDV", TIDV, 0xffff, 0),
    row("TXDCTL", TXDCTL, 0xff3f_3f3f, 0),
    row("TADV", TADV, 0xffff, 0),
    row("TSPMT", TSPMT, ALL, 0x0100_0400),
    count("CRCERRS", 0x4000), count("ALGNERRC", 0x4004), count("SYMERRS", 0x4008),
    count("RXERRC", 0x400c), count("MPC", 0x4010), count("SCC", 0x4014),
    count("ECOL", 0x4018), count("MCC", 0x401c), count("LATECOL", 0x4020),
    count("COLC", 0x4028), count("DC", 0x4030), count("TNCRS", 0x4034),
    count("SEC", 0x4038), count("CEXTERR", 0x403c), count("RLEC", 0x4040),
    count("XONRXC", 0x4048), count("XONTXC", 0x404c), count("XOFFRXC", 0x4050),
    count("XOFFTXC", 0x4054), count("FCRUC", 0x4058), count("PRC64", 0x405c),
    count("PRC127", 0x4060), count("PRC255", 0x4064), count("PRC511", 0x4068),
    count("PRC1023", 0x406c), count("PRC1522", 0x4070), count("GPRC", 0x4074),
    count("BPRC", 0x4078), count("MPRC", 0x407c), count("GPTC", 0x4080),
    count("GORCL", 0x4088), count("GORCH", 0x408c), count("GOTCL", 0x4090),
    count("GOTCH", 0x4094), count("RNBC", 0x40a0), count("RUC", 0x40a4),
    count("RFC", 0x40a8), count("ROC", 0x40ac), count("RJC", 0x40b0),
    count("MGTPRC", 0x40b4), count("MGTPDC", 0x40b8), count("MGTPTC", 0x40bc),
    count("TORL", 0x40c0), count("TORH", 0x40c4), count("TOTL", 0x40c8),
    count("TOTH", 0x40cc), count("TPR", 0x40d0), count("TPT", 0x40d4),
    count("PTC64", 0x40d8), count("PTC127", 0x40dc), count("PTC255", 0x40e0),
    count("PTC511", 0x40e4), count("PTC1023", 0x40e8), count("PTC1522", 0x40ec),
    count("MPTC", 0x40f0), count("BPTC", 0x40f4), count("TSCTC", 0x40f8),
    count("TSCTFC", 0x40fc),
    row("RXCSUM", RXCSUM, 0x7ff, 0),
    array("MTA", MTA, 128, 4, ALL),
    array("RAL", RA, 16, 8, ALL),
    array("RAH", RA + 4, 16, 8, 0x8003_ffff),
    array("VFTA", VFTA, 128, 4, ALL),
    sticky(row("WUC", 0x5800, 0xb, 0)),
    sticky(row("WUFC", 0x5808, 0x000f_80ff, 0)),
    sticky(row("WUS", 0x5810, 0, 0)),
    row("MANC", 0x5820, ALL, 0),
    // Registers of later chips. Drivers of the whole family write and read back these on this chip,
    // too, and wait for what they wrote (U-Boot takes the semaphores before it reads the EEPROM):
    // they keep it, and it means nothing.
    row("RFCTL", RFCTL, ALL, 0),
    row("MANC2H", MANC2H, ALL, 0),
    row("SWSM", SWSM, ALL, 0),
    row("SW_FW_SYNC", SW_FW_SYNC, ALL, 0),
    sticky(row("IPAV", 0x5838, 0x0001_000f, 0)),
    sticky(array("IP4AT", 0x5840, 4, 8, ALL)),
    sticky(array("IP6AT", 0x5880, 4, 4, ALL)),
    sticky(row("WUPL", 0x5900, 0, 0)),
    sticky(array("WUPM", 0x5a00, 32, 4, 0)),
    sticky(array("FFLT", 0x5f00, 4, 8, 0x7ff)),
    sticky(array("FFMT", 0x9000, 128, 8, 0xf)),
    sticky(array("FFVT", 0x9800, 128, 8, ALL)),
    array("PBM", 0x1_0000, 0x4000, 4, 0),
];
