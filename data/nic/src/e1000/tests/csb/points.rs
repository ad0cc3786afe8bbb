//! The twelve points that implementers are to mind, one test each.

use std::sync::Arc;

use super::super::super::cause;
use super::super::registers::{Bench, FakeHost, pages};
use super::*;
use crate::chip::{Controlled, CsbFault, Fault, Space};

const IMS: u64 = 0xd0;
const ICS: u32 = 0xc8;
const ITR: u32 = 0xc4;

#[test]
fn subsystem_1101_and_two_registers() {
    for csb in [false, true] {
        let guest = Guest::with(csb);
        let mut id = [0; 4];
        guest.chip.read(Space::Config, 0x2c, &mut id);
        assert_eq!(u32::from_le_bytes(id), if csb { 0x1101_8086 } else { 0x001e_8086 });
        let mut driver = Driver::new(&guest, Kind::New);
        assert_eq!(driver.reg(CSBAL), if csb { CSB } else { 0 });
        driver.set(CSBAH, 0x1234);
        assert_eq!(driver.reg(CSBAH), if csb { 0x1234 } else { 0 });
        // CSBAH alone places nothing, and moves nothing.
        driver.turn_well(true);
        let mut wire = Wire::default();
        assert!(driver.send());
        assert_eq!(wire.pull(driver.chip), 1);
        assert_eq!(driver.get(HOST_TDH), u32::from(csb));
        // Zero releases.
        driver.set(CSBAH, 0);
        driver.set(CSBAL, 0);
        assert!(driver.send());
        driver.set(TD + TAIL, driver.next);
        assert_eq!(wire.pull(driver.chip), 1);
        assert_eq!(driver.get(HOST_TDH), u32::from(csb));
        assert_eq!(driver.chip.fault(), None);
    }
}

#[test]
fn ctrl_rst_keeps_the_csb_and_a_full_reset_drops_it() {
    let guest = Guest::with(true);
    /// What, whether it keeps the CSB, how.
    type Reset = (&'static str, bool, fn(&E1000));
    let reset: [Reset; 5] = [
        ("MMIO", true, |chip| chip.write_bar(0, 0, &(1u32 << 26).to_le_bytes())),
        ("I/O window", true, |chip| {
            chip.write_ports(0, &0u32.to_le_bytes());
            chip.write_ports(4, &(1u32 << 26).to_le_bytes());
        }),
        ("PCI reset", false, E1000::reset),
        ("another machine", false, E1000::renew),
        ("D3 and back", false, |chip| {
            chip.write_config(0xe0, &[3]);
            chip.write_config(0xe0, &[0]);
        }),
    ];
    for (what, kept, reset) in reset {
        let mut driver = Driver::new(&guest, Kind::New);
        let mut wire = Wire::default();
        driver.turn_well(true);
        assert!(driver.send());
        wire.pull(driver.chip);
        assert_eq!((driver.get(HOST_TDH), driver.get(HOST_NEED_TXKICK)), (1, 0), "{what}");
        reset(driver.chip);
        let low = if kept { CSB } else { 0 };
        assert_eq!((driver.reg(CSBAL), driver.reg(CSBAH)), (low, 0), "{what}");
        if kept {
            // The heads of a chip that was reset, and its wish: it sleeps.
            assert_eq!((driver.get(HOST_TDH), driver.get(HOST_NEED_TXKICK)), (0, 1), "{what}");
        }
        driver.put(HOST_TDH, 77);
        driver.turn(kept);
        driver.up();
        let kicks = driver.kicks;
        for _ in 0..3 {
            assert!(driver.send());
            assert_eq!(wire.pull(driver.chip), 1, "{what}");
        }
        assert_eq!(driver.get(HOST_TDH), if kept { 3 } else { 77 }, "{what}");
        assert_eq!(driver.kicks - kicks, if kept { 1 } else { 3 }, "{what}: until it is awake");
        driver.turn(false);
    }
}

#[test]
fn csb_on_is_read_each_time_and_old_indexes_are_not_believed() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::G4);
    let mut wire = Wire::default();
    // Both indexes are of long ago, one of them a likely one.
    driver.put(GUEST_RDT, 40);
    driver.put(GUEST_TDT, 9);
    assert_eq!(wire.push(driver.chip, 32), 32);
    driver.receive(16);
    assert_eq!(driver.reg(RD + TAIL), 15);
    driver.turn(true);
    assert_eq!(wire.pull(driver.chip), 0, "guest_tdt 9 is of before");
    assert_eq!(driver.get(HOST_NEED_TXKICK), 1, "the register counts, so it must be written");
    // From RDH = 32 to RDT = 15 there is room for 47. With RDT = 40 it would be 8.
    assert_eq!(wire.push(driver.chip, 60), 47);
    driver.receive(99);
    assert_eq!(driver.get(GUEST_RDT), 14);
    assert_eq!(wire.push(driver.chip, 99), 63, "now the word counts");
    assert!(driver.send());
    assert_eq!((wire.pull(driver.chip), driver.get(HOST_NEED_TXKICK)), (1, 0));
    // The interface goes down and up with the CSB on: stale once more.
    driver.up();
    (driver.received, wire.gone) = (0, 0);
    assert_eq!(wire.pull(driver.chip), 0);
    assert_eq!(wire.push(driver.chip, 99), 63);
    driver.receive(99);
    assert!(driver.send());
    assert_eq!(wire.pull(driver.chip), 1);
    // Off, in between: the register has what the word had.
    driver.put(GUEST_TDT, driver.next);
    driver.turn(false);
    assert_eq!(wire.pull(driver.chip), 0);
    assert_eq!(driver.reg(TD + TAIL), driver.next);
    driver.send();
    assert_eq!(wire.pull(driver.chip), 1);
}

