//! Every register against the manual (317453, revision 4.0): value after reset, bits that can be
//! written, and how it is accessed. This table was written from the manual, apart from the one in
//! `table.rs`; where it departs from the manual, it says why.

use super::*;

/// How a register is accessed, as in SDM table 13-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Read and write: these bits keep what is written, the others read as 0.
    Rw(u32),
    /// Read only.
    Ro,
    /// Write only: reads as 0.
    Wo,
    /// Read to clear.
    Rc,
    /// Has a test of its own, named here.
    Own(&'static str),
}
use Mode::*;

/// Section, name, offset, how many, distance, value after power-on, mode.
type Line = (&'static str, &'static str, u32, u32, u32, u32, Mode);

const ALL: u32 = u32::MAX;

#[rustfmt::skip]
const MANUAL: &[Line] = &[
    // RST (26) clears itself; reserved bits 1, 2, 4, 10, 13 to 17, 29 read as 0.
    ("13.4.1",  "CTRL",     0x00000, 1, 4, 0x0000_0209, Own("phy, resets")),
    ("13.4.1",  "CTRL_DUP", 0x00004, 1, 4, 0x0000_0209, Own("duplicate")),
    // FD, SPEED 1000 (7:6), ASDV (9:8); LU needs CTRL.SLU.
    ("13.4.2",  "STATUS",   0x00008, 1, 4, 0x0000_0281, Ro),
    ("13.4.3",  "EECD",     0x00010, 1, 4, 0x0000_0100, Own("eeprom")),
    ("13.4.4",  "EERD",     0x00014, 1, 4, 0, Own("eeprom")),
    // EE_RST (13) clears itself.
    ("13.4.6",  "CTRL_EXT", 0x00018, 1, 4, 0, Rw(0x00c2_8fff)),
    ("13.4.7",  "MDIC",     0x00020, 1, 4, 0x1000_0000, Own("phy")),
    ("13.4.8",  "FCAL",     0x00028, 1, 4, 0, Rw(ALL)),
    ("13.4.9",  "FCAH",     0x0002c, 1, 4, 0, Rw(0xffff)),
    ("13.4.10", "FCT",      0x00030, 1, 4, 0, Rw(0xffff)),
    // Initially undefined: 8100h here, which every driver writes.
    ("13.4.11", "VET",      0x00038, 1, 4, 0x8100, Rw(0xffff)),
    ("13.4.12", "FCTTV",    0x00170, 1, 4, 0, Rw(0xffff)),
    ("13.4.13", "TXCW",     0x00178, 1, 4, 0, Rw(0xc000_ffff)),
    // Nothing is received in TBI mode.
    ("13.4.14", "RXCW",     0x00180, 1, 4, 0, Ro),
    ("13.4.15", "LEDCTL",   0x00e00, 1, 4, 0x0706_8302, Rw(0xcfcf_cfcf)),
    ("13.4.16", "PBA",      0x01000, 1, 4, 0x0010_0030, Own("packet_buffer")),
    ("13.4.17", "ICR",      0x000c0, 1, 4, 0, Own("interrupts")),
    ("13.4.18", "ITR",      0x000c4, 1, 4, 0, Rw(0xffff)),
    ("13.4.19", "ICS",      0x000c8, 1, 4, 0, Wo),
    ("13.4.20", "IMS",      0x000d0, 1, 4, 0, Own("interrupts")),
    ("13.4.21", "IMC",      0x000d8, 1, 4, 0, Wo),
    ("13.4.22", "RCTL",     0x00100, 1, 4, 0, Rw(0x06df_b3fe)),
    // XONE and XFCE (31) are not in the 82540EM.
    ("13.4.23", "FCRTL",    0x02160, 1, 4, 0, Rw(0xfff8)),
    ("13.4.24", "FCRTH",    0x02168, 1, 4, 0, Rw(0xfff8)),
    ("13.4.25", "RDBAL",    0x02800, 1, 4, 0, Rw(0xffff_fff0)),
    ("13.4.26", "RDBAH",    0x02804, 1, 4, 0, Rw(ALL)),
    ("13.4.27", "RDLEN",    0x02808, 1, 4, 0, Rw(0x000f_ff80)),
    ("13.4.28", "RDH",      0x02810, 1, 4, 0, Rw(0xffff)),
    ("13.4.29", "RDT",      0x02818, 1, 4, 0, Rw(0xffff)),
    // FPD (31) clears itself.
    ("13.4.30", "RDTR",     0x02820, 1, 4, 0, Rw(0xffff)),
    ("13.4.31", "RADV",     0x0282c, 1, 4, 0, Rw(0xffff)),
    ("13.4.32", "RSRPD",    0x02c00, 1, 4, 0, Rw(0xfff)),
    // SWXOFF (22) clears itself.
    ("13.4.33", "TCTL",     0x00400, 1, 4, 0, Rw(0x033f_fffa)),
    // Initially undefined: the recommended value for copper here.
    ("13.4.34", "TIPG",     0x00410, 1, 4, 0x0060_2008, Rw(0x3fff_ffff)),
    ("13.4.35", "AIFS",     0x00458, 1, 4, 0, Rw(0xffff)),
    ("13.4.36", "TDBAL",    0x03800, 1, 4, 0, Rw(0xffff_fff0)),
    ("13.4.37", "TDBAH",    0x03804, 1, 4, 0, Rw(ALL)),
    ("13.4.38", "TDLEN",    0x03808, 1, 4, 0, Rw(0x000f_ff80)),
    ("13.4.39", "TDH",      0x03810, 1, 4, 0, Rw(0xffff)),
    ("13.4.40", "TDT",      0x03818, 1, 4, 0, Rw(0xffff)),
    ("13.4.41", "TIDV",     0x03820, 1, 4, 0, Rw(0xffff)),
    ("13.4.43", "TXDCTL",   0x03828, 1, 4, 0, Rw(0xff3f_3f3f)),
    ("13.4.44", "TADV",     0x0382c, 1, 4, 0, Rw(0xffff)),
    ("13.4.45", "TSPMT",    0x03830, 1, 4, 0x0100_0400, Rw(ALL)),
    ("13.4.46", "RXDCTL",   0x02828, 1, 4, 0x0001_0000, Rw(0x013f_3f3f)),
    ("13.4.47", "RXCSUM",   0x05000, 1, 4, 0, Rw(0x7ff)),
    ("13.5.1",  "MTA",      0x05200, 128, 4, 0, Rw(ALL)),
    // The first pair comes from the EEPROM.
    ("13.5.2",  "RAL0",     0x05400, 1, 8, 0x1200_5452, Rw(ALL)),
    ("13.5.2",  "RAL",      0x05408, 15, 8, 0, Rw(ALL)),
    ("13.5.3",  "RAH0",     0x05404, 1, 8, 0x8000_5634, Rw(0x8003_ffff)),
    ("13.5.3",  "RAH",      0x0540c, 15, 8, 0, Rw(0x8003_ffff)),
    ("13.5.4",  "VFTA",     0x05600, 128, 4, 0, Rw(ALL)),
    // PME_Status (2) is never set: nothing wakes.
    ("13.6.1",  "WUC",      0x05800, 1, 4, 0, Rw(0xb)),
    ("13.6.2",  "WUFC",     0x05808, 1, 4, 0, Rw(0x000f_80ff)),
    ("13.6.3",  "WUS",      0x05810, 1, 4, 0, Ro),
    ("-",       "MANC",     0x05820, 1, 4, 0, Rw(ALL)),
    // Of later chips, kept for drivers that read back what they wrote.
    ("-",       "RFCTL",    0x05008, 1, 4, 0, Rw(ALL)),
    ("-",       "MANC2H",   0x05860, 1, 4, 0, Rw(ALL)),
    ("-",       "SWSM",     0x05b50, 1, 4, 0, Rw(ALL)),
    ("-",       "SW_FW_SYNC", 0x05b5c, 1, 4, 0, Rw(ALL)),
    ("13.6.4",  "IPAV",     0x05838, 1, 4, 0, Rw(0x0001_000f)),
    ("13.6.5",  "IP4AT",    0x05840, 4, 8, 0, Rw(ALL)),
    ("13.6.6",  "IP6AT",    0x05880, 4, 4, 0, Rw(ALL)),
    ("13.6.7",  "WUPL",     0x05900, 1, 4, 0, Ro),
    ("13.6.8",  "WUPM",     0x05a00, 32, 4, 0, Ro),
    ("13.6.9",  "FFLT",     0x05f00, 4, 8, 0, Rw(0x7ff)),
    ("13.6.10", "FFMT",     0x09000, 128, 8, 0, Rw(0xf)),
    ("13.6.11", "FFVT",     0x09800, 128, 8, 0, Rw(ALL)),
    ("13.7",    "counters", 0x04000, 64, 4, 0, Rc),
    ("13.8.1",  "RDFH",     0x02410, 1, 4, 0, Rw(0x1fff)),
    ("13.8.2",  "RDFT",     0x02418, 1, 4, 0, Rw(0x1fff)),
    ("13.8.3",  "RDFHS",    0x02420, 1, 4, 0, Rw(0x1fff)),
    ("13.8.4",  "RDFTS",    0x02428, 1, 4, 0, Rw(0x1fff)),
    ("13.8.5",  "RDFPC",    0x02430, 1, 4, 0, Rw(0x1fff)),
    ("13.8.6",  "TDFH",     0x03410, 1, 4, 0, Rw(0x1fff)),
    ("13.8.7",  "TDFT",     0x03418, 1, 4, 0, Rw(0x1fff)),
    ("13.8.8",  "TDFHS",    0x03420, 1, 4, 0, Rw(0x1fff)),
    ("13.8.9",  "TDFTS",    0x03428, 1, 4, 0, Rw(0x1fff)),
    ("13.8.10", "TDFPC",    0x03430, 1, 4, 0, Rw(0x1fff)),
    // The packet buffer memory: frames pass through no memory of ours, so it reads as 0.
    ("13.8.11", "PBM",      0x10000, 0x4000, 4, 0, Ro),
];

