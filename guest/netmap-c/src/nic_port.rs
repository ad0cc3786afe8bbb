//! A NIC's rings in the program's memory, and their syncs with the driver's.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::counters::{Counters, SyncError, answer};
use super::host::Host;
use super::region::{BUFFER, Region};
use super::ring::{FORWARD, MORE, Ring, Slot};
use vmlan_driver::nic::Nic;
use vmlan_tools::AnyNic;
use vmlan_tools::netmap::{Interest, NetmapError, Port};
use vmlan_transport::numbers::{narrow16, narrow32};

/// Lanes that a descriptor is bound to.
pub(crate) type Lanes = Range<usize>;

/// A NIC that the process has open.
pub(crate) struct NicPort<N: Nic = AnyNic> {
    port: Port<N>,
    region: &'static Region,
    pub(crate) tx: Vec<Ring>,
    pub(crate) rx: Vec<Ring>,
    scratch: Box<[u8]>,
    pub(crate) counters: Counters,
}

impl<N: Nic> NicPort<N> {
    /// Makes rings for a port that nobody has used.
    ///
    /// # Errors
    /// ENOMEM when the region is full.
    pub(crate) fn new(mut port: Port<N>, region: &'static Region) -> Result<Self, Errno> {
        let lanes = 0..port.lanes();
        let tx = lanes
            .clone()
            .map(|lane| Ring::new(region, (lane, false), port.tx(lane).slots().into()));
        let tx = tx.collect::<Result<_, _>>()?;
        let rx = lanes.map(|lane| Ring::new(region, (lane, true), port.rx(lane).slots().into()));
        let rx = rx.collect::<Result<_, _>>()?;
        let (scratch, counters) = (vec![0; BUFFER].into(), Counters::default());
        let mut made = Self { port, region, tx, rx, scratch, counters };
        made.publish_tx();
        Ok(made)
    }

    /// The program owns as many slots as the driver has room for frames; all but one only when
    /// nothing is under way, for by that `nm_tx_pending` knows it.
    fn publish_tx(&mut self) {
        for (lane, ring) in self.tx.iter_mut().enumerate() {
            let tx = self.port.tx(lane);
            let most = ring.most() - u32::from(tx.is_pending());
            let tail = ring.ahead(ring.seen, u32::from(tx.space()).min(most));
            ring.publish(tail);
        }
    }

    /// Sends what the program gave in these lanes, and takes sent slots back.
    pub(crate) fn txsync(&mut self, lanes: Lanes) -> Result<(), SyncError> {
        let mut sound = true;
        for lane in lanes {
            sound &= self.fill(lane);
        }
        self.port.txsync()?;
        self.publish_tx();
        answer(sound)
    }

    /// Hands a lane's frames to the driver; false: the ring was reset. A frame that is too short
    /// for Ethernet is left out.
    fn fill(&mut self, lane: usize) -> bool {
        let room = self.port.device().room(lane);
        let mut tx = self.port.tx(lane);
        let (mut total, mut frames) = (0, 0);
        let sound = self.tx[lane].send(true, &mut self.counters, |_, slot, ends| {
            let len = usize::from(slot.len);
            if total + len > room || tx.is_empty() {
                return false;
            }
            let place = tx.head();
            self.region.read(slot.index, &mut self.scratch[..len]);
            tx.slot(place).write(total, &self.scratch[..len]);
            total += len;
            if ends {
                if tx.slot(place).set_len(total).is_ok() {
                    let next = tx.next(place);
                    tx.set_head(next);
                    frames += 1;
                }
                total = 0;
            }
            true
        });
        self.counters.tx_frames += frames;
        self.counters.tx_copies += frames;
        sound
    }

    /// Puts a buffer into a transmit ring, as if the program had sent it; the one that it gets for
    /// it. Nothing: no ring has room.
    pub(crate) fn insert(&self, slot: Slot) -> Option<u32> {
        self.tx.iter().find_map(|ring| ring.insert(slot))
    }

    /// Gives the driver what was read in these lanes, and brings what has come. What the program
    /// has marked for it goes to the host's stack.
    pub(crate) fn rxsync(
        &mut self,
        lanes: Lanes,
        mut host: Option<&mut Host>,
    ) -> Result<(), SyncError> {
        let mut sound = true;
        for ring in &mut self.rx[lanes.clone()] {
            let mut host = host.as_deref_mut().filter(|_| ring.may_forward());
            let mut parts = Vec::new();
            sound &= ring.take_back(&mut self.counters, |_, slot| {
                if let Some(host) = &mut host {
                    parts.push(slot);
                    if slot.flags & MORE == 0 {
                        if slot.flags & FORWARD != 0 {
                            host.push(&parts);
                        }
                        parts.clear();
                    }
                }
                slot
            });
        }
        self.port.rxsync()?;
        let before = self.counters.rx_frames;
        for lane in lanes {
            sound &= self.bring(lane);
        }
        if self.counters.rx_frames != before {
            // What was copied is the device's again.
            self.port.rxsync()?;
        }
        answer(sound)
    }

    fn bring(&mut self, lane: usize) -> bool {
        let mut any = false;
        loop {
            let (ring, mut rx) = (&mut self.rx[lane], self.port.rx(lane));
            let left = ring.free();
            if rx.is_empty() {
                break;
            }
            let (place, mut tail) = (rx.head(), ring.tail);
            let len = rx.slot(place).len();
            let parts = narrow32(len.div_ceil(BUFFER) as u64);
            if parts > left && parts <= ring.most() {
                break;
            }
            let next = rx.next(place);
            if parts > ring.most() {
                // No ring of this size can ever hold it.
                rx.set_head(next);
                continue;
            }
            let bytes = rx.slot(place).bytes();
            for part in bytes.chunks(BUFFER) {
                let slot = ring.slot(tail);
                if !slot.is_sound() {
                    return ring.settle(false, &mut self.counters);
                }
                self.region.write(slot.index, part);
                let flags = if ring.distance(ring.tail, tail) + 1 < parts { MORE } else { 0 };
                ring.describe(tail, narrow16(part.len() as u64), flags);
                tail = ring.next(tail);
            }
            rx.set_head(next);
            ring.publish(tail);
            self.counters.rx_frames += 1;
            self.counters.rx_copies += 1;
            any = true;
        }
        if any {
            self.rx[lane].stamp();
        }
        true
    }

    /// Has one of these lanes room for received frames?
    pub(crate) fn has_room(&self, lanes: Lanes) -> bool {
        self.rx[lanes].iter().any(|ring| ring.free() > 0)
    }

    /// Gets ready for a sleep on the descriptor; false if there must be none. What was wished for
    /// before is forgotten.
    ///
    /// # Errors
    /// The other side is gone, and nothing of it is left.
    pub(crate) fn arm(&mut self, want: Interest) -> Result<bool, NetmapError> {
        self.port.arm(want)
    }
}

impl<N: Nic> AsFd for NicPort<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}