#[test]
fn wishes_are_bit_0() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    driver.put(GUEST_NEED_RXKICK, 0);
    for (wish, interrupts) in [(0, 0), (2, 0), (1, 1), (0x8000_0002, 0), (3, 1)] {
        driver.reg(ICR);
        driver.put(GUEST_NEED_TXKICK, wish);
        let before = guest.host.raises();
        driver.send();
        wire.pull(driver.chip);
        assert_eq!(guest.host.raises() - before, interrupts, "{wish:#x}");
        assert_eq!(driver.get(HOST_NEED_TXKICK), 0);
        assert!(!driver.chip.arm());
        assert_eq!(driver.get(HOST_NEED_TXKICK), 1);
    }
}

#[test]
fn nothing_is_written_but_the_hosts_words() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::G4);
    for at in (0x14..0x1000).step_by(4) {
        driver.put(at, 0xdead_0000 | u32::try_from(at).unwrap());
    }
    let mut wire = Wire::default();
    for round in 0..200 {
        driver.turn(round % 7 != 0);
        while driver.send() {}
        while wire.pull(driver.chip) > 0 {}
        assert!(!driver.chip.arm());
        wire.push(driver.chip, 63);
        let _ = driver.chip.want_room();
        driver.receive(99);
    }
    let host = [HOST_TDH, HOST_NEED_TXKICK, HOST_RDH, HOST_NEED_RXKICK, HOST_RXKICK_AT];
    for at in (0x14..0x1000).step_by(4).filter(|at| !host.contains(at)) {
        assert_eq!(driver.get(at), 0xdead_0000 | u32::try_from(at).unwrap(), "{at:#x}");
    }
    assert!(host.iter().all(|at| driver.get(*at) & 0xffff_0000 != 0xdead_0000));
}

#[test]
fn need_rxkick_and_rxkick_at_say_the_same() {
    let guest = Guest::with(true);
    for kind in [Kind::G0, Kind::G1, Kind::New] {
        let mut driver = Driver::new(&guest, kind);
        let mut wire = Wire::default();
        driver.turn_well(true);
        let wish = |d: &Driver<'_>| (d.get(HOST_NEED_RXKICK), d.get(HOST_RXKICK_AT));
        for _ in 0..10 {
            while wire.push(driver.chip, 50) > 0 {
                assert_eq!(wish(&driver), (0, NONE));
            }
            assert!(!driver.chip.want_room());
            let at = (driver.reg(RD + TAIL) + 1 + 63 * 3 / 4) % SIZE;
            assert_eq!(wish(&driver), (1, at));
            let (kicks, rang) = (driver.kicks, guest.host.rings());
            assert_eq!(driver.receive(99), 63);
            assert_eq!(driver.kicks - kicks, 1, "{kind:?}");
            assert_eq!(guest.host.rings() - rang, 1);
        }
        driver.release();
    }
}