/// What the driver's register test writes, and a bit at a time.
fn patterns() -> impl Iterator<Item = u32> {
    [0x5a5a_5a5a, 0xa5a5_a5a5, 0, u32::MAX].into_iter().chain((0..32).map(|bit| 1 << bit))
}

/// Each word of the table.
fn words() -> impl Iterator<Item = (&'static Line, u32)> {
    MANUAL.iter().flat_map(|line| (0..line.3).map(move |i| (line, line.2 + i * line.4)))
}

#[test]
fn values_after_power_on() {
    let bench = Bench::new();
    for ((section, name, .., reset, _), offset) in words() {
        assert_eq!(bench.read(offset), *reset, "{name} at {offset:#x}, SDM {section}");
    }
}

#[test]
fn access_modes() {
    let bench = Bench::new();
    for ((section, name, .., reset, mode), offset) in words() {
        let value = |written: u32| match mode {
            Rw(mask) => Some(written & mask),
            Ro => Some(*reset),
            Wo | Rc => Some(0),
            Own(_) => None,
        };
        let few = if *name == "PBM" { 4 } else { 99 };
        for written in patterns().take(few).filter(|w| value(*w).is_some()) {
            bench.write(offset, written);
            let read = bench.read(offset);
            assert_eq!(Some(read), value(written), "{name} at {offset:#x}, SDM {section}");
        }
        let after = if let Rw(_) = mode { 0 } else { *reset };
        if !matches!(mode, Own(_)) {
            bench.write(offset, 0);
            assert_eq!(bench.read(offset), after, "{name}");
        }
    }
}

