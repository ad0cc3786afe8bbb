//! What registers do beside keeping values: one line for each effect, with the manual's section
//! (317453, revision 4.0).

use vmlan_frame::Reason;

use super::super::super::cause;
use super::super::super::eeprom::eecd;
use super::super::super::link::Loopback;
use super::*;

/// Section, register, effect, check.
type Line = (&'static str, &'static str, &'static str, fn(&Bench) -> bool);

/// A change makes the host's doorbell ring, if the worker of that side listens.
fn rings(bench: &Bench, register: u32, value: u32) -> bool {
    let transmit = [TCTL, TDT, TDBAL, TDBAH, TDLEN, TDH].contains(&register);
    let bell = if transmit { &bench.chip.core.tx_bell } else { &bench.chip.core.rx_bell };
    let before = bench.host.rings();
    bench.write(register, value);
    assert!(!bell.arm(|| false));
    bench.write(register, value);
    bench.write(register, value);
    bench.host.rings() == before + 1
}

/// The register reads `first`, and then 0.
fn clears(bench: &Bench, register: u32, first: u32) -> bool {
    bench.read(register) == first && bench.read(register) == 0
}

#[rustfmt::skip]
const MANUAL: &[Line] = &[
    ("13.4.1", "CTRL", "RST resets the MAC and clears itself", |b| {
        b.write(RXCSUM, 1);
        b.write(CTRL, bit::CTRL_RST | bit::CTRL_SLU);
        b.read(RXCSUM) == 0 && b.read(CTRL) == 0x209
    }),
    ("13.4.1", "CTRL", "PHY_RST resets the PHY and holds it", |b| {
        b.set_phy(4, 1);
        b.write(CTRL, bit::CTRL_PHY_RST | bit::CTRL_SLU);
        let held = b.read(CTRL) & bit::CTRL_PHY_RST != 0;
        b.phy(4) != 1 && b.read(STATUS) & bit::STATUS_LU == 0 && held
    }),
    ("13.4.1", "CTRL", "SLU lets the link come up: LSC", |b| {
        b.write(CTRL, 0);
        b.read(ICR);
        b.write(CTRL, bit::CTRL_SLU);
        b.read(STATUS) & bit::STATUS_LU != 0 && b.read(ICR) == cause::LSC
    }),
    ("13.4.2", "STATUS", "a write changes nothing", |b| {
        let before = b.read(STATUS);
        b.write(STATUS, 0);
        b.read(STATUS) == before
    }),
    ("13.4.3", "EECD", "EE_REQ is granted", |b| {
        b.write(EECD, eecd::REQ);
        b.read(EECD) & eecd::GNT != 0
    }),
    ("13.4.4", "EERD", "START reads a word, DONE", |b| {
        b.write(EERD, 0x0e << 8 | 1);
        b.read(EERD) == 0x8086_0e10
    }),
    ("13.4.6", "CTRL_EXT", "EE_RST loads the address again and clears itself", |b| {
        b.write(RA, 0);
        b.write(CTRL_EXT, 1 << 13);
        b.read(RA) == 0x1200_5452 && b.read(CTRL_EXT) == 0
    }),
    ("13.4.7", "MDIC", "an operation ends with READY", |b| b.phy(2) == 0x0141),
    ("13.4.7", "MDIC", "I posts MDAC", |b| {
        b.write(MDIC, 1 << 29 | 2 << 26 | 1 << 21 | 2 << 16);
        b.read(ICR) == cause::MDAC
    }),
    ("13.4.11", "VET", "the receive side looks again", |b| moves_filter(b, VET)),
    ("13.4.16", "PBA", "the transmitter gets the rest", |b| {
        b.write(PBA, 24);
        b.read(PBA) == 40 << 16 | 24
    }),
    ("13.4.17", "ICR", "a read clears it", |b| {
        b.write(ICS, 0xc0);
        clears(b, ICR, 0xc0)
    }),
    ("13.4.17", "ICR", "a read lowers INTA#", |b| {
        b.write(IMS, 1);
        b.write(ICS, 1);
        b.chip.is_asserted() && b.read(ICR) == 1 && !b.chip.is_asserted()
    }),
    ("13.4.17", "ICR", "bits written as 1 are cleared", |b| {
        b.write(ICS, 0xc1);
        b.write(ICR, 0x81);
        clears(b, ICR, 0x40)
    }),
    ("13.4.18", "ITR", "a shorter one lets go what was held", |b| {
        b.write(IMS, 1);
        b.write(ITR, 0xffff);
        b.write(ICS, 1);
        b.read(ICR);
        b.write(ICS, 1);
        let held = !b.chip.is_asserted();
        b.write(ITR, 0);
        held && b.chip.is_asserted()
    }),
    ("13.4.19", "ICS", "sets causes", |b| {
        b.write(ICS, u32::MAX);
        clears(b, ICR, 0x1_ffff)
    }),
    ("13.4.20", "IMS", "bits written as 0 stay", |b| {
        b.write(IMS, 5);
        b.write(IMS, 2);
        b.read(IMS) == 7
    }),
    ("13.4.21", "IMC", "bits written as 1 are masked", |b| {
        b.write(IMS, 7);
        b.write(IMC, 2);
        b.read(IMS) == 5
    }),
    ("13.4.22", "RCTL", "LBM closes the loop", |b| {
        b.write(RCTL, 1 << 6);
        b.chip.wire().loopback == Loopback::Mac
    }),
    ("13.4.22", "RCTL", "EN wakes who waits for room", |b| rings(b, RCTL, bit::RCTL_EN)),
    ("13.4.22", "RCTL", "the receive side looks again", |b| moves_filter(b, RCTL)),
    ("13.4.25", "RDBAL", "may make a bad ring good", |b| rings(b, RDBAL, 0x1000)),
    ("13.4.27", "RDLEN", "may make a bad ring good", |b| rings(b, RDLEN, 0x1000)),
    ("13.4.29", "RDT", "wakes who waits for room", |b| rings(b, RDT, 1)),
    ("13.4.30", "RDTR", "FPD ends the window and clears itself", |b| flushes(b, RDTR, cause::RXT0)),
    ("13.4.33", "TCTL", "EN wakes the worker", |b| rings(b, TCTL, bit::TCTL_EN)),
    ("13.4.33", "TCTL", "SWXOFF clears itself", |b| {
        b.write(TCTL, 1 << 22);
        b.read(TCTL) == 0
    }),
    ("13.4.36", "TDBAL", "may make a bad ring good", |b| rings(b, TDBAL, 0x1000)),
    ("13.4.38", "TDLEN", "may make a bad ring good", |b| rings(b, TDLEN, 0x1000)),
    ("13.4.40", "TDT", "wakes the worker", |b| rings(b, TDT, 1)),
    ("13.4.41", "TIDV", "FPD ends the window and clears itself", |b| flushes(b, TIDV, cause::TXDW)),
    ("13.4.47", "RXCSUM", "the receive side looks again", |b| moves_filter(b, RXCSUM)),
    ("13.5.1", "MTA", "the receive side looks again", |b| moves_filter(b, MTA + 4 * 127)),
    ("13.5.2", "RAL", "the receive side looks again", |b| moves_filter(b, RA + 8 * 15)),
    ("13.5.3", "RAH", "the receive side looks again", |b| moves_filter(b, RA + 8 * 15 + 4)),
    ("13.5.4", "VFTA", "the receive side looks again", |b| moves_filter(b, VFTA + 4 * 127)),
    ("13.7.5", "MPC", "a read clears it", |b| {
        b.chip.counters().output.drop(Reason::ReceiverFull, 3);
        clears(b, 0x4010, 3)
    }),
];

fn moves_filter(bench: &Bench, register: u32) -> bool {
    let version = || bench.chip.filter_version.load(Ordering::Relaxed);
    let before = version();
    bench.write(register, 1);
    version() != before
}

/// A cause is held by `register`, until its FPD is written.
fn flushes(bench: &Bench, register: u32, causes: u32) -> bool {
    bench.write(IMS, causes);
    bench.write(register, 0xffff);
    bench.post_transmit(causes, true);
    bench.read(ICR);
    bench.post_transmit(causes, true);
    let held = !bench.chip.is_asserted();
    bench.write(register, bit::FPD | 0x1234);
    held && bench.chip.is_asserted() && bench.read(register) == 0x1234
}

#[test]
fn effects() {
    for (section, register, effect, check) in MANUAL {
        let bench = Bench::new();
        bench.start();
        assert!(check(&bench), "{register}: {effect} (SDM {section})");
    }
}