#[test]
fn writes_of_tdt_and_tctl_kick_whatever_they_write() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    wire.pull(driver.chip);
    for (register, value) in [(TD + TAIL, 0), (TCTL, 10), (TD + TAIL, 33)] {
        assert!(!driver.chip.arm());
        // Publishes, and sees that a kick is wanted.
        driver.put(HOST_NEED_TXKICK, 0);
        assert!(driver.send());
        driver.put(HOST_NEED_TXKICK, 1);
        let rang = guest.host.rings();
        driver.set(register, value);
        assert_eq!(guest.host.rings() - rang, 1, "{register:#x}");
        assert_eq!(wire.pull(driver.chip), 1, "{register:#x}: the value is not believed");
        assert_eq!(driver.get(HOST_NEED_TXKICK), 0, "taken back before the tail is read");
        assert_eq!(driver.reg(TD + TAIL), driver.next, "the register follows");
    }
}

/// A chip whose clock the test moves, with a CSB.
fn bench() -> (Bench, Window) {
    let host = Arc::new(FakeHost::default());
    let config = Config { csb: true, ..Config::default() };
    let bench = Bench { chip: E1000::new(config, pages(), host.clone()), host };
    let map = memory(0x1_0000);
    drop(bench.chip.set_map(map.clone()));
    bench.start();
    bench.write(0x2830, CSB);
    let csb = map.window(CSB.into(), 0x68, 4).unwrap();
    (bench, csb)
}

/// Section 2.3 of the reference, written again.
fn may_rise(on: u32, tx: u32, rx: u32, pending: u32) -> bool {
    let frames = cause::TXDW | cause::TXQE | cause::RXT0 | cause::RXDMT0;
    on == 0
        || pending & !frames != 0
        || tx & 1 == 1 && pending & (cause::TXDW | cause::TXQE) != 0
        || rx & 1 == 1 && pending & cause::RXT0 != 0
}

#[test]
fn the_gate_and_what_it_keeps_in() {
    let (bench, csb) = bench();
    let put = |at: usize, value| csb.set_u32(at, value, Ordering::Release);
    let bits = [cause::TXDW, cause::TXQE, cause::LSC, cause::RXDMT0, cause::RXO, cause::RXT0, 512];
    bench.write(0xd0, u32::MAX);
    for causes in 0..128u32 {
        let causes: u32 =
            bits.iter().enumerate().map(|(i, b)| if causes >> i & 1 == 1 { *b } else { 0 }).sum();
        for (on, wishes) in
            [0, 1, 0x1_0000].into_iter().flat_map(|on| (0..16).map(move |w| (on, w)))
        {
            let (tx, rx) = (wishes & 3, wishes >> 2);
            put(CSB_ON, on);
            put(GUEST_NEED_TXKICK, tx);
            put(GUEST_NEED_RXKICK, rx);
            bench.write(ICS, causes);
            let open = causes != 0 && may_rise(on, tx, rx, causes);
            assert_eq!(bench.chip.is_asserted(), open, "{causes:#x} {on} {tx} {rx}");
            assert_eq!(bench.timer(), None, "nothing to wait for");
            assert_eq!(bench.read(0xc0), causes, "latched all the same");
        }
    }
    // Kept in, and out: by a write of IMS, by the next cause, and when the CSB is off.
    put(CSB_ON, 1);
    put(GUEST_NEED_RXKICK, 0);
    bench.write(ICS, cause::RXT0);
    put(GUEST_NEED_RXKICK, 1);
    assert!(!bench.chip.is_asserted(), "a wish by itself is nothing");
    bench.write(0xd0, 0);
    assert!(bench.chip.is_asserted());
    assert_eq!(bench.read(0xc0), cause::RXT0);
    put(GUEST_NEED_RXKICK, 0);
    bench.write(ICS, cause::RXT0);
    bench.write(ICS, cause::LSC);
    assert_eq!((bench.chip.is_asserted(), bench.read(0xc0)), (true, cause::RXT0 | cause::LSC));
    let csb = bench.chip.device().csb.unwrap();
    assert!(csb.on && csb.suppressed > 200 && csb.guest_asked > 200, "{csb:?}");
}