#[test]
fn writes_change_no_other_register() {
    let quiet = |line: &Line| matches!(line.6, Rw(_) | Ro | Rc) && line.1 != "PBM";
    let all: Vec<_> = words().filter(|(line, _)| quiet(line)).collect();
    for (line, offset) in all.iter().filter(|(line, _)| line.3 <= 16) {
        let bench = Bench::new();
        bench.write(*offset, 0x5a5a_5a5a);
        for (other, at) in all.iter().filter(|(_, at)| at != offset) {
            assert_eq!(bench.read(*at), other.5, "{} changed {} at {at:#x}", line.1, other.1);
        }
    }
}

#[test]
fn everything_else_is_reserved() {
    let bench = Bench::new();
    let known: std::collections::BTreeSet<u32> = words().map(|(_, offset)| offset).collect();
    for offset in (0..0x2_0000).step_by(4).filter(|o| !known.contains(o)) {
        bench.write(offset, u32::MAX);
        assert_eq!(bench.read(offset), 0, "{offset:#x}");
    }
    let outside = bench.chip.device().registers.iter().map(|a| a.reads + a.writes).sum::<u64>();
    assert_eq!(outside, 0, "reserved offsets are no registers");
}

#[test]
fn ctrl_bits() {
    let bench = Bench::new();
    for offset in [CTRL, CTRL_DUP] {
        for written in patterns().map(|w| w & !(bit::CTRL_RST | bit::CTRL_PHY_RST)) {
            bench.write(offset, written);
            let expected = written & 0xdbfc_1be9;
            assert_eq!((bench.read(CTRL), bench.read(CTRL_DUP)), (expected, expected));
        }
    }
}

