//! Configuration space.

use super::guest::*;

#[test]
fn identity() {
    let guest = Guest::cold(0, false);
    assert_eq!((guest.config(0, 4), guest.config(8, 4)), (0x8169_10ec, 0x0200_0010));
    assert_eq!((guest.config(0x2c, 4), guest.config(0x3d, 1)), (0x8169_10ec, 1));
    assert_eq!(Guest::cold(0, true).config(0x2c, 4), 0x1101_10ec, "says that there is a CSB");
}

/// Every byte of configuration space: what all ones, and all zeros, leave in it.
#[test]
fn what_can_be_written() {
    let expected = |at: u64| match at {
        0x04 => 0x57,
        0x05 => 0x05,
        0x0c | 0x0d | 0x11..=0x13 | 0x15..=0x17 | 0x3c | 0x55..=0x5d => 0xff,
        0x54 => 0xfc,
        0xe0 => 0x03,
        0x52 | 0xe1 => 0x01,
        _ => 0,
    };
    for at in 0..256 {
        let guest = Guest::cold(0, false);
        let before = guest.config(at, 1);
        guest.config_write(at, &[0xff]);
        let ones = guest.config(at, 1);
        guest.config_write(at, &[0]);
        let zeros = guest.config(at, 1);
        assert_eq!(ones & !zeros, expected(at), "byte {at:#x}");
        assert_eq!(before & !expected(at), zeros, "byte {at:#x}");
    }
}

#[test]
fn bars_have_their_sizes() {
    let guest = Guest::cold(0, false);
    for (at, value) in [(0x10, 0xffff_ff01u32), (0x14, 0xffff_ff00), (0x18, 0), (0x30, 0)] {
        guest.config_write(at, &u32::MAX.to_le_bytes());
        assert_eq!(guest.config(at, 4), value);
    }
}

#[test]
fn capabilities() {
    let guest = Guest::cold(0, false);
    assert_ne!(guest.config(6, 2) & 0x10, 0);
    let mut at = u64::from(guest.config(0x34, 1));
    let mut seen = vec![];
    while at != 0 {
        seen.push(guest.config(at, 1));
        at = guest.config(at + 1, 1).into();
    }
    assert_eq!(seen, [1, 5], "power management, MSI");
    assert_eq!(guest.config(0x52, 2), 0x80, "64 bits, one message, disabled");
}

#[test]
fn intx_disable_keeps_the_level_in_and_msi_does_not_care() {
    let guest = Guest::new();
    guest.set16(IMR, SWINT);
    guest.config_write(5, &[4]);
    guest.set8(TPPOLL, 1);
    assert_eq!((guest.host.raises(), guest.chip.is_asserted()), (0, false));
    assert_ne!(guest.config(6, 1) & 8, 0, "interrupt status shows it");
    guest.config_write(5, &[0]);
    assert_eq!((guest.host.raises(), guest.chip.is_asserted()), (1, true));
    guest.set16(ISR, SWINT);
    guest.config_write(5, &[4]);
    guest.config_write(0x52, &[1]);
    guest.set8(TPPOLL, 1);
    assert_eq!(guest.host.raises(), 2);
}

#[test]
fn d3_stops_everything_and_d0_starts_afresh() {
    let mut guest = Guest::new();
    guest.config_write(0xe0, &[3]);
    assert!(!guest.chip.is_up());
    assert_eq!(guest.get(IDR0, 4), u32::MAX);
    guest.set32(MAR0, 7);
    guest.send(0, &frame([2; 6], 60));
    assert!(guest.pull().is_empty());
    guest.config_write(0xe0, &[0]);
    assert_eq!((guest.get(MAR0, 4), guest.get(CR, 1), guest.config(4, 2)), (0, 0, 0));
    guest.start();
    guest.send(0, &frame([2; 6], 60));
    assert_eq!(guest.pull().len(), 1);
}
