//! vmxnet3's threshold, against drivers that have a full fence between the generation bit and the
//! threshold, and against those that have none (all stock drivers), with and without the worker's
//! third look.
//!
//! loom's memory knows no time: without an order between the two, a load may see a store late for
//! ever. What bounds it, the third look's delay, is [`Queue::clock`]: the timer fires between two
//! frames, never within the sending of one, and what was stored before it has fired is seen by a
//! frame that is sent after.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use crate::wire::{Sleeper, Wire, judge, live};
use crate::{Without, device, driver, explore};
use device::deferred::{self, DeferredFields};
use driver::threshold::{self, ThresholdFields};

const MOST: u32 = 2;
const NEVER: u32 = u32::MAX;

struct Queue {
    /// How many generation bits say that their descriptors are the device's.
    generations: AtomicU32,
    threshold: AtomicU32,
    /// The driver's count of frames that it has not rung for.
    deferred: AtomicU32,
    /// The driver has a full fence.
    fenced: bool,
    /// 1 while a frame is being sent.
    clock: AtomicU32,
    contents: [AtomicU32; MOST as usize],
    wire: Wire,
    without: Without,
}

impl Queue {
    /// The worker is awake.
    fn new(fenced: bool, without: Without) -> Arc<Self> {
        Arc::new(Self {
            generations: AtomicU32::new(0),
            threshold: AtomicU32::new(NEVER),
            deferred: AtomicU32::new(0),
            fenced,
            clock: AtomicU32::new(0),
            contents: Default::default(),
            wire: Wire::new(1),
            without,
        })
    }

    fn send(&self, index: u32) {
        self.clock.fetch_or(1, Ordering::AcqRel);
        self.contents[index as usize].store(1, Ordering::Relaxed);
        self.generations.store(index + 1, Ordering::Release);
        self.wire.raise_if(threshold::send(self, 1));
        self.clock.fetch_and(!1, Ordering::AcqRel);
    }

    /// The timer, if it can fire now.
    fn fires(&self) -> bool {
        self.clock.compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl device::Guard for Queue {
    fn full_fence(&self, at: device::Point) {
        self.without.device_fence(at);
    }
    fn looks_again(&self, at: device::Point) -> bool {
        self.without != Without::Device(at)
    }
}

impl ThresholdFields for Queue {
    fn fence(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        }
    }
    fn deferred(&self) -> u32 {
        self.deferred.load(Ordering::Relaxed)
    }
    fn set_deferred(&self, frames: u32) {
        self.deferred.store(frames, Ordering::Relaxed);
    }
    fn threshold(&self) -> u32 {
        self.threshold.load(Ordering::Relaxed)
    }
    fn update_rx_prod(&self) -> bool {
        false
    }
}

impl DeferredFields for Queue {
    fn set_wanted(&self, wanted: bool) {
        self.threshold.store(if wanted { 1 } else { NEVER }, Ordering::Relaxed);
    }
}

struct Worker<'q> {
    queue: &'q Queue,
    seen: u32,
    /// It looks a third time.
    thorough: bool,
    /// That look is still to come.
    timer: bool,
}

impl Worker<'_> {
    fn look(&self) -> bool {
        self.queue.generations.load(Ordering::Acquire) != self.seen
    }
}

impl Sleeper for Worker<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = self.queue.generations.load(Ordering::Acquire);
        let there = |i: u32| self.queue.contents[i as usize].load(Ordering::Relaxed) == 1;
        (0..self.seen).all(there).then_some(self.seen)
    }

    fn arm(&mut self) -> bool {
        self.timer = self.thorough;
        deferred::arm(self.queue, || self.look())
    }

    fn disarm(&mut self) {
        deferred::disarm(self.queue);
    }

    /// Until a doorbell rings, or the third look finds something.
    fn sleep(&mut self) -> bool {
        while self.timer {
            thread::yield_now();
            if self.queue.wire.was_raised() {
                return true;
            }
            if self.queue.fires() {
                self.timer = false;
                if deferred::later(self.queue, || self.look()) {
                    return true;
                }
            }
        }
        self.queue.wire.sleep()
    }
}

fn frames(fenced: bool, thorough: bool, without: Without) {
    explore(Some(3), move || {
        let queue = Queue::new(fenced, without);
        let theirs = queue.clone();
        let driver = thread::spawn(move || {
            (0..MOST).for_each(|index| theirs.send(index));
            theirs.wire.end();
        });
        let mut worker = Worker { queue: &queue, seen: 0, thorough, timer: false };
        let end = live(MOST, &mut worker);
        driver.join().unwrap();
        judge(end);
    });
}

/// A driver with the fence; the worker looks twice.
pub fn fenced(without: Without) {
    frames(true, false, without);
}

/// One without; the worker looks three times.
pub fn stock(without: Without) {
    frames(false, true, without);
}

#[test]
fn two_looks_are_enough_for_a_driver_with_a_fence() {
    fenced(Without::Nothing);
}

#[test]
fn three_looks_are_enough_for_a_driver_without() {
    stock(Without::Nothing);
}

/// The third look harms nobody.
#[test]
fn three_looks_are_enough_for_a_driver_with_a_fence() {
    frames(true, true, Without::Nothing);
}

#[test]
fn two_looks_strand_a_frame_of_a_driver_without() {
    let two = |without| frames(false, false, without);
    let failure = crate::mutations::fails(two, Without::Nothing);
    assert_eq!(failure.as_deref(), Some("lost wake-up"));
}
