//! The CSB: its four pairs, and how it is turned on and off.

mod linux;

use std::cell::Cell;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use crate::wire::{Sleeper, Wire, judge, live};
use crate::{Without, device, driver, explore, mutations::fails};
use device::bell;
use driver::registers;

/// Frames that change hands.
const ALL: u32 = 2;
/// Descriptors of the receive ring, when it is about room: a wish is for four of the five that a
/// guest can give.
const SIZE: u32 = 6;

/// The CSB, the chip and the rings.
pub struct Csb {
    guest_tdt: AtomicU32,
    guest_need_txkick: AtomicU32,
    guest_need_rxkick: AtomicU32,
    guest_csb_on: AtomicU32,
    guest_rdt: AtomicU32,
    host_tdh: AtomicU32,
    host_need_txkick: AtomicU32,
    host_rxkick_at: AtomicU32,
    /// TDT or RDT.
    register: AtomicU32,
    /// The bell's wish.
    wanted: AtomicBool,
    /// What lies before each index.
    contents: [AtomicU32; SIZE as usize],
    done: [AtomicU32; ALL as usize],
    wire: Wire,
    without: Without,
}

impl Csb {
    /// Both sides are awake.
    fn new(on: u32, without: Without) -> Arc<Self> {
        Arc::new(Self {
            guest_tdt: AtomicU32::new(0),
            guest_need_txkick: AtomicU32::new(0),
            guest_need_rxkick: AtomicU32::new(0),
            guest_csb_on: AtomicU32::new(on),
            guest_rdt: AtomicU32::new(0),
            host_tdh: AtomicU32::new(0),
            host_need_txkick: AtomicU32::new(0),
            host_rxkick_at: AtomicU32::new(u32::MAX),
            register: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            contents: Default::default(),
            done: Default::default(),
            wire: Wire::new(1),
            without,
        })
    }

    fn fill(&self, index: u32) {
        self.contents[index as usize].store(1, Ordering::Relaxed);
    }

    /// The index, if what lies right before it is there.
    fn check(&self, index: u32) -> Option<u32> {
        let there = |i: u32| self.contents[i as usize - 1].load(Ordering::Relaxed) == 1;
        (index == 0 || there(index)).then_some(index)
    }

    /// TDT, as the chip sees it.
    fn tail(&self) -> u32 {
        if device::csb::CsbFields::guest_csb_on(self) != 0 {
            device::csb::CsbFields::guest_tdt(self)
        } else {
            self.register.load(Ordering::Acquire)
        }
    }

    /// The guest writes the register. It is trapped: the chip's side runs before the guest goes on.
    fn write(&self, tail: u32) {
        registers::publish(self, || {
            // A swap, for loom knows no order of stores and exchanges.
            self.register.swap(tail, Ordering::Release);
            device::csb::accept_kick(self);
            self.wire.raise_if(bell::ring(self));
        });
    }

    /// Describes a frame and sends it.
    fn send(&self, index: u32) {
        self.fill(index);
        if driver::csb::send(self, index + 1) {
            self.write(index + 1);
        }
    }
}

impl device::Guard for Csb {
    fn full_fence(&self, at: device::Point) {
        self.without.device_fence(at);
    }
    fn looks_again(&self, at: device::Point) -> bool {
        self.without != Without::Device(at)
    }
}

impl driver::Guard for Csb {
    fn fence(&self, at: driver::Point) {
        self.without.driver_fence(at);
    }
    fn has_second_look(&self, at: driver::Point) -> bool {
        self.without != Without::Driver(at)
    }
}

