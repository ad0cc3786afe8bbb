//! A worker and a driver in threads of their own. Both sleep as often as they can; a wake-up that
//! is lost shows as a standstill.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;

/// Sets the flag, also when its thread fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(300);

/// Sleeps until `count` is no longer `seen`, or `ended`.
fn sleep(what: &str, ended: &AtomicBool, awake: impl Fn() -> bool) {
    let since = Instant::now();
    while !awake() && !ended.load(Ordering::Relaxed) {
        assert!(since.elapsed() < PATIENCE, "{what}: a wake-up was lost");
        std::thread::yield_now();
    }
}

/// As the switch's worker: pulls and pushes, and sleeps when there is nothing to do.
fn work(guest: &Guest, frames: u32, ended: &AtomicBool) {
    let (chip, mut wire) = (&guest.chip, Wire::default());
    let _ends = Ends(ended);
    while wire.come < frames || wire.gone < frames {
        let rang = guest.host.rings();
        let mut moved = wire.pull(chip);
        let n = u16::try_from((frames - wire.gone).min(48)).unwrap();
        if n > 0 {
            moved += wire.push(chip, n);
        }
        let full = wire.gone < frames;
        if moved == 0 && !(full && chip.want_room()) && !chip.arm() {
            sleep("worker", ended, || guest.host.rings() != rang);
        }
        if ended.load(Ordering::Relaxed) {
            return;
        }
    }
    // Those that the driver still looks for, and the word that its last frames are sent.
    let _ = chip.arm();
}

/// Moves `frames` frames both ways. `each`: called now and then by the driver, between frames.
fn drive(
    driver: &mut Driver<'_>,
    guest: &Guest,
    frames: u32,
    mut each: impl FnMut(&mut Driver<'_>, u32),
) {
    let never = AtomicBool::new(false);
    let mut since = Instant::now();
    for round in 0u32.. {
        if driver.sent >= frames && driver.received >= frames {
            return;
        }
        each(driver, round);
        let mut moved = driver.receive(round % 70);
        for _ in 0..round % 50 {
            moved += u32::from(driver.sent < frames && driver.send());
        }
        if moved > 0 {
            since = Instant::now();
            continue;
        }
        assert!(since.elapsed() < PATIENCE, "nothing moves: {driver:?}");
        let raised = guest.host.raises();
        driver.reg(ICR);
        let wait = driver.want_frames() && (driver.sent >= frames || driver.want_sent());
        if driver.is_on() && wait && driver.received < frames {
            let woken = || guest.host.raises() != raised;
            // What is pending already has no edge of its own.
            driver.set(0xd0, 0);
            sleep("driver", &never, || woken() || driver.chip.is_asserted());
        }
        driver.sent_enough();
    }
}

fn run(
    kind: Kind,
    frames: u32,
    each: impl FnMut(&mut Driver<'_>, u32),
) -> vmlan_frame::CsbCounters {
    let guest = Guest::with(true);
    let mut driver = Driver::new(&guest, kind);
    driver.turn_well(true);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&guest, frames, &ended));
        drive(&mut driver, &guest, frames, each);
        // Without the driver's help the worker finds the last frames, or not at all.
        worker.join().unwrap();
    });
    assert_eq!((driver.sent, driver.received), (frames, frames));
    let counters = guest.chip.counters();
    assert_eq!(
        (counters.input.frames.get(), counters.output.frames.get()),
        (frames.into(), frames.into())
    );
    guest.chip.device().csb.unwrap()
}

pub fn both_sides_sleep(kind: Kind, frames: u32) {
    let csb = run(kind, frames, |_, _| {});
    assert!(csb.host_asked > 0 && csb.guest_asked > 0, "{csb:?}");
}

/// Turned on and off in mid-traffic, many thousands of times a second.
#[test]
fn toggled_in_mid_traffic() {
    run(Kind::New, 60_000, |driver, round| {
        if round % 3 == 0 {
            driver.turn_well(!driver.is_on());
        }
    });
}
