//! Configuration space and the I/O window.

use super::super::super::cause;
use super::*;

#[test]
fn identity() {
    let bench = Bench::new();
    assert_eq!(bench.config(0x00, 4), 0x100e_8086);
    assert_eq!(bench.config(0x08, 4), 0x0200_0003);
    assert_eq!(bench.config(0x2c, 4), 0x001e_8086);
    assert_eq!(bench.config(0x3d, 1), 1, "INTA#");
}

/// Every byte of configuration space: what all ones, and all zeros, leave in it.
#[test]
fn what_can_be_written() {
    let expected = |at: u64| match at {
        0x04 => 0x57,
        0x05 => 0x05,
        0x0c | 0x0d | 0x13 | 0x15..=0x17 | 0x3c | 0xf5..=0xfd => 0xff,
        0x12 => 0xfe,
        0x14 => 0xc0,
        0xe0 => 0x03,
        0xe1 | 0xf2 => 0x01,
        0xf4 => 0xfc,
        _ => 0,
    };
    for at in 0..256 {
        let bench = Bench::new();
        let before = bench.config(at, 1);
        bench.chip.write_config(at, &[0xff]);
        let ones = bench.config(at, 1);
        bench.chip.write_config(at, &[0]);
        let zeros = bench.config(at, 1);
        assert_eq!(ones & !zeros, expected(at), "byte {at:#x}");
        assert_eq!(before & !expected(at), zeros, "byte {at:#x}");
    }
}

#[test]
fn bars_have_their_sizes() {
    let bench = Bench::new();
    for (at, value) in [(0x10, 0xfffe_0000), (0x14, 0xffff_ffc1u32), (0x18, 0), (0x30, 0)] {
        bench.chip.write_config(at, &u32::MAX.to_le_bytes());
        assert_eq!(bench.config(at, 4), value);
    }
}

#[test]
fn capabilities() {
    let bench = Bench::new();
    assert_ne!(bench.config(6, 2) & 0x10, 0);
    let mut at = u64::from(bench.config(0x34, 1));
    let mut seen = vec![];
    while at != 0 {
        seen.push(bench.config(at, 1));
        at = bench.config(at + 1, 1).into();
    }
    assert_eq!(seen, [1, 5], "power management, MSI");
    assert_eq!(bench.config(0xf2, 2), 0x80, "64 bits, one message, disabled");
}

#[test]
fn bus_master_opens_the_gate() {
    let bench = Bench::new();
    assert!(!bench.chip.wire().dma);
    bench.start();
    assert!(bench.chip.wire().dma);
    bench.chip.write_config(4, &[3]);
    assert!(!bench.chip.wire().dma);
}

#[test]
fn intx_disable_keeps_the_level_in() {
    let bench = Bench::new();
    bench.start();
    bench.chip.write_config(5, &[4]);
    bench.write(IMS, cause::RXT0);
    bench.write(ICS, cause::RXT0);
    assert_eq!(bench.host.raises(), 0);
    assert!(!bench.chip.is_asserted());
    assert_ne!(bench.config(6, 1) & 8, 0, "interrupt status shows it");
    bench.chip.write_config(5, &[0]);
    assert_eq!(bench.host.raises(), 1);
    assert!(bench.chip.is_asserted());
    bench.read(ICR);
    assert_eq!(bench.config(6, 1) & 8, 0);
    assert_eq!(bench.host.lowered.load(Ordering::Relaxed), 1);
}

#[test]
fn msi_is_not_disabled_with_the_pin() {
    let bench = Bench::new();
    bench.start();
    bench.chip.write_config(5, &[4]);
    bench.chip.write_config(0xf2, &[1]);
    bench.write(IMS, cause::RXT0);
    bench.write(ICS, cause::RXT0);
    assert_eq!(bench.host.raises(), 1);
}