impl bell::BellFlag for Csb {
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

impl device::csb::CsbFields for Csb {
    fn guest_tdt(&self) -> u32 {
        self.guest_tdt.load(Ordering::Acquire)
    }
    fn guest_rdt(&self) -> u32 {
        self.guest_rdt.load(Ordering::Acquire)
    }
    fn guest_need_txkick(&self) -> u32 {
        self.guest_need_txkick.load(Ordering::Relaxed)
    }
    fn guest_need_rxkick(&self) -> u32 {
        self.guest_need_rxkick.load(Ordering::Relaxed)
    }
    fn guest_csb_on(&self) -> u32 {
        self.guest_csb_on.load(Ordering::Acquire)
    }
    fn set_host_tdh(&self, index: u32) {
        self.host_tdh.store(index, Ordering::Release);
    }
    /// Nobody waits for it.
    fn set_host_rdh(&self, _index: u32) {}
    fn set_host_need_txkick(&self, wish: u32) {
        self.host_need_txkick.store(wish, Ordering::Relaxed);
    }
    /// For guests that know nothing else.
    fn set_host_need_rxkick(&self, _wish: u32) {}
    fn set_host_rxkick_at(&self, index: u32) {
        self.host_rxkick_at.store(index, Ordering::Relaxed);
    }
}

impl driver::csb::CsbFields for Csb {
    fn set_guest_tdt(&self, index: u32) {
        self.guest_tdt.store(index, Ordering::Release);
    }
    fn set_guest_rdt(&self, index: u32) {
        self.guest_rdt.store(index, Ordering::Release);
    }
    fn set_guest_need_txkick(&self, wish: u32) {
        self.guest_need_txkick.store(wish, Ordering::Relaxed);
    }
    fn set_guest_need_rxkick(&self, wish: u32) {
        self.guest_need_rxkick.store(wish, Ordering::Relaxed);
    }
    fn set_guest_csb_on(&self, on: u32) {
        self.guest_csb_on.store(on, Ordering::Release);
    }
    fn host_need_txkick(&self) -> u32 {
        self.host_need_txkick.load(Ordering::Relaxed)
    }
    fn host_rxkick_at(&self) -> u32 {
        self.host_rxkick_at.load(Ordering::Relaxed)
    }
}

/// The worker, which sends what the guest describes.
struct Transmit<'b> {
    csb: &'b Csb,
    seen: u32,
}

impl Sleeper for Transmit<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = self.csb.tail();
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        let look = || self.csb.tail() != self.seen;
        bell::arm(self.csb, || device::csb::arm_transmit(self.csb, look))
    }
    fn disarm(&mut self) {
        bell::BellFlag::set_wanted(self.csb, false);
        device::csb::disarm_transmit(self.csb);
    }
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

fn transmits(on: u32, without: Without, guest: fn(&Csb)) {
    explore(Some(4), move || {
        let csb = Csb::new(on, without);
        let theirs = csb.clone();
        let guest = thread::spawn(move || {
            guest(&theirs);
            theirs.wire.end();
        });
        let end = live(ALL, &mut Transmit { csb: &csb, seen: 0 });
        guest.join().unwrap();
        judge(end);
    });
}

pub fn kicks(without: Without) {
    transmits(1, without, |csb| (0..ALL).for_each(|index| csb.send(index)));
}

/// One frame by the register; then the CSB is turned on.
pub fn turned_on(without: Without) {
    transmits(0, without, |csb| {
        csb.fill(0);
        csb.write(1);
        driver::csb::start(csb, 1, 0);
        csb.send(1);
    });
}

/// One frame by the CSB, which is then turned off.
pub fn turned_off(without: Without) {
    transmits(1, without, |csb| {
        csb.send(0);
        driver::csb::stop(csb);
        csb.write(1);
        csb.fill(1);
        csb.write(2);
    });
}

/// A worker that follows the CSB until it is turned off, and the register from then on.
struct Leaver<'b> {
    worker: Transmit<'b>,
    off: Cell<bool>,
}

impl Leaver<'_> {
    /// The register follows the CSB's word, so that the one can be left for the other.
    fn tail(&self) -> u32 {
        let csb = self.worker.csb;
        let read = || device::csb::CsbFields::guest_tdt(csb);
        let mut word = None;
        if !self.off.get() && device::csb::CsbFields::guest_csb_on(csb) != 0 {
            word = Some(read());
        } else if !self.off.replace(true) {
            device::csb::CsbFields::set_host_need_txkick(csb, 1);
            word = device::csb::leave(csb, read);
        }
        let word = word.unwrap_or(0);
        csb.register.fetch_max(word, Ordering::AcqRel).max(word)
    }
}

impl Sleeper for Leaver<'_> {
    fn take(&mut self) -> Option<u32> {
        self.worker.seen = self.tail();
        self.worker.csb.check(self.worker.seen)
    }
    fn arm(&mut self) -> bool {
        let csb = self.worker.csb;
        let look = || self.tail() != self.worker.seen;
        bell::arm(csb, || device::csb::arm_transmit(csb, look))
    }
    fn disarm(&mut self) {
        bell::BellFlag::set_wanted(self.worker.csb, false);
        if !self.off.get() {
            device::csb::disarm_transmit(self.worker.csb);
        }
    }
    fn sleep(&mut self) -> bool {
        self.worker.sleep()
    }
}

/// One processor turns the CSB off while another sends by it.
pub fn turned_off_by_another(without: Without) {
    explore(Some(3), move || {
        let csb = Csb::new(1, without);
        csb.wire.join_in();
        let (theirs, others) = (csb.clone(), csb.clone());
        let sender = thread::spawn(move || {
            theirs.send(0);
            theirs.wire.end();
        });
        let switch = thread::spawn(move || {
            driver::csb::stop(&*others);
            others.wire.end();
        });
        let worker = Transmit { csb: &csb, seen: 0 };
        let end = live(1, &mut Leaver { worker, off: Cell::new(false) });
        sender.join().unwrap();
        switch.join().unwrap();
        judge(end);
    });
}