/// SDM 13.4.16: 64 KiB in all; the transmitter has what the receiver leaves. CTRL.RST makes it so,
/// and keeps it.
#[test]
fn packet_buffer() {
    let bench = Bench::new();
    for (written, read) in
        [(40, 0x0018_0028), (0x30, 0x0010_0030), (0xffff_0008, 0x0038_0008), (0xffff, 0xffff)]
    {
        bench.write(PBA, written);
        assert_eq!(bench.read(PBA), read);
        bench.write(CTRL, bit::CTRL_RST);
        assert_eq!(bench.read(PBA), read);
    }
}

/// SDM 14.7: what CTRL.RST keeps, and that it clears itself.
#[test]
fn software_reset() {
    let kept = ["PBA", "WUC", "WUFC", "IPAV", "IP4AT", "IP6AT", "FFLT", "FFMT", "FFVT"];
    let bench = Bench::new();
    bench.start();
    let plain = || words().filter(|(line, _)| matches!(line.6, Rw(_)));
    plain().for_each(|(_, offset)| bench.write(offset, 0x5a5a_5a58));
    bench.write(CTRL, bit::CTRL_RST);
    for ((section, name, .., reset, mode), offset) in plain() {
        let Rw(mask) = mode else { continue };
        let expected = if kept.contains(name) { 0x5a5a_5a58 & mask } else { *reset };
        assert_eq!(bench.read(offset), expected, "{name} at {offset:#x}, SDM {section}");
    }
    assert_eq!(bench.read(CTRL), 0x209);
    assert_eq!(bench.config(4, 2), 7, "configuration space is kept");
}

/// What `ethtool -t` does (Linux, e1000_reg_test), in its order.
#[test]
fn the_register_test_of_the_linux_driver() {
    let bench = Bench::new();
    bench.start();
    let toggle = 0xffff_f833;
    let status = bench.read(STATUS);
    bench.write(STATUS, toggle);
    assert_eq!(bench.read(STATUS) & toggle, status & toggle);
    bench.write(STATUS, status);
    let pattern = |register: u32, mask: u32, write: u32| {
        for test in [0x5a5a_5a5a, 0xa5a5_a5a5, 0, u32::MAX] {
            bench.write(register, write & test);
            assert_eq!(bench.read(register) & mask, write & test & mask, "{register:#x}");
        }
    };
    let set = |register: u32, mask: u32, write: u32| {
        bench.write(register, write & mask);
        assert_eq!(bench.read(register) & mask, write & mask, "{register:#x}");
    };
    let first: [(u32, u32, u32); 14] = [
        (FCAL, ALL, ALL),
        (FCAH, 0xffff, ALL),
        (FCT, 0xffff, ALL),
        (VET, 0xffff, ALL),
        (RDTR, 0xffff, ALL),
        (RDBAH, ALL, ALL),
        (RDLEN, 0xfff80, 0xfffff),
        (RDH, 0xffff, 0xffff),
        (RDT, 0xffff, 0xffff),
        (FCRTH, 0xfff8, 0xfff8),
        (FCTTV, 0xffff, 0xffff),
        (TIPG, 0x3fff_ffff, 0x3fff_ffff),
        (TDBAH, ALL, ALL),
        (TDLEN, 0xfff80, 0xfffff),
    ];
    first.iter().for_each(|(register, mask, write)| pattern(*register, *mask, *write));
    set(RCTL, ALL, 0);
    set(RCTL, 0x06df_b3fe, 0x003f_fffb);
    set(TCTL, ALL, 0);
    set(RCTL, 0x06df_b3fe, ALL);
    for (register, mask, write) in
        [(RDBAL, !15, ALL), (TXCW, 0xc000_ffff, 0xffff), (TDBAL, !15, ALL), (TIDV, 0xffff, 0xffff)]
    {
        pattern(register, mask, write);
    }
    (0..15).for_each(|i| pattern(RA + 8 * i + 4, 0x8003_ffff, ALL));
    (0..128).for_each(|i| pattern(MTA + 4 * i, ALL, ALL));
}

#[test]
fn accesses_are_counted_by_name() {
    let bench = Bench::new();
    bench.read(STATUS);
    bench.read(STATUS);
    bench.write(TDT, 1);
    bench.write_io(RA + 4, 1);
    let registers = bench.chip.device().registers;
    let counts: Vec<_> = registers.iter().map(|a| (a.register, a.reads, a.writes)).collect();
    assert_eq!(counts, [("STATUS", 2, 0), ("TDT", 0, 1), ("RAH", 0, 1)]);
}