#[test]
fn a_message_about_frames_leaves_nothing_in_icr() {
    const USE_MSIX: usize = 0x18;
    // Asked for by 1 and nothing else, sampled when the CSB is placed, and only with MSI.
    for (word, msi, takes) in [(1, 1, true), (1, 0, false), (0, 1, false), (0x0a5a_5a5b, 1, false)]
    {
        let (bench, csb) = bench();
        let put = |at: usize, value| csb.set_u32(at, value, Ordering::Release);
        put(USE_MSIX, word);
        bench.write(0x2830, CSB);
        put(USE_MSIX, 1 - word.min(1));
        bench.chip.write_config(0xf2, &[msi]);
        put(CSB_ON, 1);
        put(GUEST_NEED_RXKICK, 1);
        bench.write(0xd0, cause::RXT0 | cause::RXO | cause::LSC);
        for n in 1..=3 {
            bench.write(ICS, cause::RXT0);
            let raises = if takes { n } else { 1 };
            assert_eq!(
                (bench.host.raises(), bench.chip.is_asserted()),
                (raises, !takes),
                "{word} {msi}"
            );
        }
        assert_eq!(bench.read(0xc0), if takes { 0 } else { cause::RXT0 });
        // What is not about frames stays until it is read, and says so each time.
        bench.write(ICS, cause::LSC);
        assert_eq!(bench.read(0xc0), cause::LSC);
        // No wish, no message; off, the pin's ways.
        put(GUEST_NEED_RXKICK, 0);
        let before = bench.host.raises();
        bench.write(ICS, cause::RXT0);
        assert_eq!(bench.host.raises(), before);
        put(CSB_ON, 0);
        bench.write(0xd0, 0);
        assert!(bench.chip.is_asserted());
        assert_eq!(bench.read(0xc0), cause::RXT0);
    }
}

/// Its message takes the causes that it is about, and no others: the driver was not told of those.
#[test]
fn a_message_leaves_masked_causes() {
    let (bench, csb) = bench();
    csb.set_u32(0x18, 1, Ordering::Release);
    bench.write(0x2830, CSB);
    bench.chip.write_config(0xf2, &[1]);
    csb.set_u32(CSB_ON, 1, Ordering::Release);
    csb.set_u32(GUEST_NEED_RXKICK, 1, Ordering::Release);
    csb.set_u32(GUEST_NEED_TXKICK, 1, Ordering::Release);
    bench.write(0xd0, cause::RXT0);
    bench.write(ICS, cause::TXDW | cause::RXO);
    bench.write(ICS, cause::RXT0);
    assert_eq!(bench.host.raises(), 1);
    bench.write(0xd0, cause::TXDW);
    assert_eq!(bench.host.raises(), 2, "unmasked, it is told");
    assert_eq!(bench.read(0xc0), cause::RXO);
}

#[test]
fn turning_it_off_lets_out_what_was_kept_in() {
    let guest = Guest::with(true);
    for looks in [true, false] {
        let mut driver = Driver::new(&guest, Kind::New);
        let mut wire = Wire::default();
        driver.turn_well(true);
        wire.pull(driver.chip);
        driver.put(GUEST_NEED_RXKICK, 0);
        driver.reg(ICR);
        wire.push(driver.chip, 1);
        assert!(!driver.chip.is_asserted());
        driver.turn(false);
        // By the next look of the worker, or the last before it sleeps.
        if looks {
            wire.pull(driver.chip);
        } else {
            assert!(!driver.chip.arm());
        }
        assert!(driver.chip.is_asserted());
        assert_eq!(driver.reg(ICR) & cause::RXT0, cause::RXT0);
    }
}

#[test]
fn every_store_then_load_has_its_fence() {
    // The proof is loom's (`tests/loom`). Here: hundreds of sleeps of both sides, with threads.
    super::threads::both_sides_sleep(Kind::New, 20_000);
}

#[test]
fn the_threshold_is_of_the_receive_ring_and_set_again() {
    let guest = Guest::with(true);
    let driver = Driver::new(&guest, Kind::New);
    // The transmit ring's size is written last, and is another. 8 descriptors, frames of 9,000
    // bytes: 5 each.
    driver.set(RCTL, 0);
    guest.ring(RD, RX_RING, 8);
    driver.set(TD + LEN, 16 * 512);
    driver.set(RD + TAIL, 0);
    driver.put(GUEST_RDT, 0);
    driver.set(RCTL, 2 | 1 << 15 | 1 << 5);
    driver.turn(true);
    let jumbo = vec![(frame([0xff; 6], 9000), Offload::NONE)];
    let kick_at = || driver.get(HOST_RXKICK_AT);
    assert_eq!((guest.arrive(&jumbo), driver.chip.want_room()), (0, false));
    assert_eq!(kick_at(), 1 + 7 * 3 / 4);
    // The guest gives back less than a frame needs: the wish is stated again, from where it is now.
    driver.put(GUEST_RDT, 3);
    assert_eq!((guest.arrive(&jumbo), driver.chip.want_room()), (0, false));
    assert_eq!(kick_at(), 3 + 1 + 4 * 3 / 4);
    driver.put(GUEST_RDT, 4);
    assert!(driver.chip.want_room(), "more than at the last try: worth another");
    assert_eq!(kick_at(), 3 + 1 + 4 * 3 / 4, "found before a wish was stated");
    assert_eq!((guest.arrive(&jumbo), driver.chip.want_room()), (0, false));
    assert_eq!(kick_at(), 4 + 1 + 3 * 3 / 4);
    driver.put(GUEST_RDT, 7);
    assert_eq!((guest.arrive(&jumbo), kick_at()), (1, NONE));
}