#[test]
fn d3_stops_everything_and_d0_starts_afresh() {
    let bench = Bench::new();
    bench.start();
    bench.write(TIPG, 5);
    bench.chip.write_config(0xe0, &[1]);
    assert_eq!(bench.config(0xe0, 1), 0, "there is no D1");
    bench.chip.write_config(0xe0, &[3]);
    assert!(!bench.chip.wire().dma);
    assert_eq!(bench.read(STATUS), u32::MAX);
    bench.write(TIPG, 7);
    bench.chip.write_config(0xe0, &[2]);
    assert_eq!(bench.config(0xe0, 1), 3, "there is no D2");
    bench.chip.write_config(0xe0, &[0]);
    assert_eq!(bench.read(TIPG), 0x0060_2008, "as after power-on");
    assert_eq!(bench.config(4, 2), 0);
}

#[test]
fn the_io_window_reaches_registers() {
    let bench = Bench::new();
    bench.write_io(TIPG, 0x1234);
    assert_eq!(bench.read(TIPG), 0x1234);
    assert_eq!(bench.read_io(TIPG), 0x1234);
    let mut address = [0; 4];
    bench.chip.read_ports(0, &mut address);
    assert_eq!(u32::from_le_bytes(address), TIPG);
    bench.write_io(CTRL, bit::CTRL_RST);
    assert_eq!(bench.read(TIPG), 0x0060_2008);
    assert_eq!(bench.read(CTRL) & bit::CTRL_RST, 0, "clears itself");
    for nowhere in [0x2_0000, 0xffff_fffc, u32::MAX] {
        bench.write_io(nowhere, 1);
        assert_eq!(bench.read_io(nowhere), 0);
    }
}

#[test]
fn a_pci_reset_is_a_power_on() {
    let bench = Bench::new();
    bench.start();
    bench.set_phy(4, 1);
    bench.write(PBA, 8);
    bench.write(IMS, 4);
    bench.write(ICS, 4);
    bench.chip.reset();
    assert!(!bench.chip.is_asserted());
    assert_eq!((bench.config(4, 2), bench.phy(4)), (0, 0x0de1));
    assert_eq!(bench.read(PBA), 0x0010_0030);
}

#[test]
fn doorbells_ring_only_when_somebody_listens() {
    let bench = Bench::new();
    bench.start();
    bench.write(TDT, 1);
    assert_eq!(bench.host.rings(), 0);
    assert!(!bench.chip.core.tx_bell.arm(|| false));
    bench.write(TDT, 2);
    bench.write(TDT, 3);
    assert_eq!(bench.host.rings(), 1, "once");
    assert!(!bench.chip.core.rx_bell.arm(|| false));
    bench.write(TDT, 4);
    assert_eq!(bench.host.rings(), 1);
    bench.write(RDT, 4);
    assert_eq!(bench.host.rings(), 2);
    let counters = bench.chip.counters();
    assert_eq!((counters.input.notifications.get(), counters.rx_doorbells.get()), (4, 1));
}

/// Everything that may let frames pass again wakes a worker that waits.
#[test]
fn openings_of_the_gate_ring() {
    let bench = Bench::new();
    let opens = |what: &str, change: &dyn Fn()| {
        assert!(!bench.chip.core.tx_bell.arm(|| false));
        assert!(!bench.chip.core.rx_bell.arm(|| false));
        let before = bench.host.rings();
        change();
        assert!(bench.host.rings() > before, "{what}");
    };
    bench.write(CTRL, bit::CTRL_SLU);
    opens("bus master", &|| bench.chip.write_config(4, &[4]));
    bench.chip.set_link(false);
    opens("cable", &|| bench.chip.set_link(true));
    opens("TCTL.EN", &|| bench.write(TCTL, bit::TCTL_EN));
    opens("RCTL.EN", &|| bench.write(RCTL, bit::RCTL_EN));
    opens("loopback", &|| bench.write(RCTL, 1 << 6));
    opens("map", &|| drop(bench.chip.set_map(Arc::default())));
}
