//! PHYAR, the PHY behind it, and the link.

use super::guest::*;

#[test]
fn what_drivers_find() {
    let guest = Guest::new();
    assert_eq!(guest.phy(2) << 16 | guest.phy(3), 0x001c_c910, "an RTL8211, says Linux's realtek");
    guest.phy(1);
    assert_eq!(guest.phy(1), 0x796d, "link, autonegotiation done");
    assert_eq!((guest.phy(5), guest.phy(10) & 0x0800), (0x41e1, 0x0800), "1000BASE-T full duplex");
    assert_eq!(guest.phy(17) & 0xec00, 0xac00, "1000, full, resolved, link");
    assert_eq!(guest.get(PHYSTATUS, 1), 0x13);
}

/// Reset, power down, isolate: what Linux does with BMCR.
#[test]
fn control_bits() {
    let guest = Guest::new();
    guest.set16(ISR, 0xffff);
    guest.set_phy(4, 0x0141);
    guest.set_phy(0, 0x9140);
    assert_eq!((guest.phy(0), guest.phy(4)), (0x1140, 0x0de1), "reset clears itself");
    assert_eq!(guest.isr(), LINK, "and restarts autonegotiation");
    guest.set16(ISR, LINK);
    guest.set_phy(0, 0x1940);
    assert_eq!((guest.isr(), guest.get(PHYSTATUS, 1)), (LINK, 0), "powered down");
    assert!(!guest.chip.is_up());
    assert_eq!(guest.phy(1) & 0x24, 0);
    guest.set16(ISR, LINK);
    guest.set_phy(0, 0x1340);
    assert_eq!((guest.isr(), guest.phy(0)), (LINK, 0x1140));
    assert!(guest.chip.is_up());
    assert_eq!((guest.phy(1) & 4, guest.phy(1) & 4), (0, 4), "latched low");
}

#[test]
fn speeds() {
    let guest = Guest::new();
    // Advertise 100 only; then 10, forced.
    guest.set_phy(9, 0);
    guest.set_phy(4, 0x0181);
    guest.set_phy(0, 0x1200);
    assert_eq!(guest.get(PHYSTATUS, 1), 0x0b);
    guest.set_phy(0, 0);
    assert_eq!(guest.get(PHYSTATUS, 1), 0x06);
    guest.set_phy(0, 0x2100);
    assert_eq!(guest.get(PHYSTATUS, 1), 0x0b);
}

/// As rtl8169sb_hw_phy_config and realtek's page access do.
#[test]
fn pages_are_tolerated() {
    let guest = Guest::new();
    for page in [1, 2, 7, 8, 0xa42, 0xffff] {
        guest.set_phy(31, page);
        guest.set_phy(1, 0x90d0);
        guest.set_phy(0, 0x8000);
        assert_eq!(guest.phy(1), if page < 8 { 0x90d0 } else { 0 });
        assert_eq!(guest.phy(31), page);
        guest.set_phy(31, 0);
        assert_eq!(guest.phy(2), 0x1c);
    }
    assert!(guest.chip.is_up(), "BMCR of other pages is another register");
    for (register, value) in [(0x17, 0x2138), (0x0e, 0x0260)] {
        guest.set_phy(register, value);
        assert_eq!(guest.phy(register), value);
    }
}

#[test]
fn phyar_in_pieces() {
    let guest = Guest::new();
    // The transfer begins with the byte that has the flag.
    guest.set16(PHYAR, 0x1940);
    guest.set8(PHYAR + 2, 0);
    assert_eq!(guest.phy(0), 0x1140, "not yet, and that was another");
    guest.set16(PHYAR, 0x1940);
    guest.set8(PHYAR + 2, 0);
    guest.set8(PHYAR + 3, 0x80);
    assert_eq!(guest.phy(0), 0x1940);
}

#[test]
fn the_cable() {
    let guest = Guest::new();
    guest.set16(IMR, LINK);
    guest.chip.set_link(false);
    assert_eq!((guest.isr(), guest.host.raises(), guest.get(PHYSTATUS, 1)), (LINK, 1, 0));
    assert!(!guest.chip.is_up());
    guest.set16(ISR, LINK);
    guest.chip.set_link(false);
    assert_eq!(guest.isr(), 0, "it was out already");
    guest.chip.set_link(true);
    assert_eq!((guest.isr(), guest.host.raises(), guest.get(PHYSTATUS, 1)), (LINK, 2, 0x13));
}

#[test]
fn loopback_needs_no_cable() {
    for by_phy in [false, true] {
        let mut guest = Guest::new();
        guest.chip.set_link(false);
        if by_phy {
            guest.set_phy(0, 0x4140);
        } else {
            guest.set32(TCR, 0x0302_0700);
        }
        let frames: Vec<_> = (60..64).map(|len| frame(MAC, len)).collect();
        for (n, frame) in frames.iter().enumerate() {
            guest.send(n as u64, frame);
        }
        assert!(guest.pull().is_empty(), "nothing reaches the wire");
        for frame in &frames {
            assert_eq!(guest.take().unwrap().0, *frame);
        }
    }
}
