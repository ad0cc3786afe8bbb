//! The kernel module of `guest/linux` as one more generation of drivers: the order of its accesses,
//! word by word, as `csb.h`, `tx.c` and `main.c` have it. Beside our own driver it differs in this:
//! the wish for completions is stated once, and stands over several interrupts, until the queue has
//! room again; and while a kick is on its way there is no other.

use std::cell::Cell;

use loom::sync::atomic::Ordering;
use loom::thread;

use super::{ALL, Csb, Room, SIZE, Transmit};
use crate::driver::Point;
use crate::wire::{Sleeper, judge, live};
use crate::{Without, device, explore, mutations::fails};

/// `csb_send`, `vn_tx_is_kicked` and `vn_tx_tell`, for all frames. `kick`: the register is written.
fn send_all(csb: &Csb, kick: impl Fn(u32)) {
    let mut kicked = None;
    for tail in 1..=ALL {
        csb.fill(tail - 1);
        csb.guest_tdt.store(tail, Ordering::Release);
        csb.without.driver_fence(Point::CsbSend);
        let asked = csb.host_need_txkick.load(Ordering::Relaxed) & 1 != 0;
        let head = csb.host_tdh.load(Ordering::Acquire);
        if asked && kicked.is_none_or(|kicked| head >= kicked) {
            kicked = Some(tail);
            kick(tail);
        }
    }
}

/// The worker, which says what it has sent.
struct Sender<'b>(Transmit<'b>);

impl Sleeper for Sender<'_> {
    fn take(&mut self) -> Option<u32> {
        let all = self.0.take()?;
        let _nobody_waits = device::csb::publish_sent(self.0.csb, all);
        Some(all)
    }
    fn arm(&mut self) -> bool {
        self.0.arm()
    }
    fn disarm(&mut self) {
        self.0.disarm();
    }
    fn sleep(&mut self) -> bool {
        self.0.sleep()
    }
}

fn kicks(without: Without) {
    explore(Some(4), move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let guest = thread::spawn(move || {
            send_all(&theirs, |tail| theirs.write(tail));
            theirs.wire.end();
        });
        let end = live(ALL, &mut Sender(Transmit { csb: &csb, seen: 0 }));
        guest.join().unwrap();
        judge(end);
    });
}

/// The register's write is posted: the chip hears of it when the guest has gone on.
fn posted_kicks(without: Without) {
    explore(Some(4), move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let guest = thread::spawn(move || {
            let posted = Cell::new(None);
            send_all(&theirs, |tail| posted.set(Some(tail)));
            if let Some(tail) = posted.get() {
                theirs.write(tail);
            }
            theirs.wire.end();
        });
        let end = live(ALL, &mut Sender(Transmit { csb: &csb, seen: 0 }));
        guest.join().unwrap();
        judge(end);
    });
}

/// `vn_tx_arrange` with a queue that is stopped until all is sent.
struct Stopped<'b> {
    csb: &'b Csb,
    seen: u32,
    wanted: bool,
}

impl Sleeper for Stopped<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = self.csb.host_tdh.load(Ordering::Acquire);
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        if std::mem::replace(&mut self.wanted, true) {
            return false;
        }
        self.csb.guest_need_txkick.store(1, Ordering::Relaxed);
        self.csb.without.driver_fence(Point::CsbCompletionArm);
        self.csb.without != Without::Driver(Point::CsbCompletionLook)
            && self.csb.host_tdh.load(Ordering::Acquire) != self.seen
    }
    /// Not before the queue has room.
    fn disarm(&mut self) {}
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

fn completions(without: Without) {
    explore(None, move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let worker = thread::spawn(move || {
            for index in 0..ALL {
                theirs.fill(index);
                theirs.wire.raise_if(device::csb::publish_sent(&*theirs, index + 1));
            }
            theirs.wire.end();
        });
        let end = live(ALL, &mut Stopped { csb: &csb, seen: 0, wanted: false });
        worker.join().unwrap();
        judge(end);
    });
}

/// `csb_refill` and `csb_passed`.
fn refill(csb: &Csb, old: u32, new: u32) {
    csb.guest_rdt.store(new, Ordering::Release);
    csb.without.driver_fence(Point::CsbRefill);
    let at = csb.host_rxkick_at.load(Ordering::Relaxed);
    let steps = |to: u32| if to >= old { to - old } else { to + SIZE - old };
    if at < SIZE && at != old && steps(at) <= steps(new) {
        csb.write(new);
    }
}

fn room(without: Without) {
    explore(Some(5), move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let guest = thread::spawn(move || {
            for (old, new) in [(0, 3), (3, SIZE - 1)] {
                theirs.fill(new - 1);
                refill(&theirs, old, new);
            }
            theirs.wire.end();
        });
        let end = live(SIZE - 1, &mut Room { csb: &csb, seen: 0, enough: false });
        guest.join().unwrap();
        judge(end);
    });
}

/// `vn_poll` and `vn_settle`.
struct Poll<'b> {
    csb: &'b Csb,
    seen: u32,
}

impl Poll<'_> {
    fn is_ready(&self) -> bool {
        let done = self.csb.done.get(self.seen as usize);
        done.is_some_and(|done| done.load(Ordering::Acquire) == 1)
    }
}

impl Sleeper for Poll<'_> {
    fn take(&mut self) -> Option<u32> {
        while self.is_ready() {
            self.seen += 1;
        }
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        self.csb.guest_need_rxkick.store(1, Ordering::Relaxed);
        self.csb.without.driver_fence(Point::CsbReceptionArm);
        self.csb.without != Without::Driver(Point::CsbReceptionLook) && self.is_ready()
    }
    fn disarm(&mut self) {
        self.csb.guest_need_rxkick.store(0, Ordering::Relaxed);
    }
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

fn receptions(without: Without) {
    explore(None, move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let worker = thread::spawn(move || {
            for index in 0..ALL {
                theirs.fill(index);
                theirs.done[index as usize].store(1, Ordering::Release);
                theirs.wire.raise_if(device::csb::publish_received(&*theirs, index + 1));
            }
            theirs.wire.end();
        });
        let end = live(ALL, &mut Poll { csb: &csb, seen: 0 });
        worker.join().unwrap();
        judge(end);
    });
}

/// What is exchanged, and what is needed for it.
type Need = (fn(Without), &'static [Point]);

const MODELS: [Need; 5] = [
    (kicks, &[Point::CsbSend]),
    (posted_kicks, &[Point::CsbSend]),
    (completions, &[Point::CsbCompletionArm, Point::CsbCompletionLook]),
    (room, &[Point::CsbRefill]),
    (receptions, &[Point::CsbReceptionArm, Point::CsbReceptionLook]),
];

#[test]
fn the_kernel_module_loses_nothing() {
    for (model, _) in MODELS {
        model(Without::Nothing);
    }
}

#[test]
fn and_needs_each_of_its_fences_and_second_looks() {
    for (model, points) in MODELS {
        for point in points {
            let failure = fails(model, Without::Driver(*point));
            assert_eq!(failure.as_deref(), Some("lost wake-up"), "without {point:?}");
        }
    }
}
