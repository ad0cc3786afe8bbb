//! Drivers of all generations move frames both ways, through sleeps of both sides, with the CSB
//! turned on and off, and the interface taken down and up. One thread: nothing runs between a
//! driver's store and its next load, as on a machine that is kind to drivers without fences. What
//! the kind machine does not show is healed by the worker: see the last tests.

use super::super::super::cause;
use super::*;

/// Both sides work in turns of uneven length, until `frames` more have moved both ways.
pub fn traffic(guest: &Guest, driver: &mut Driver<'_>, wire: &mut Wire, frames: u32) {
    let (come, gone) = (wire.come + frames, wire.gone + frames);
    let mut still = 0;
    for round in 1u32.. {
        if wire.come >= come && wire.gone >= gone && driver.received == wire.gone {
            return;
        }
        let before = (driver.sent, driver.received, wire.come, wire.gone);
        // The guest looks by itself until it finds nothing, then asks for an interrupt.
        driver.receive(round % 13);
        for _ in 0..(round % 9).min(come - driver.sent.min(come)) {
            driver.send();
        }
        if driver.receive(round % 3) == 0 && driver.want_frames() && driver.want_sent() {
            driver.reg(ICR);
            driver.set(0xd0, 0);
        }
        driver.sent_enough();
        // The worker, unless it sleeps.
        let n = u16::try_from((gone - wire.gone).min(round % 17)).unwrap();
        let rang = guest.host.rings();
        if round % 5 != 0 {
            wire.pull(driver.chip);
            wire.push(driver.chip, n);
        }
        if round % 4 == 0 && !driver.chip.want_room() && !driver.chip.arm() {
            // Only a bell wakes it.
            for _ in 0..3 {
                driver.receive(99);
                if driver.sent < come {
                    driver.send();
                }
            }
            if guest.host.rings() == rang && driver.sent != wire.come {
                panic!("it sleeps, and frames wait: {driver:?}");
            }
        }
        let moved = before != (driver.sent, driver.received, wire.come, wire.gone);
        still = if moved { 0 } else { still + 1 };
        assert!(still < 100, "nothing moves: {driver:?} {} {}", wire.come, wire.gone);
    }
}

#[test]
fn all_generations_on_and_off_and_on() {
    for kind in Kind::ALL {
        let guest = Guest::with(true);
        let mut driver = Driver::new(&guest, kind);
        let mut wire = Wire::default();
        for round in 0..20 {
            traffic(&guest, &mut driver, &mut wire, 300);
            // By a sysctl: only the word changes.
            driver.turn(round % 2 == 0);
        }
        assert_eq!((driver.sent, driver.received), (6000, 6000), "{kind:?}");
        assert_eq!(driver.chip.fault(), None, "{kind:?}");
        driver.release();
    }
}

/// Where both indexes are wrong after each start, and right or wrong in the CSB, too.
#[test]
fn interfaces_go_down_and_up_with_the_csb_on() {
    for kind in Kind::ALL {
        let guest = Guest::with(true);
        let mut driver = Driver::new(&guest, kind);
        driver.turn_well(true);
        for round in 0..20 {
            let mut wire = Wire::default();
            (driver.sent, driver.received) = (0, 0);
            traffic(&guest, &mut driver, &mut wire, 100 + round);
            driver.up();
        }
        let faults = driver.chip.counters().faults.get();
        assert_eq!((driver.chip.fault(), faults), (None, 0), "{kind:?}");
    }
}

