//! What attackers found, one test each.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::chip::lock;
use crate::chip::{Controlled, CsbFault, Fault};

/// FreeBSD frees its CSB without a word. From when the driver has stopped the chip, or may no
/// longer be written for, nothing is stored in memory that may be somebody else's.
#[test]
fn a_stopped_chip_leaves_the_csbs_memory_alone() {
    type Stop = (&'static str, fn(&Driver<'_>));
    let stops: [Stop; 3] = [
        ("no bus master", |d| d.chip.write_config(4, &[0, 0])),
        ("CTRL.RST", |d| d.set(CTRL, 1 << 26)),
        ("both sides off", |d| (d.set(TCTL, 0), d.set(RCTL, 0)).1),
    ];
    for (what, stop) in stops {
        let guest = Guest::with(true);
        let mut driver = Driver::new(&guest, Kind::G4);
        let mut wire = Wire::default();
        driver.turn_well(true);
        assert!(driver.send() && wire.pull(driver.chip) == 1 && wire.push(driver.chip, 1) == 1);
        stop(&driver);
        for at in (0..0x1000).step_by(4) {
            driver.put(at, 0x5a5a_5a5a);
        }
        wire.pull(driver.chip);
        wire.push(driver.chip, 1);
        let _ = (driver.chip.arm(), driver.chip.want_room());
        // Memory that is nobody's business here comes and goes.
        drop(driver.chip.set_map(guest.map.clone()));
        let _ = (driver.chip.arm(), driver.chip.want_room());
        let changed: Vec<_> =
            (0..0x1000).step_by(4).filter(|at| driver.get(*at) != 0x5a5a_5a5a).collect();
        assert!(changed.is_empty(), "{what}: {changed:x?}");
    }
}

/// The chip sleeps for want of a driver. When one is there, it is rung by that, and then by kicks
/// that it asked for.
#[test]
fn a_chip_that_was_stopped_while_it_slept_is_kicked_again() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    type Gate = fn(&Driver<'_>, bool);
    let gates: [Gate; 3] = [
        |d, on| d.chip.write_config(4, &[if on { 7 } else { 0 }, 0]),
        |d, on| d.chip.set_link(on),
        |d, on| d.set(TCTL, if on { 10 } else { 0 }),
    ];
    for gate in gates {
        assert!(driver.send() && wire.pull(driver.chip) == 1);
        assert_eq!(driver.get(HOST_NEED_TXKICK), 0);
        gate(&driver, false);
        assert_eq!(wire.pull(driver.chip), 0);
        assert!(!driver.chip.arm());
        assert!(driver.send());
        // If that was a kick, it woke the worker for nothing.
        assert_eq!(wire.pull(driver.chip), 0);
        assert!(!driver.chip.arm());
        let rang = guest.host.rings();
        gate(&driver, true);
        assert!(guest.host.rings() > rang);
        assert_eq!(wire.pull(driver.chip), 1);
        assert_eq!(wire.pull(driver.chip), 0);
        assert!(!driver.chip.arm());
        let rang = guest.host.rings();
        assert!(driver.send());
        assert!(guest.host.rings() > rang);
        assert_eq!(wire.pull(driver.chip), 1);
    }
}

/// What only warns does not hide what stops the other side.
#[test]
fn a_misplaced_csb_hides_no_fault() {
    let guest = Guest::with(true);
    let driver = Driver::new(&guest, Kind::New);
    driver.set(CSBAL, CSB + 4);
    let address = u64::from(CSB) + 4;
    let misplaced = Fault::BadCsb { address, fault: CsbFault::Unaligned };
    assert_eq!(driver.chip.fault(), Some(misplaced));
    driver.set(RD + TAIL, SIZE);
    Wire::default().push(driver.chip, 1);
    let fault = Fault::BadIndex { ring: "receive", size: SIZE, index: SIZE };
    assert_eq!(driver.chip.fault(), Some(fault));
    driver.set(RD + TAIL, 0);
    Wire::default().push(driver.chip, 1);
    assert_eq!(driver.chip.fault(), Some(misplaced));
}

/// The ring is all frames when the CSB is turned on, and nobody waits for room then: the guest
/// gives everything back by the word alone, and is never asked for a kick. Nothing moves the word
/// again but a frame.
#[test]
fn a_consumed_ring_given_back_after_it_was_turned_on_is_found() {
    for kind in [Kind::G2, Kind::G3, Kind::G4, Kind::New] {
        let guest = Guest::with(true);
        let mut driver = Driver::new(&guest, kind);
        let mut wire = Wire::default();
        for round in 0..3 {
            wire.push(driver.chip, 40 + round);
            driver.receive(99);
        }
        while wire.push(driver.chip, 64) > 0 {}
        driver.turn(true);
        assert_eq!(driver.receive(99), 63, "{kind:?}");
        let mut gone = 0;
        for _ in 0..4 {
            gone += wire.push(driver.chip, 30);
            if gone == 0 {
                let _ = driver.chip.want_room();
            }
        }
        assert!(gone > 0, "{kind:?}: no frame comes any more: {driver:?}");
        driver.receive(99);
        assert_eq!(driver.received, wire.gone, "{kind:?}");
    }
}

/// A VMM that punches holes into its memory holds up whoever touches that meanwhile, with the locks
/// that they have. Not those who ask for counts.
#[test]
fn counts_wait_for_nobody() {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, Kind::New);
    let mut wire = Wire::default();
    driver.turn_well(true);
    driver.put(GUEST_NEED_RXKICK, 0);
    driver.reg(ICR);
    assert!(driver.send() && wire.pull(driver.chip) == 1 && wire.push(driver.chip, 1) == 1);
    let (told, tell) = channel();
    let chip = &guest.chip;
    std::thread::scope(|scope| {
        let locks = (lock(&chip.core.tx), lock(&chip.core.rx), chip.core.irq.csb());
        scope.spawn(move || {
            let _ = chip.fault();
            told.send(chip.device().csb)
        });
        let answer = tell.recv_timeout(Duration::from_secs(120));
        drop(locks);
        let csb = answer.expect("it waits").expect("there is one");
        assert!(csb.on && csb.suppressed > 0, "{csb:?}");
    });
}
