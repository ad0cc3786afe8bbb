//! Split virtqueues, with flags and with event indexes, in both directions.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use loom::thread;

use crate::wire::{Sleeper, Wire, judge, live};
use crate::{Without, device, driver, explore};

/// Buffers that change hands.
const ALL: u16 = 2;

struct Ring {
    event_idx: bool,
    /// What lies behind each index.
    contents: [AtomicU32; ALL as usize],
    avail_idx: AtomicU16,
    avail_flags: AtomicU16,
    used_event: AtomicU16,
    used_idx: AtomicU16,
    used_flags: AtomicU16,
    avail_event: AtomicU16,
    wire: Wire,
    without: Without,
}

impl Ring {
    /// Both sides are awake.
    fn new(event_idx: bool, without: Without) -> Arc<Self> {
        Arc::new(Self {
            event_idx,
            contents: Default::default(),
            avail_idx: AtomicU16::new(0),
            avail_flags: AtomicU16::new(1),
            used_event: AtomicU16::new(u16::MAX),
            used_idx: AtomicU16::new(0),
            used_flags: AtomicU16::new(1),
            avail_event: AtomicU16::new(u16::MAX),
            wire: Wire::new(1),
            without,
        })
    }

    fn fill(&self, index: u16) {
        self.contents[usize::from(index)].store(1, Ordering::Relaxed);
    }

    /// The index, if what lies before it is there.
    fn check(&self, from: u16, to: u16) -> Option<u32> {
        let there = |i: u16| self.contents[usize::from(i)].load(Ordering::Relaxed) == 1;
        (from..to).all(there).then_some(to.into())
    }
}

impl device::Guard for Ring {
    fn full_fence(&self, at: device::Point) {
        self.without.device_fence(at);
    }
    fn looks_again(&self, at: device::Point) -> bool {
        self.without != Without::Device(at)
    }
}

impl driver::Guard for Ring {
    fn fence(&self, at: driver::Point) {
        self.without.driver_fence(at);
    }
    fn has_second_look(&self, at: driver::Point) -> bool {
        self.without != Without::Driver(at)
    }
}

impl device::virtqueue::VirtqueueFields for Ring {
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
}

impl driver::virtqueue::VirtqueueFields for Ring {
    fn set_avail_idx(&self, idx: u16) {
        self.avail_idx.store(idx, Ordering::Release);
    }
    fn set_avail_flags(&self, flags: u16) {
        self.avail_flags.store(flags, Ordering::Relaxed);
    }
    fn set_used_event(&self, idx: u16) {
        self.used_event.store(idx, Ordering::Relaxed);
    }
    fn used_idx(&self) -> u16 {
        self.used_idx.load(Ordering::Acquire)
    }
    fn used_flags(&self) -> u16 {
        self.used_flags.load(Ordering::Relaxed)
    }
    fn avail_event(&self) -> u16 {
        self.avail_event.load(Ordering::Relaxed)
    }
}

/// The worker of the switch.
struct Worker<'r> {
    ring: &'r Ring,
    seen: u16,
}

impl Sleeper for Worker<'_> {
    fn take(&mut self) -> Option<u32> {
        let idx = device::virtqueue::VirtqueueFields::avail_idx(self.ring);
        self.ring.check(std::mem::replace(&mut self.seen, idx), idx)
    }
    fn arm(&mut self) -> bool {
        device::virtqueue::arm(self.ring, self.seen, self.ring.event_idx)
    }
    fn disarm(&mut self) {
        device::virtqueue::disarm(self.ring, self.ring.event_idx);
    }
    fn sleep(&mut self) -> bool {
        self.ring.wire.sleep()
    }
}

/// The driver makes buffers available, one by one.
fn doorbells(event_idx: bool, without: Without) {
    explore(None, move || {
        let ring = Ring::new(event_idx, without);
        let theirs = ring.clone();
        let guest = thread::spawn(move || {
            for idx in 0..ALL {
                theirs.fill(idx);
                let wanted = driver::virtqueue::publish(&*theirs, idx, idx + 1, event_idx);
                theirs.wire.raise_if(wanted);
            }
            theirs.wire.end();
        });
        let end = live(ALL.into(), &mut Worker { ring: &ring, seen: 0 });
        guest.join().unwrap();
        judge(end);
    });
}

/// The driver, which sleeps until `after` more buffers are used.
struct Guest<'r> {
    ring: &'r Ring,
    seen: u16,
    after: u16,
}

impl Sleeper for Guest<'_> {
    fn take(&mut self) -> Option<u32> {
        let idx = driver::virtqueue::VirtqueueFields::used_idx(self.ring);
        self.ring.check(std::mem::replace(&mut self.seen, idx), idx)
    }
    fn arm(&mut self) -> bool {
        let after = self.after.min(ALL - self.seen);
        driver::virtqueue::arm(self.ring, self.seen, after, self.ring.event_idx)
    }
    fn disarm(&mut self) {
        driver::virtqueue::disarm(self.ring, self.seen, self.ring.event_idx);
    }
    fn sleep(&mut self) -> bool {
        self.ring.wire.sleep()
    }
}

/// The device uses buffers, one by one.
fn interrupts(event_idx: bool, after: u16, without: Without) {
    explore(None, move || {
        let ring = Ring::new(event_idx, without);
        let theirs = ring.clone();
        let worker = thread::spawn(move || {
            for idx in 0..ALL {
                theirs.fill(idx);
                let wanted = device::virtqueue::publish(&*theirs, idx, idx + 1, event_idx);
                theirs.wire.raise_if(wanted);
            }
            theirs.wire.end();
        });
        let end = live(ALL.into(), &mut Guest { ring: &ring, seen: 0, after });
        worker.join().unwrap();
        judge(end);
    });
}

pub fn doorbells_by_flags(without: Without) {
    doorbells(false, without);
}

pub fn doorbells_by_events(without: Without) {
    doorbells(true, without);
}

pub fn interrupts_by_flags(without: Without) {
    interrupts(false, 1, without);
}

pub fn interrupts_by_events(without: Without) {
    interrupts(true, 1, without);
}

/// One interrupt for two buffers.
pub fn interrupts_by_far_events(without: Without) {
    interrupts(true, 2, without);
}

#[test]
fn no_doorbell_is_lost() {
    doorbells_by_flags(Without::Nothing);
    doorbells_by_events(Without::Nothing);
}

#[test]
fn no_interrupt_is_lost() {
    interrupts_by_flags(Without::Nothing);
    interrupts_by_events(Without::Nothing);
    interrupts_by_far_events(Without::Nothing);
}
