//! Every interleaving of one driver and one device over the notification protocols (virtqueues, and the registers of
//! the e1000): no wake-up is lost.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p vmlan-nic --release --test loom --target-dir target/loom`.
//! Tests named `*_without_*` take one fence or second look away: loom must then find the lost wake-up,
//! else these tests would prove nothing.
#![allow(unexpected_cfgs)]
#![cfg(loom)]

use std::sync::atomic::Ordering::SeqCst;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};
use loom::thread;
use vmlan_nic::notify::bell;
use vmlan_nic::notify::virtqueue::{self as notify, Words};

/// What is taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    OurFence,
    TheirFence,
    SecondLook,
}

struct Ring {
    avail_idx: AtomicU16,
    avail_flags: AtomicU16,
    used_event: AtomicU16,
    used_idx: AtomicU16,
    used_flags: AtomicU16,
    avail_event: AtomicU16,
    without: Without,
}

impl Ring {
    fn new(without: Without) -> Arc<Self> {
        let word = || AtomicU16::new(0);
        Arc::new(Self {
            avail_idx: word(),
            avail_flags: word(),
            used_event: AtomicU16::new(u16::MAX),
            used_idx: word(),
            used_flags: AtomicU16::new(1),
            avail_event: AtomicU16::new(u16::MAX),
            without,
        })
    }

    fn their_fence(&self) {
        if self.without != Without::TheirFence {
            fence(SeqCst);
        }
    }
}

impl Words for Ring {
    fn avail_idx(&self) -> u16 {
        self.avail_idx.load(Ordering::Acquire)
    }
    fn avail_flags(&self) -> u16 {
        self.avail_flags.load(Ordering::Relaxed)
    }
    fn used_event(&self) -> u16 {
        self.used_event.load(Ordering::Relaxed)
    }
    fn set_used_idx(&self, idx: u16) {
        self.used_idx.store(idx, Ordering::Release);
    }
    fn set_used_flags(&self, flags: u16) {
        self.used_flags.store(flags, Ordering::Relaxed);
    }
    fn set_avail_event(&self, idx: u16) {
        self.avail_event.store(idx, Ordering::Relaxed);
    }
    fn full_fence(&self) {
        if self.without != Without::OurFence {
            fence(SeqCst);
        }
    }
}

/// The driver makes `n` buffers available, one by one, as virtio 1.2 section 2.7.13 says, and rings when asked.
fn drive(ring: &Ring, n: u16, event_idx: bool) -> usize {
    let mut rang = 0;
    for idx in 0..n {
        ring.avail_idx.store(idx + 1, Ordering::Release);
        ring.their_fence();
        let wanted = if event_idx {
            ring.avail_event.load(Ordering::Relaxed) == idx
        } else {
            ring.used_flags.load(Ordering::Relaxed) == 0
        };
        rang += usize::from(wanted);
    }
    rang
}

/// The device takes what it sees, arms and goes to sleep; then whatever it did not see must have
/// been rung for.
fn doorbells(without: Without, n: u16, event_idx: bool) {
    loom::model(move || {
        let ring = Ring::new(without);
        let driver = {
            let ring = ring.clone();
            thread::spawn(move || drive(&ring, n, event_idx))
        };
        let mut seen = ring.avail_idx();
        let mut asleep = false;
        // One round more than there are buffers: sleep is always reached.
        for _ in 0..=n {
            let more = notify::arm(&*ring, seen, event_idx);
            if !more || ring.without == Without::SecondLook {
                asleep = true;
                break;
            }
            notify::disarm(&*ring, event_idx);
            seen = ring.avail_idx();
        }
        assert!(asleep, "sleep is reached");
        let rang = driver.join().unwrap();
        assert!(seen == n || rang > 0, "asleep after {seen} of {n}, and nobody rang");
    });
}

/// The device uses `n` buffers, one by one; the driver takes what it sees, states its wish and sleeps.
fn interrupts(without: Without, n: u16, event_idx: bool) {
    loom::model(move || {
        let ring = Ring::new(without);
        ring.avail_flags.store(1, Ordering::Relaxed);
        let device = {
            let ring = ring.clone();
            thread::spawn(move || {
                (0..n).filter(|i| notify::publish(&*ring, *i, *i + 1, event_idx)).count()
            })
        };
        let mut seen = ring.used_idx.load(Ordering::Acquire);
        for _ in 0..=n {
            if event_idx {
                ring.used_event.store(seen, Ordering::Relaxed);
            } else {
                ring.avail_flags.store(0, Ordering::Relaxed);
            }
            ring.their_fence();
            let now = ring.used_idx.load(Ordering::Acquire);
            if now == seen || ring.without == Without::SecondLook {
                break;
            }
            seen = now;
        }
        let raised = device.join().unwrap();
        assert!(seen == n || raised > 0, "asleep after {seen} of {n}, and no interrupt");
    });
}

