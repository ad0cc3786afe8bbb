//! Host rings: a pair of rings between the program and the kernel's stack, over a TAP device that
//! stands for the NIC there.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::counters::{Counters, SyncError, answer};
use super::region::{BUFFER, Region};
use super::ring::{FORWARD, Ring, Slot};
use super::sys::Tap;
use vmlan_transport::numbers::narrow16;

/// Slots of the longest frame, as netmap's `NETMAP_MAX_FRAGS`.
const MOST_PARTS: usize = 64;
/// Least bytes of a frame: two addresses and a type.
const LEAST: usize = 14;

/// Host rings of a NIC.
pub(crate) struct Host {
    tap: Tap,
    region: &'static Region,
    pub(crate) tx: Ring,
    pub(crate) rx: Ring,
    pub(crate) counters: Counters,
}

impl Host {
    /// Makes rings of so many slots, and the device.
    ///
    /// # Errors
    /// ENOMEM when the region is full; those of [`Tap::open`].
    pub(crate) fn open(
        region: &'static Region,
        (id, slots): (usize, [u32; 2]),
        (name, address): (&str, Option<[u8; 6]>),
    ) -> Result<Self, Errno> {
        let (mut tx, rx) =
            (Ring::new(region, (id, false), slots[0])?, Ring::new(region, (id, true), slots[1])?);
        tx.publish(tx.most());
        let tap = Tap::open(name, address)?;
        Ok(Self { tap, region, tx, rx, counters: Counters::default() })
    }

    pub(crate) fn name(&self) -> &str {
        self.tap.name()
    }

    /// Hands a frame to the stack. What the stack does not want (it is down) is lost, as with
    /// netmap.
    pub(crate) fn push(&mut self, parts: &[Slot]) {
        push(self.region, &self.tap, parts, &mut self.counters);
    }

    /// Hands what the program gave to the stack, all of it.
    pub(crate) fn txsync(&mut self) -> Result<(), SyncError> {
        let mut parts = Vec::with_capacity(1);
        let mut counters = Counters::default();
        let sound = self.tx.send(true, &mut self.counters, |_, slot, ends| {
            parts.push(slot);
            if ends {
                push(self.region, &self.tap, &parts, &mut counters);
                parts.clear();
            }
            parts.len() < MOST_PARTS
        });
        self.counters += counters;
        let tail = self.tx.ahead(self.tx.seen, self.tx.most());
        self.tx.publish(tail);
        answer(sound)
    }

    /// Takes read slots back, and brings what the stack has sent. A slot that the program has
    /// marked for the NIC is offered to `nic`, which gives another buffer for it, or nothing: then
    /// it is lost.
    pub(crate) fn rxsync(
        &mut self,
        mut nic: impl FnMut(Slot) -> Option<u32>,
    ) -> Result<(), SyncError> {
        let may = self.rx.may_forward();
        let sound = self.rx.take_back(&mut self.counters, |_, slot| {
            let index = (may && slot.flags & FORWARD != 0).then(|| nic(slot)).flatten();
            Slot { index: index.unwrap_or(slot.index), ..slot }
        });
        let mut got = 0;
        for _ in 0..self.rx.slots() {
            let (at, slot) = (self.rx.tail, self.rx.slot(self.rx.tail));
            if self.rx.free() == 0 {
                break;
            }
            if !slot.is_sound() {
                self.rx.settle(false, &mut self.counters);
                return Err(SyncError::Reset);
            }
            match self.region.receive(slot.index, self.tap.as_fd()) {
                // Somebody has set an MTU that no buffer holds; netmap drops them as well.
                Ok(len) if len > BUFFER => {}
                Ok(len) => {
                    self.rx.describe(at, narrow16(len as u64), 0);
                    self.rx.publish(self.rx.next(at));
                    got += 1;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Err(SyncError::Nic),
            }
        }
        if got > 0 {
            self.rx.stamp();
            self.counters.rx_frames += got;
            self.counters.rx_copies += got;
        }
        answer(sound)
    }
}

fn push(region: &Region, tap: &Tap, parts: &[Slot], counters: &mut Counters) {
    let len: usize = parts.iter().map(|part| usize::from(part.len)).sum();
    if len < LEAST {
        return;
    }
    // A stack that is down refuses.
    if region.send(parts.iter().map(|part| (part.index, part.len.into())), tap.as_fd()).is_ok() {
        counters.tx_frames += 1;
        counters.tx_copies += 1;
    }
}

impl AsFd for Host {
    /// Readable while the stack has frames.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}