#[test]
fn moderation_and_the_gate() {
    let (bench, csb) = bench();
    let put = |at: usize, value| csb.set_u32(at, value, Ordering::Release);
    put(CSB_ON, 1);
    put(GUEST_NEED_RXKICK, 1);
    bench.write(0xd0, cause::RXT0);
    // 256 us.
    bench.write(ITR, 1000);
    bench.write(ICS, cause::RXT0);
    assert_eq!((bench.host.raises(), bench.read(0xc0)), (1, cause::RXT0), "the first at once");
    // Kept in by the CSB: no timer.
    put(GUEST_NEED_RXKICK, 0);
    bench.write(ICS, cause::RXT0);
    assert_eq!((bench.host.raises(), bench.timer()), (1, None));
    // Let out by the CSB, held by the window; at its end the guest has changed its mind.
    put(GUEST_NEED_RXKICK, 1);
    bench.write(0xd0, 0);
    assert_eq!((bench.host.raises(), bench.timer()), (1, Some(256_000)));
    put(GUEST_NEED_RXKICK, 0);
    bench.sleep(256_000);
    assert_eq!((bench.host.raises(), bench.timer()), (1, None));
    // And once more; now it is delivered.
    put(GUEST_NEED_RXKICK, 1);
    bench.write(ICS, cause::RXT0);
    assert_eq!(bench.host.raises(), 2);
    bench.read(0xc0);
    bench.write(ICS, cause::RXT0);
    assert_eq!((bench.host.raises(), bench.timer()), (2, Some(512_000)));
    bench.sleep(256_000);
    assert_eq!(bench.host.raises(), 3);
    // No floor of our own under ITR = 0.
    bench.read(0xc0);
    bench.write(ITR, 0);
    bench.write(ICS, cause::RXT0);
    assert_eq!(bench.host.raises(), 4);
}

#[test]
fn a_driver_as_it_should_be_touches_no_register() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    wire.pull(driver.chip);
    driver.reg(ICR);
    driver.put(GUEST_NEED_RXKICK, 0);
    let before = (accesses(driver.chip), guest.host.raises());
    for round in 0..3000 {
        for _ in 0..round % 40 {
            driver.send();
        }
        while wire.pull(driver.chip) > 0 {}
        wire.push(driver.chip, round % 33);
        driver.receive(99);
    }
    assert_eq!((wire.come, driver.received), (driver.sent, wire.gone));
    assert!(wire.come > 50_000 && wire.gone > 40_000);
    let after = (accesses(driver.chip), guest.host.raises());
    assert_eq!(after, before, "register accesses, interrupts");
    let csb = driver.chip.device().csb.unwrap();
    assert!(csb.on && csb.suppressed > 3000 && csb.guest_asked == 0, "{csb:?}");
    // Released, the page is the guest's again.
    driver.release();
    for at in (0..0x68).step_by(4) {
        driver.put(at, 0xabcd);
    }
    driver.set(TD + TAIL, 0);
    driver.set(TD + TAIL, driver.next);
    wire.push(driver.chip, 99);
    let _ = (driver.chip.want_room(), driver.chip.arm());
    assert!((0..0x68).step_by(4).all(|at| driver.get(at) == 0xabcd));
    // Placed where it cannot be, it says so and does without.
    for (low, high, fault) in [
        (CSB + 4, 0, CsbFault::Unaligned),
        (CSB, 1, CsbFault::Outside),
        (u32::try_from(MEMORY).unwrap() - 64, 0, CsbFault::Outside),
    ] {
        driver.set(CSBAH, high);
        driver.set(CSBAL, low);
        let address = u64::from(high) << 32 | u64::from(low);
        assert_eq!(driver.chip.fault(), Some(Fault::BadCsb { address, fault }));
        assert!(!driver.chip.device().csb.unwrap().on);
    }
    assert_eq!(driver.chip.counters().faults.get(), 3);
    let _ = IMS;
}