fn all(test: fn(Without, u16, bool), without: Without) {
    for event_idx in [false, true] {
        test(without, 2, event_idx);
    }
}

/// True if loom finds the lost wake-up, with flags and with event indexes.
fn caught(test: fn(Without, u16, bool), without: Without) -> bool {
    [false, true].into_iter().all(|e| std::panic::catch_unwind(|| test(without, 2, e)).is_err())
}

#[test]
fn no_doorbell_is_lost() {
    all(doorbells, Without::Nothing);
}

#[test]
fn no_interrupt_is_lost() {
    all(interrupts, Without::Nothing);
}

#[test]
fn doorbells_are_lost_without_our_fence() {
    assert!(caught(doorbells, Without::OurFence));
}

#[test]
fn doorbells_are_lost_without_the_drivers_fence() {
    assert!(caught(doorbells, Without::TheirFence));
}

#[test]
fn doorbells_are_lost_without_the_second_look() {
    assert!(caught(doorbells, Without::SecondLook));
}

#[test]
fn interrupts_are_lost_without_our_fence() {
    assert!(caught(interrupts, Without::OurFence));
}

#[test]
fn interrupts_are_lost_without_the_drivers_fence() {
    assert!(caught(interrupts, Without::TheirFence));
}

#[test]
fn interrupts_are_lost_without_the_second_look() {
    assert!(caught(interrupts, Without::SecondLook));
}

/// The e1000's: a tail (TDT, and the worker that is armed; or RDT, and the sender that wants room), something else that
/// lets frames pass (the link, from another thread), and the wish to be rung.
struct Chip {
    tail: AtomicU32,
    link: AtomicU32,
    wanted: AtomicBool,
    rang: AtomicU32,
    without: Without,
}

impl bell::Words for Chip {
    fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
    fn set_wanted(&self, wanted: bool) {
        self.wanted.swap(wanted, Ordering::Relaxed);
    }
    fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }
    fn full_fence(&self) {
        // The worker is the thread that loom starts with; the fence of the others is the guest's side's.
        let worker = thread::current().name() == Some("worker");
        let left_out = if worker { Without::OurFence } else { Without::TheirFence };
        if self.without != left_out {
            fence(SeqCst);
        }
    }
}

impl Chip {
    fn ring(&self) {
        if bell::ring(self) {
            self.rang.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn look(&self) -> (u32, u32) {
        (self.tail.load(Ordering::Acquire), self.link.load(Ordering::Acquire))
    }
}

/// The guest moves the tail `n` times, another thread brings the link up if `linked`; the worker takes what it sees, arms
/// and goes to sleep. What it has not seen must have been rung for. With three threads, no more than three are interrupted
/// in any run, else this takes minutes.
fn registers(without: Without, n: u32, linked: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = linked.then_some(3);
    builder.check(move || {
        let chip = Arc::new(Chip {
            tail: AtomicU32::new(0),
            link: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            rang: AtomicU32::new(0),
            without,
        });
        let worker = {
            let chip = chip.clone();
            let work = move || {
                let mut seen = chip.look();
                for _ in 0..=n + 1 {
                    bell::arm(&*chip);
                    let now = chip.look();
                    if now == seen || chip.without == Without::SecondLook {
                        return seen;
                    }
                    bell::Words::set_wanted(&*chip, false);
                    seen = now;
                }
                panic!("sleep is reached");
            };
            thread::Builder::new().name("worker".into()).spawn(work).unwrap()
        };
        let control = linked.then(|| {
            let chip = chip.clone();
            thread::spawn(move || {
                chip.link.store(1, Ordering::Release);
                chip.ring();
            })
        });
        for tail in 1..=n {
            chip.tail.store(tail, Ordering::Release);
            chip.ring();
        }
        let seen = worker.join().unwrap();
        control.into_iter().for_each(|c| c.join().unwrap());
        let rang = chip.rang.load(Ordering::Relaxed);
        assert!(seen == chip.look() || rang > 0, "asleep after {seen:?}, and nobody rang");
    });
}

#[test]
fn no_write_to_a_tail_is_lost() {
    registers(Without::Nothing, 2, false);
    registers(Without::Nothing, 1, true);
}

#[test]
fn writes_to_a_tail_are_lost_without_any_of_its_three_guards() {
    for without in [Without::OurFence, Without::TheirFence, Without::SecondLook] {
        assert!(std::panic::catch_unwind(|| registers(without, 2, false)).is_err());
    }
}
