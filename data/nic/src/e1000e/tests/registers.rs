//! Registers, the EEPROM and the PHY.

use super::*;
use crate::chip::{PciFunction, Space};
use crate::intel::guest::MAC;

fn eerd(guest: &Guest, word: u32) -> u32 {
    guest.set(0x14, word << 2 | 1);
    let value = guest.get(0x14);
    assert_eq!(value & 3, 2, "done");
    value >> 16
}

fn phy(guest: &Guest, register: u32) -> u32 {
    guest.set(0x20, 2 << 26 | 1 << 21 | register << 16);
    let value = guest.get(0x20);
    assert_eq!(value >> 28, 1, "ready, no error");
    value & 0xffff
}

fn set_phy(guest: &Guest, register: u32, value: u32) {
    guest.set(0x20, 1 << 26 | 1 << 21 | register << 16 | value);
    assert_eq!(guest.get(0x20) >> 28, 1);
}

fn config(guest: &Guest, at: u64) -> u32 {
    let mut word = [0; 4];
    guest.chip.read(Space::Config, at, &mut word);
    u32::from_le_bytes(word)
}

#[test]
fn the_eeprom_has_the_address_and_the_sum() {
    let guest = Guest::new();
    let sum = (0..64).map(|word| eerd(&guest, word)).sum::<u32>();
    assert_eq!(sum & 0xffff, 0xbaba);
    let word = |i: usize| u32::from(u16::from_le_bytes([MAC[i], MAC[i + 1]]));
    assert_eq!([0, 1, 2].map(|at| eerd(&guest, at)), [0, 2, 4].map(word));
    assert_eq!(guest.get(0x5400), word(0) | word(2) << 16);
    assert_eq!(guest.get(0x5404), 1 << 31 | word(4));
    // No management, no wake-up.
    assert_eq!((eerd(&guest, 0x0f) & 0x6000, eerd(&guest, 0x24) & 0x400), (0, 0));
    guest.set(0x102c, 0xabcd << 16 | 0x30 << 2 | 1);
    assert_eq!(guest.get(0x102c) & 3, 2, "done");
    assert_eq!(eerd(&guest, 0x30), 0xabcd);
    guest.chip.renew();
    assert_eq!(eerd(&guest, 0x30), 0, "the next guest does not see it");
}

#[test]
fn the_phy_has_pages() {
    let guest = Guest::new();
    assert_eq!([2, 3].map(|id| phy(&guest, id)), [0x0141, 0x0cb1]);
    assert_eq!([19, 21].map(|errors| phy(&guest, errors)), [0, 0]);
    set_phy(&guest, 20, 0x1234);
    set_phy(&guest, 22, 2);
    set_phy(&guest, 20, 0x4321);
    assert_eq!((phy(&guest, 20), phy(&guest, 22), phy(&guest, 2)), (0, 2, 0x0141));
    set_phy(&guest, 22, 0);
    assert_eq!(phy(&guest, 20), 0x1234);
    assert_eq!(phy(&guest, 17) & 0xac00, 0xac00, "1000 Mbit/s, full duplex, resolved, link");
}

/// What drivers wait for, and what survives CTRL.RST.
#[test]
fn what_drivers_poll_is_there() {
    let guest = Guest::new();
    assert_eq!(guest.get(0x10) & 0x1e300, 0x300, "EECD: AUTO_RD, present, 64 words, no flash");
    assert_eq!(guest.get(0x1010), 1 << 18, "configuration done");
    assert_ne!(guest.get(8) & 1 << 19, 0, "master enabled");
    guest.set(0, 1 << 6 | 1 << 2);
    assert_eq!(guest.get(8) & 1 << 19, 0, "and disabled at once");
    guest.set(0xf00, 1 << 5);
    assert_eq!(guest.get(0xf00), 1 << 5, "MDIO ownership");
    assert_eq!([guest.get(0x5b50), guest.get(0x5b50)], [0, 1], "SMBI is taken by a read");
    guest.set(0x5b50, 0);
    assert_eq!(guest.get(0x5b50), 0);
    guest.set(0x1000, 32);
    assert_eq!(guest.get(0x1000), 8 << 16 | 32);
    guest.set(0x1000, 50);
    assert_eq!(guest.get(0x1000), 8 << 16 | 50, "the transmitter keeps some");
    for at in [RFCTL, PSRCTL, MRQC, 0x5c00, 0x5c80] {
        guest.set(at, 0x0101_0101);
    }
    guest.set(0, 1 << 26);
    let after = [0xf00, RFCTL, PSRCTL, MRQC, 0x3840, 0x3940, 0x5c00].map(|at| guest.get(at));
    assert_eq!(after, [0, 0, 0x0004_0402, 0, 0x403, 0x403, 0]);
}

/// Registers of the management, of time stamps and of what drivers of the family look at besides.
#[test]
fn what_there_is_not_reads_as_0() {
    let guest = Guest::new();
    for at in [0x5820, 0x5860, 0x5b30, 0x5b54, 0x5b58, 0x8f00, 0xb600, 0xb604, 0xb608, 0x4100] {
        guest.set(at, u32::MAX);
        assert_eq!(guest.get(at), 0, "{at:#x}");
    }
    let mut table = [0xff; 16];
    guest.chip.read(Space::Bar(3), 0, &mut table);
    guest.chip.write(Space::Bar(3), 0, &[1; 16]);
    assert_eq!(table, [0; 16]);
}

#[test]
fn configuration_space() {
    let guest = Guest::new();
    assert_eq!(config(&guest, 0), 0x10d3_8086);
    for (bar, size) in [(0x10, 128 << 10), (0x14, 0), (0x18, 32), (0x1c, 16 << 10), (0x20, 0)] {
        guest.chip.write_config(bar, &[0xff; 4]);
        let mask = config(&guest, bar) & !0xf;
        assert_eq!(mask, 0u32.wrapping_sub(size), "{bar:#x}");
    }
    let mut capabilities = Vec::new();
    let mut at = u64::from(config(&guest, 0x34) & 0xff);
    while at != 0 {
        let word = config(&guest, at);
        capabilities.push((at, word & 0xff));
        at = u64::from(word >> 8 & 0xff);
    }
    assert_eq!(capabilities, [(0xc8, 1), (0xd0, 5), (0xa0, 0x11)]);
    assert_eq!(config(&guest, 0xa0) >> 16 & 0x7ff, 4, "5 vectors");
    assert_eq!((config(&guest, 0xa4), config(&guest, 0xa8)), (3, 0x2003));
    // The I/O window.
    guest.chip.write(Space::Bar(2), 0, &0x5400u32.to_le_bytes());
    let mut word = [0; 4];
    guest.chip.read(Space::Bar(2), 4, &mut word);
    assert_eq!(u32::from_le_bytes(word), guest.get(0x5400));
}

/// Every row is a register.
#[test]
fn the_table_has_one_row_for_each_register() {
    let own = super::super::table::TABLE;
    let all = || crate::intel::table::COMMON.iter().chain(own);
    assert!(all().count() < 255);
    let mut offsets: Vec<u32> =
        all().flat_map(|row| (0..row.count).map(|i| row.offset + i * row.stride)).collect();
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count);
    assert!(offsets.iter().all(|at| at % 4 == 0 && *at < 0x2_0000));
}
