//! Packed virtqueues, with flags and with places of descriptors, in both directions.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::wire::{Sleeper, Wire, judge, live};
use crate::{Without, device, driver, explore};
use device::packed::Event;
use driver::packed::Wish;

/// Descriptors of the ring, and buffers that change hands.
const ALL: u16 = 2;

const AVAILABLE: u32 = 1;
const USED: u32 = 2;

struct Ring {
    event_idx: bool,
    /// What lies behind each descriptor.
    contents: [AtomicU32; ALL as usize],
    /// What the flags of each say.
    flags: [AtomicU32; ALL as usize],
    driver: AtomicU32,
    device: AtomicU32,
    wire: Wire,
    without: Without,
}

impl Ring {
    /// Both sides are awake.
    fn new(event_idx: bool, without: Without) -> Arc<Self> {
        Arc::new(Self {
            event_idx,
            contents: Default::default(),
            flags: Default::default(),
            driver: AtomicU32::new(Wish::Nothing.encode()),
            device: AtomicU32::new(Wish::Nothing.encode()),
            wire: Wire::new(1),
            without,
        })
    }

    fn fill(&self, index: u16) {
        self.contents[usize::from(index)].store(1, Ordering::Relaxed);
    }

    fn is(&self, index: u16, flags: u32) -> bool {
        index < ALL && self.flags[usize::from(index)].load(Ordering::Acquire) == flags
    }

    fn set(&self, index: u16, flags: u32) {
        self.flags[usize::from(index)].store(flags, Ordering::Release);
    }

    /// Goes on from `index` over descriptors with such flags; where that ends, if what they stand
    /// for is there.
    fn take(&self, index: &mut u16, flags: u32) -> Option<u32> {
        let mut all = true;
        while self.is(*index, flags) {
            all &= self.contents[usize::from(*index)].load(Ordering::Relaxed) == 1;
            *index += 1;
        }
        all.then_some((*index).into())
    }
}

/// The place of a descriptor, in the first lap or behind it.
fn place(index: u16) -> u16 {
    if index < ALL { index | 0x8000 } else { index - ALL }
}

/// One side, at a descriptor.
struct Side<'r>(&'r Ring, u16);

impl device::Guard for Side<'_> {
    fn full_fence(&self, at: device::Point) {
        self.0.without.device_fence(at);
    }
    fn looks_again(&self, at: device::Point) -> bool {
        self.0.without != Without::Device(at)
    }
}

impl driver::Guard for Side<'_> {
    fn fence(&self, at: driver::Point) {
        self.0.without.driver_fence(at);
    }
    fn has_second_look(&self, at: driver::Point) -> bool {
        self.0.without != Without::Driver(at)
    }
}

impl device::packed::PackedFields for Side<'_> {
    fn is_available(&self) -> bool {
        self.0.is(self.1, AVAILABLE)
    }
    fn driver_event(&self) -> Event {
        Event::from_word(self.0.driver.load(Ordering::Relaxed))
    }
    fn set_device_event(&self, event: Event) {
        self.0.device.store(event.word(), Ordering::Relaxed);
    }
}

impl driver::packed::PackedFields for Side<'_> {
    fn show(&self) {
        self.0.set(self.1, AVAILABLE);
    }
    fn device_wish(&self) -> Wish {
        Wish::decode(self.0.device.load(Ordering::Relaxed))
    }
    fn set_driver_wish(&self, wish: Wish) {
        self.0.driver.store(wish.encode(), Ordering::Relaxed);
    }
    fn is_met(&self, after: u16) -> bool {
        (self.1..self.1 + after).all(|index| self.0.is(index, USED))
    }
}

/// The worker of the switch.
struct Worker<'r>(Side<'r>);

impl Sleeper for Worker<'_> {
    fn take(&mut self) -> Option<u32> {
        self.0.0.take(&mut self.0.1, AVAILABLE)
    }
    fn arm(&mut self) -> bool {
        device::packed::arm(&self.0, place(self.0.1), self.0.0.event_idx)
    }
    fn disarm(&mut self) {
        use device::packed::{DISABLE, PackedFields};
        self.0.set_device_event(Event { at: 0, flags: DISABLE });
    }
    fn sleep(&mut self) -> bool {
        self.0.0.wire.sleep()
    }
}

/// The driver makes buffers available, one by one.
fn doorbells(event_idx: bool, without: Without) {
    explore(None, move || {
        let ring = Ring::new(event_idx, without);
        let theirs = ring.clone();
        let guest = thread::spawn(move || {
            for index in 0..ALL {
                theirs.fill(index);
                let side = Side(&theirs, index);
                let wanted = driver::packed::publish(&side, place(index + 1), 1, ALL);
                theirs.wire.raise_if(wanted);
            }
            theirs.wire.end();
        });
        let end = live(ALL.into(), &mut Worker(Side(&ring, 0)));
        guest.join().unwrap();
        judge(end);
    });
}

/// The driver, which sleeps until `after` more buffers are used.
struct Guest<'r>(Side<'r>, u16);

impl Sleeper for Guest<'_> {
    fn take(&mut self) -> Option<u32> {
        self.0.0.take(&mut self.0.1, USED)
    }
    fn arm(&mut self) -> bool {
        let after = self.1.min(ALL - self.0.1);
        let at = place(self.0.1 + after.max(1) - 1);
        driver::packed::arm(&self.0, at, after, self.0.0.event_idx)
    }
    fn disarm(&mut self) {
        driver::packed::disarm(&self.0);
    }
    fn sleep(&mut self) -> bool {
        self.0.0.wire.sleep()
    }
}

/// The device uses buffers, one by one.
fn interrupts(event_idx: bool, after: u16, without: Without) {
    explore(None, move || {
        let ring = Ring::new(event_idx, without);
        let theirs = ring.clone();
        let worker = thread::spawn(move || {
            for index in 0..ALL {
                theirs.fill(index);
                theirs.set(index, USED);
                let side = Side(&theirs, index + 1);
                let wanted = device::packed::publish(&side, place(index + 1), 1, ALL);
                theirs.wire.raise_if(wanted.unwrap());
            }
            theirs.wire.end();
        });
        let end = live(ALL.into(), &mut Guest(Side(&ring, 0), after));
        worker.join().unwrap();
        judge(end);
    });
}

pub fn doorbells_by_flags(without: Without) {
    doorbells(false, without);
}

pub fn doorbells_by_places(without: Without) {
    doorbells(true, without);
}

pub fn interrupts_by_flags(without: Without) {
    interrupts(false, 1, without);
}

pub fn interrupts_by_places(without: Without) {
    interrupts(true, 1, without);
}

/// One interrupt for two buffers.
pub fn interrupts_by_far_places(without: Without) {
    interrupts(true, 2, without);
}

#[test]
fn no_doorbell_is_lost() {
    doorbells_by_flags(Without::Nothing);
    doorbells_by_places(Without::Nothing);
}

#[test]
fn no_interrupt_is_lost() {
    interrupts_by_flags(Without::Nothing);
    interrupts_by_places(Without::Nothing);
    interrupts_by_far_places(Without::Nothing);
}
