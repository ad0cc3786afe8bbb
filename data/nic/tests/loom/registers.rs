//! The e1000's tails: trapped, where the write rings if the worker sleeps, and mapped, where nobody
//! rings.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use crate::wire::{Sleeper, Wire, judge, live};
use crate::{Without, device, driver, explore};
use device::bell;
use driver::registers;

const MOST: u32 = 2;
/// How often the timer may fire before the guest is done.
const EARLY: u32 = 2;

struct Chip {
    mapped: bool,
    tail: AtomicU32,
    /// Something else that lets frames pass, changed by another thread.
    link: AtomicU32,
    wanted: AtomicBool,
    contents: [AtomicU32; MOST as usize],
    wire: Wire,
    without: Without,
}

impl Chip {
    fn new(mapped: bool, threads: u32, without: Without) -> Arc<Self> {
        Arc::new(Self {
            mapped,
            tail: AtomicU32::new(0),
            link: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            contents: Default::default(),
            wire: Wire::new(threads),
            without,
        })
    }

    fn send(&self, index: u32) {
        self.contents[index as usize].store(1, Ordering::Relaxed);
        registers::publish(self, || self.write(index + 1));
    }

    /// Mapped: one store. Trapped: the chip's side of the write.
    fn write(&self, tail: u32) {
        if self.mapped {
            self.tail.store(tail, Ordering::Relaxed);
        } else {
            self.tail.store(tail, Ordering::Release);
            self.wire.raise_if(bell::ring(self));
        }
    }
}

impl device::Guard for Chip {
    fn full_fence(&self, at: device::Point) {
        self.without.device_fence(at);
    }
    fn looks_again(&self, at: device::Point) -> bool {
        self.without != Without::Device(at)
    }
}

impl driver::Guard for Chip {
    fn fence(&self, at: driver::Point) {
        self.without.driver_fence(at);
    }
}

impl bell::BellFlag for Chip {
    fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
    fn set_wanted(&self, wanted: bool) {
        self.wanted.swap(wanted, Ordering::AcqRel);
    }
    fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }
}

/// The worker.
struct Worker<'c> {
    chip: &'c Chip,
    seen: (u32, u32),
    /// How often the timer fired.
    fired: u32,
}

impl Worker<'_> {
    fn look(&self) -> (u32, u32) {
        (self.chip.tail.load(Ordering::Acquire), self.chip.link.load(Ordering::Acquire))
    }
}

impl Sleeper for Worker<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = self.look();
        let (tail, link) = self.seen;
        let there = |i: u32| self.chip.contents[i as usize].load(Ordering::Relaxed) == 1;
        (0..tail).all(there).then_some(tail + link)
    }
    fn arm(&mut self) -> bool {
        bell::arm(self.chip, || self.look() != self.seen)
    }
    fn disarm(&mut self) {
        bell::BellFlag::set_wanted(self.chip, false);
    }
    /// Mapped: until the timer fires. What the guest had stored by then must be found.
    fn sleep(&mut self) -> bool {
        if !self.chip.mapped {
            return self.chip.wire.sleep();
        }
        self.fired += 1;
        thread::yield_now();
        while self.fired > EARLY && !self.chip.wire.is_over() {
            thread::yield_now();
        }
        self.fired <= EARLY + 1
    }
}

/// The guest sends `n` frames; another thread brings the link up if `linked`.
fn tails(mapped: bool, n: u32, linked: bool, without: Without) {
    explore(linked.then_some(3), move || {
        let chip = Chip::new(mapped, 1 + u32::from(linked), without);
        let theirs = chip.clone();
        let guest = thread::spawn(move || {
            (0..n).for_each(|index| theirs.send(index));
            theirs.wire.end();
        });
        let control = linked.then(|| {
            let chip = chip.clone();
            thread::spawn(move || {
                chip.link.store(1, Ordering::Release);
                chip.wire.raise_if(bell::ring(&*chip));
                chip.wire.end();
            })
        });
        let mut worker = Worker { chip: &chip, seen: (0, 0), fired: 0 };
        let end = live(n + u32::from(linked), &mut worker);
        guest.join().unwrap();
        control.into_iter().for_each(|c| c.join().unwrap());
        judge(end);
    });
}

pub fn trapped(without: Without) {
    tails(false, MOST, false, without);
}

pub fn trapped_and_link(without: Without) {
    tails(false, 1, true, without);
}

pub fn mapped(without: Without) {
    tails(true, MOST, false, without);
}

#[test]
fn no_trapped_tail_is_lost() {
    trapped(Without::Nothing);
}

#[test]
fn neither_a_tail_nor_the_link_is_lost() {
    trapped_and_link(Without::Nothing);
}

#[test]
fn mapped_tails_are_found_by_the_timer() {
    mapped(Without::Nothing);
}