/// All ways of letting go that were in use, and none; then the next driver.
#[test]
fn releases_and_the_next_driver() {
    let guest = Guest::with(true);
    for first in Kind::ALL {
        for next in Kind::ALL {
            for kind in [first, next] {
                let mut driver = Driver::new(&guest, kind);
                driver.turn_well(true);
                traffic(&guest, &mut driver, &mut Wire::default(), 100);
                let before = driver.get(HOST_TDH);
                driver.release();
                driver.put(HOST_TDH, 1000);
                driver.send();
                driver.set(TD + TAIL, driver.next);
                let mut wire = Wire { come: driver.sent - 1, ..Wire::default() };
                assert_eq!(wire.pull(driver.chip), 1);
                let mapped = kind == Kind::G4;
                assert_eq!(driver.get(HOST_TDH) != 1000, mapped, "{kind:?} {before}");
                assert_eq!(driver.chip.fault(), None);
            }
        }
    }
}

/// FreeBSD 10.4 parks `guest_need_txkick` at 2: that is not a wish.
#[test]
fn parked_at_2() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::G4);
    let mut wire = Wire::default();
    driver.turn_well(true);
    driver.sent_enough();
    driver.put(GUEST_NEED_RXKICK, 0);
    driver.reg(ICR);
    let raised = guest.host.raises();
    for _ in 0..500 {
        driver.send();
        wire.pull(driver.chip);
    }
    assert_eq!(guest.host.raises(), raised);
    assert_eq!(driver.sent, wire.come);
}

/// A driver without fences states its wish and looks again, and its store arrives after the look:
/// the frame came between. The worker looks at what was kept in once more before it sleeps.
#[test]
fn a_wish_that_arrives_late_is_seen_before_the_worker_sleeps() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::G3);
    let mut wire = Wire::default();
    driver.turn_well(true);
    driver.put(GUEST_NEED_RXKICK, 0);
    driver.reg(ICR);
    wire.push(driver.chip, 1);
    assert!(!driver.chip.is_asserted());
    driver.put(GUEST_NEED_RXKICK, 1);
    assert!(!driver.chip.arm());
    assert!(driver.chip.is_asserted());
    assert_eq!(driver.reg(ICR) & cause::RXT0, cause::RXT0);
}

/// Turned off with frames published that no register knows of.
#[test]
fn what_was_published_before_it_was_turned_off_is_sent() {
    // The register write that races with it: none; of all frames; an old kick, long on its way; and
    // then one more frame.
    for (what, write) in [("none", None), ("the last", Some(0)), ("an old kick", Some(8))] {
        for head in [0, 30, SIZE - 3] {
            let guest = Guest::with(true);
            let mut driver = Driver::new(&guest, Kind::G3);
            let mut wire = Wire::default();
            driver.turn_well(true);
            for _ in 0..head + 5 {
                driver.send();
                assert_eq!(wire.pull(driver.chip), 1);
            }
            for _ in 0..5 {
                driver.send();
            }
            driver.turn(false);
            if let Some(behind) = write {
                driver.set(TD + TAIL, (driver.next + SIZE - behind) % SIZE);
            }
            assert_eq!(wire.pull(driver.chip), 5, "{what}");
            assert_eq!(driver.reg(TD + TAIL), driver.next, "{what}");
            driver.send();
            assert_eq!((wire.pull(driver.chip), wire.come), (1, driver.sent), "{what}");
        }
    }
}

/// Turned off while the chip waits for buffers; then the whole ring is refilled by one write of
/// RDT.
#[test]
fn buffers_given_back_after_it_was_turned_off_are_seen() {
    for kind in Kind::ALL {
        let guest = Guest::with(true);
        let mut driver = Driver::new(&guest, kind);
        let mut wire = Wire::default();
        driver.turn_well(true);
        for round in 0..9 {
            wire.push(driver.chip, 40 + round);
            driver.receive(99);
        }
        while wire.push(driver.chip, 64) > 0 {}
        assert!(!driver.chip.want_room());
        driver.turn(false);
        let rang = guest.host.rings();
        assert_eq!(driver.receive(99), 63, "{kind:?}");
        assert!(guest.host.rings() > rang, "{kind:?}");
        assert_eq!(wire.push(driver.chip, 64), 63, "{kind:?}");
        driver.receive(99);
        assert_eq!(driver.received, wire.gone);
    }
}
