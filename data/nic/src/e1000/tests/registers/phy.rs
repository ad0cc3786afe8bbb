//! The PHY and the link.

use super::super::super::cause;
use super::super::super::link::Loopback;
use super::*;

const BMCR: u32 = 0;
const BMSR: u32 = 1;
const LINK: u16 = 4;
const DONE: u16 = 0x20;
const LU: u32 = bit::STATUS_LU;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.start();
    bench
}

#[test]
fn it_is_an_m88e1011() {
    let bench = Bench::new();
    assert_eq!((bench.phy(2), bench.phy(3) & 0xfff0), (0x0141, 0x0c20));
}

#[test]
fn only_address_1_answers() {
    let bench = Bench::new();
    for address in (0..32u32).filter(|a| *a != 1) {
        bench.write(MDIC, 2 << 26 | address << 21 | 2 << 16);
        assert_eq!(bench.read(MDIC) >> 28 & 0b101, 0b101, "ready, error at {address}");
    }
    bench.write(MDIC, 1 << 21 | 2 << 16);
    assert_ne!(bench.read(MDIC) & 1 << 30, 0, "no operation");
}

#[test]
fn mdac_is_posted_if_wanted() {
    let bench = bench();
    bench.write(MDIC, 2 << 26 | 1 << 21 | 2 << 16);
    assert_eq!(bench.read(ICR), 0);
    bench.write(MDIC, 1 << 29 | 2 << 26 | 1 << 21 | 2 << 16);
    assert_eq!(bench.read(ICR), cause::MDAC);
}

#[test]
fn read_only_registers_stay() {
    let bench = Bench::new();
    for register in [2, 3, 5, 6, 8, 10, 15, 17] {
        let before = bench.phy(register);
        bench.set_phy(register, !before);
        assert_eq!(bench.phy(register), before, "register {register}");
    }
    for (register, mask) in [(4, 0xbfff), (7, 0xb7ff), (9, 0xff00), (16, 0xffff), (20, 0xffff)] {
        for value in [0u16, 0x5a5a, 0xffff] {
            bench.set_phy(register, value);
            assert_eq!(bench.phy(register), value & mask, "register {register}");
        }
    }
}

#[test]
fn the_link_needs_slu_the_cable_and_power() {
    let bench = Bench::new();
    assert_eq!(bench.read(STATUS) & LU, 0, "no SLU yet");
    bench.start();
    assert_eq!(bench.read(STATUS), 0x283, "up, 1000 Mbit/s, full duplex");
    assert!(bench.chip.wire().link);
    bench.chip.set_link(false);
    assert_eq!(bench.read(STATUS) & LU, 0);
    assert_eq!(bench.read(ICR), cause::LSC);
    bench.chip.set_link(true);
    assert_eq!(bench.read(ICR), cause::LSC);
    bench.set_phy(BMCR, 0x1940);
    assert_eq!(bench.read(STATUS) & LU, 0, "powered down");
    bench.set_phy(BMCR, 0x1140);
    assert_eq!(bench.read(STATUS) & LU, LU);
}

#[test]
fn a_link_set_to_what_it_is_is_no_change() {
    let bench = bench();
    bench.chip.set_link(true);
    assert_eq!(bench.read(ICR), 0);
}

#[test]
fn bmsr_latches_that_the_link_was_down() {
    let bench = bench();
    bench.phy(BMSR);
    assert_eq!(bench.phy(BMSR) & (LINK | DONE), LINK | DONE);
    bench.chip.set_link(false);
    bench.chip.set_link(true);
    assert_eq!(bench.phy(BMSR) & LINK, 0);
    assert_eq!(bench.phy(BMSR) & LINK, LINK);
}

#[test]
fn autonegotiation_ends_at_once_and_flaps_the_link() {
    let bench = bench();
    bench.set_phy(BMCR, 0x1340);
    assert_eq!(bench.phy(BMCR), 0x1140, "restart clears itself");
    assert_eq!(bench.read(ICR), cause::LSC);
    assert_eq!(bench.phy(5), 0x41e1, "no PAUSE on the other end");
    assert_eq!(bench.phy(10) & 0x0c00, 0x0c00, "1000BASE-T on the other end");
    assert_eq!(bench.phy(17), 0xac00);
    bench.chip.set_link(false);
    assert_eq!((bench.phy(5), bench.phy(10), bench.phy(17)), (0, 0, 0));
}

#[test]
fn speed_follows_what_is_advertised_or_forced() {
    let bench = bench();
    bench.set_phy(9, 0);
    bench.set_phy(BMCR, 0x1340);
    assert_eq!(bench.read(STATUS) & 0xc3, 0x43, "100 Mbit/s");
    bench.set_phy(BMCR, 0x0000);
    assert_eq!(bench.read(STATUS) & 0xc3, 0x02, "10, half duplex");
    bench.write(CTRL, bit::CTRL_SLU | bit::CTRL_FRCSPD | bit::CTRL_FRCDPLX | bit::CTRL_FD | 2 << 8);
    assert_eq!(bench.read(STATUS) & 0xc3, 0x83, "forced in the MAC");
}

/// What `ethtool -t` does before its loopback test (Linux, e1000_integrated_phy_loopback).
#[test]
fn the_loopback_of_the_linux_driver() {
    let bench = bench();
    assert_eq!(bench.chip.wire().loopback, Loopback::None);
    for (register, value) in [(16, 0x0808), (BMCR, 0x9140), (BMCR, 0x8140), (BMCR, 0x4140)] {
        bench.set_phy(register, value);
    }
    assert_eq!(bench.phy(BMCR), 0x4140);
    for (register, value) in [(29, 0x1f), (30, 0x8ffc), (29, 0x1a), (30, 0x8ff0)] {
        bench.set_phy(register, value);
    }
    assert_eq!(bench.chip.wire().loopback, Loopback::Phy);
    bench.chip.set_link(false);
    assert!(bench.chip.wire().link, "needs no cable");
    bench.set_phy(BMCR, 0x0140);
    assert_eq!(bench.chip.wire().loopback, Loopback::None);
    assert!(!bench.chip.wire().link);
}

#[test]
fn mac_loopback_is_in_rctl() {
    let bench = bench();
    for (lbm, expected) in [(1, Loopback::Mac), (3, Loopback::Mac), (0, Loopback::None)] {
        bench.write(RCTL, lbm << 6);
        assert_eq!(bench.chip.wire().loopback, expected);
    }
}

#[test]
fn resets_of_the_phy() {
    let bench = bench();
    bench.set_phy(4, 0x0001);
    bench.write(CTRL, bit::CTRL_RST);
    assert_eq!(bench.phy(4), 0x0001, "a MAC reset leaves the PHY alone");
    bench.write(CTRL, bit::CTRL_SLU | bit::CTRL_PHY_RST);
    assert_eq!(bench.read(STATUS) & LU, 0, "held in reset");
    bench.write(CTRL, bit::CTRL_SLU);
    assert_eq!(bench.phy(4), 0x0de1);
    assert_eq!(bench.read(STATUS) & LU, LU);
}