/// The guest, which waits until its frames are sent.
struct Completion<'b> {
    csb: &'b Csb,
    seen: u32,
}

impl Sleeper for Completion<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = self.csb.host_tdh.load(Ordering::Acquire);
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        let look = || self.csb.host_tdh.load(Ordering::Acquire) != self.seen;
        driver::csb::want_completion(self.csb, look)
    }
    fn disarm(&mut self) {
        driver::csb::unwant_completion(self.csb);
    }
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

pub fn completions(without: Without) {
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
        let end = live(ALL, &mut Completion { csb: &csb, seen: 0 });
        worker.join().unwrap();
        judge(end);
    });
}

/// A sender, whose frame takes all the buffers that the guest can give.
struct Room<'b> {
    csb: &'b Csb,
    seen: u32,
    /// Looks for enough room, instead of for any.
    enough: bool,
}

impl Sleeper for Room<'_> {
    fn take(&mut self) -> Option<u32> {
        self.seen = device::csb::CsbFields::guest_rdt(self.csb);
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        let look = || {
            let tail = device::csb::CsbFields::guest_rdt(self.csb);
            tail != self.seen && (tail == SIZE - 1 || !self.enough)
        };
        let ring = device::csb::Ring { size: SIZE, head: 0, tail: self.seen };
        bell::arm(self.csb, || device::csb::arm_room(self.csb, ring, look))
    }
    fn disarm(&mut self) {
        bell::BellFlag::set_wanted(self.csb, false);
        device::csb::disarm_room(self.csb);
    }
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

/// The guest gives buffers back, up to each of `tails` with one store.
fn refills(tails: &'static [u32], enough: bool, without: Without) {
    explore(Some(5), move || {
        let csb = Csb::new(1, without);
        let theirs = csb.clone();
        let guest = thread::spawn(move || {
            let mut old = 0;
            for tail in tails {
                theirs.fill(*tail - 1);
                if driver::csb::refill(&*theirs, SIZE, old, *tail) {
                    theirs.write(*tail);
                }
                old = *tail;
            }
            theirs.wire.end();
        });
        let end = live(SIZE - 1, &mut Room { csb: &csb, seen: 0, enough });
        guest.join().unwrap();
        judge(end);
    });
}

/// The index that a kick is wanted for is met.
pub fn room(without: Without) {
    refills(&[4, 5], false, without);
}

/// It is passed.
pub fn room_passed(without: Without) {
    refills(&[3, 5], false, without);
}

/// The second look is for enough.
pub fn room_for_enough(without: Without) {
    refills(&[4, 5], true, without);
}

/// The guest, which waits for frames.
struct Reception<'b> {
    csb: &'b Csb,
    seen: u32,
}

impl Reception<'_> {
    fn is_done(&self) -> bool {
        let done = self.csb.done.get(self.seen as usize);
        done.is_some_and(|done| done.load(Ordering::Acquire) == 1)
    }
}

impl Sleeper for Reception<'_> {
    fn take(&mut self) -> Option<u32> {
        while self.is_done() {
            self.seen += 1;
        }
        self.csb.check(self.seen)
    }
    fn arm(&mut self) -> bool {
        driver::csb::want_reception(self.csb, || self.is_done())
    }
    fn disarm(&mut self) {
        driver::csb::unwant_reception(self.csb);
    }
    fn sleep(&mut self) -> bool {
        self.csb.wire.sleep()
    }
}

pub fn receptions(without: Without) {
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
        let end = live(ALL, &mut Reception { csb: &csb, seen: 0 });
        worker.join().unwrap();
        judge(end);
    });
}

#[test]
fn no_kick_is_lost() {
    kicks(Without::Nothing);
}

#[test]
fn none_is_lost_when_the_csb_is_turned_on() {
    turned_on(Without::Nothing);
}

#[test]
fn none_is_lost_when_the_csb_is_turned_off() {
    turned_off(Without::Nothing);
    turned_off_by_another(Without::Nothing);
}

#[test]
fn no_completion_is_lost() {
    completions(Without::Nothing);
}

#[test]
fn no_room_is_lost() {
    room(Without::Nothing);
    room_passed(Without::Nothing);
}

#[test]
fn no_reception_is_lost() {
    receptions(Without::Nothing);
}

/// The reference looks again for enough room, and its authors' guests may pass the index before it
/// is stated.
#[test]
fn room_is_lost_when_the_second_look_wants_enough() {
    assert_eq!(fails(room_for_enough, Without::Nothing).as_deref(), Some("lost wake-up"));
}
