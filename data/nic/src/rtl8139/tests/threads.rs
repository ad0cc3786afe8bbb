//! A driver and a worker in threads of their own, in classic mode: each sleeps as soon as it has
//! nothing to do, and only the other's register writes and interrupts wake it. Nothing is lost,
//! reordered or slept through.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use vmlan_frame::Batch;
use vmlan_ram::Slice;

use super::guest::*;
use crate::chip::{Chip, Host, Nic};

/// Somebody sleeps until it rings; a ring while nobody sleeps is kept.
#[derive(Default)]
struct Gong(Mutex<bool>, Condvar);

impl Gong {
    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self, who: &str) {
        let rung = self.0.lock().unwrap();
        let patience = Duration::from_secs(300);
        let (mut rung, late) = self.1.wait_timeout_while(rung, patience, |rung| !*rung).unwrap();
        assert!(!late.timed_out(), "{who} was not woken");
        *rung = false;
    }
}

#[derive(Default)]
struct Gongs {
    interrupt: Gong,
    doorbell: Gong,
}

impl Host for Gongs {
    fn now(&self) -> u64 {
        0
    }
    fn set_timer(&self, _: u64) {}
    fn raise(&self) {
        self.interrupt.ring();
    }
    fn doorbell(&self) {
        self.doorbell.ring();
    }
}

const FRAMES: usize = 1000;

/// Of many lengths, so that the buffer wraps everywhere.
fn numbered(n: usize) -> Vec<u8> {
    let mut f = frame(MAC, 60 + n * 37 % 1455);
    f[14..22].copy_from_slice(&(n as u64).to_le_bytes());
    f
}

/// The driver: sends all frames, takes all that come, and sleeps when it can do neither.
fn drive(guest: &mut Guest, gongs: &Gongs) {
    let (mut sent, mut got) = (0, 0);
    let waits = |guest: &Guest| (0..4).any(|n| guest.tsd(n) & T_OWN == 0);
    while sent < FRAMES || got < FRAMES || waits(guest) {
        let mut busy = false;
        while sent < FRAMES && guest.tsd(sent as u64 % 4) & T_OWN != 0 {
            guest.send(&numbered(sent));
            (sent, busy) = (sent + 1, true);
        }
        while let Some((status, f)) = guest.take() {
            let want = numbered(got);
            assert_eq!((status, &f[..want.len()]), (0x4001, want.as_slice()), "frame {got}");
            (got, busy) = (got + 1, true);
        }
        if !busy {
            gongs.interrupt.wait("the driver");
            // Before it looks again. What came meanwhile is not acknowledged: the level stands, and
            // its VMM, which unmasks the interrupt now, is told of it again.
            guest.ack(0xffff);
            guest.chip.reassert();
        }
    }
}

/// The worker: pulls and pushes, and sleeps when it can do neither.
fn work(chip: &dyn Nic, gongs: &Gongs, stop: &AtomicBool) -> usize {
    let (mut spare, mut pulled, mut pushed) = (Batch::new(), 0, 0);
    while !stop.load(Ordering::Acquire) {
        let mut take = Take::default();
        let n = chip.pull(&mut spare, 256, &mut take);
        for lent in &take.frames {
            assert_eq!(lent.bytes, numbered(pulled), "frame {pulled} was sent");
            pulled += 1;
        }
        let more = push(chip, &mut pushed);
        if n == 0 && !more && !chip.arm() && (pushed == FRAMES || !chip.want_room()) {
            gongs.doorbell.wait("the worker");
        }
        chip.disarm();
    }
    pulled
}

/// Pushes some of what is left; true if any found room.
fn push(chip: &dyn Nic, pushed: &mut usize) -> bool {
    let frames: Vec<_> = (*pushed..FRAMES.min(*pushed + 40)).map(numbered).collect();
    let mut batch = Batch::new();
    for f in &frames {
        let at = f.len().min(128);
        batch
            .add_parts(&f[..at], [Slice::from_bytes(&f[at..])], vmlan_frame::Offload::NONE)
            .unwrap();
    }
    let list: Vec<u16> = (0..frames.len() as u16).collect();
    let n = chip.push(&batch, &list);
    *pushed += n;
    n > 0
}

/// Its VMM's thread may be kept from running just then: workers are not to look again and again.
#[test]
fn a_chip_says_that_it_is_being_changed() {
    let guest = Guest::on(Arc::new(Gongs::default()));
    let chip = &guest.chip;
    let asked = chip.core().stopped(|_, _| (chip.arm(), chip.is_being_changed()));
    assert_eq!(asked, (true, true));
    assert!(!chip.arm() && !chip.is_being_changed());
}

#[test]
fn nobody_sleeps_through_anything() {
    for rcr in [0, WRAP, WRAP | 2 << 11, 3 << 11] {
        let gongs = Arc::new(Gongs::default());
        let mut guest = Guest::on(gongs.clone());
        guest.start_classic(rcr);
        let chip = guest.chip.clone();
        let stop = AtomicBool::new(false);
        let pulled = std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(&*chip, &gongs, &stop));
            let driver = scope.spawn(|| drive(&mut guest, &gongs));
            let done = driver.join();
            stop.store(true, Ordering::Release);
            gongs.doorbell.ring();
            let pulled = worker.join().unwrap();
            done.unwrap();
            pulled
        });
        assert_eq!((pulled, chip.counters().output.frames.get()), (FRAMES, FRAMES as u64));
        assert_eq!(chip.counters().drops().map(|(_, n)| n).sum::<u64>(), 0);
    }
}

/// While a worker waits for another one that has the receive side, the VMM's thread may ask for it,
/// and be the next to have it.
#[test]
fn a_worker_that_waits_gives_up_for_the_vmms_thread() {
    static WAITS: AtomicU64 = AtomicU64::new(0);
    let guest = Guest::on(Arc::new(Gongs::default()));
    let chip = &guest.chip;
    let wait_until = |done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() && Instant::now() < end {
            std::thread::yield_now();
        }
        done()
    };
    std::thread::scope(|s| {
        // The first worker is in the midst of a push.
        let pushes = chip.core().rx.lock().unwrap();
        let second = s.spawn(|| {
            // It asks for the time as it begins to wait, and once more at the end.
            let begins = || WAITS.fetch_add(1, Ordering::SeqCst);
            vmlan_frame::measure_lock_waits(begins, |_| std::thread::yield_now());
            chip.push(&Batch::new(), &[0])
        });
        let waits = wait_until(&|| WAITS.load(Ordering::SeqCst) > 0);
        let vmms = s.spawn(|| chip.core().stopped(|_, _| {}));
        let gave_up = waits && wait_until(&|| second.is_finished());
        drop(pushes);
        assert!(waits && gave_up, "it waits for whoever has the lock next");
        assert_eq!(second.join().unwrap(), 0, "no room: the frame stays with its sender");
        vmms.join().unwrap();
    });
}
