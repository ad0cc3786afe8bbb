//! A NIC's rings in the program's memory, and their syncs with the driver's.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::region::{ALIGN, BUFFER, Region};
use super::ring::{CHANGED, MORE, Ring};
use vmlan_driver::nic::Nic;
use vmlan_tools::AnyNic;
use vmlan_tools::netmap::{Interest, NetmapError, Port};
use vmlan_transport::numbers::{narrow16, narrow32};

/// Offsets in `struct netmap_if`; tests/c/layout.c compares them.
pub(crate) const IF_TX_RINGS: usize = 24;
pub(crate) const IF_RX_RINGS: usize = 28;
pub(crate) const IF_EXTRA: usize = 32;
pub(crate) const IF_RINGS: usize = 56;

/// `struct vmlan_netmap_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were handed to the driver.
    pub tx_frames: u64,
    /// Frames that the program got.
    pub rx_frames: u64,
    /// Copies from a buffer to memory of the device.
    pub tx_copies: u64,
    /// Copies from memory of the device to a buffer.
    pub rx_copies: u64,
    /// Slots that the program gave back with another buffer in them.
    pub swapped: u64,
    /// Resets of rings.
    pub resets: u64,
}

/// Why a sync did not do all it should.
#[derive(Debug)]
pub(crate) enum SyncError {
    /// The program wrote nonsense, and its ring was reset.
    Reset,
    /// The NIC is gone, or failed.
    Nic,
}

impl From<NetmapError> for SyncError {
    fn from(_: NetmapError) -> Self {
        Self::Nic
    }
}

/// Lanes that a descriptor is bound to.
pub(crate) type Lanes = RangeInclusive<usize>;

/// A NIC that the process has open.
pub(crate) struct NicPort<N: Nic = AnyNic> {
    port: Port<N>,
    region: &'static Region,
    /// `struct netmap_if` and the rings.
    pub(crate) block: usize,
    block_bytes: usize,
    pub(crate) tx: Vec<Ring>,
    pub(crate) rx: Vec<Ring>,
    extra: Vec<u32>,
    scratch: Box<[u8]>,
    pub(crate) counters: Counters,
}

impl<N: Nic> NicPort<N> {
    /// Makes rings for a port that nobody has used, and `extra` buffers.
    ///
    /// # Errors
    /// ENOMEM when the region is full.
    pub(crate) fn new(
        mut port: Port<N>,
        region: &'static Region,
        name: &str,
        extra: u32,
    ) -> Result<Self, Errno> {
        let lanes = port.lanes();
        let slots: Vec<_> = (0..2 * lanes)
            .map(|n| if n < lanes { port.tx(n).slots() } else { port.rx(n - lanes).slots() })
            .map(u32::from)
            .collect();
        let head = (IF_RINGS + 8 * slots.len()).next_multiple_of(ALIGN);
        let ring_bytes = |slots: &u32| Ring::bytes(*slots).next_multiple_of(ALIGN);
        let block_bytes = head + slots.iter().map(ring_bytes).sum::<usize>();
        let needed = slots.iter().sum::<u32>() + extra;
        let block = region.take_block(block_bytes).ok_or(Errno::NOMEM)?;
        let Some(mut buffers) = region.take_buffers(needed as usize) else {
            region.give_block(block, block_bytes);
            return Err(Errno::NOMEM);
        };
        let (mut tx, mut rx, mut offset) = (Vec::new(), Vec::new(), block + head);
        for (n, slots) in slots.iter().enumerate() {
            let mine = buffers.split_off(buffers.len() - *slots as usize);
            region.set64(block + IF_RINGS + 8 * n, (offset - block) as u64);
            let receives = n >= lanes;
            let id = if receives { n - lanes } else { n };
            let ring = Ring::new(region, offset, (id, receives), &mine);
            if receives {
                rx.push(ring)
            } else {
                tx.push(ring)
            }
            offset += ring_bytes(slots);
        }
        for (at, letter) in name.bytes().take(15).enumerate() {
            let shift = 8 * (at % 2);
            region.word16(block + at / 2 * 2).fetch_or(u16::from(letter) << shift, Relaxed);
        }
        region.word32(block + 16).store(14, Relaxed); // NETMAP_API
        let lanes = narrow32(lanes as u64);
        region.word32(block + IF_TX_RINGS).store(lanes, Relaxed);
        region.word32(block + IF_RX_RINGS).store(lanes, Relaxed);
        // Each begins with the index of the next.
        let follows = buffers.iter().skip(1).chain(&[0]);
        for (index, next) in buffers.iter().zip(follows) {
            region.write(*index, &next.to_ne_bytes());
        }
        let first = buffers.first().copied().unwrap_or(0);
        region.word32(block + IF_EXTRA).store(first, Relaxed);
        let mut made = Self {
            port,
            region,
            block,
            block_bytes,
            tx,
            rx,
            extra: buffers,
            scratch: vec![0; BUFFER].into(),
            counters: Counters::default(),
        };
        made.publish_tx();
        Ok(made)
    }

    /// Of how many buffers the program has the list.
    pub(crate) fn extra(&self) -> u32 {
        narrow32(self.extra.len() as u64)
    }

    pub(crate) fn slots(&self) -> [u32; 2] {
        [self.tx[0].most() + 1, self.rx[0].most() + 1]
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
        if sound { Ok(()) } else { Err(SyncError::Reset) }
    }

    /// Hands a lane's frames to the driver; false: the ring was reset.
    fn fill(&mut self, lane: usize) -> bool {
        let sound = match self.tx[lane].head() {
            Some(head) => self.fill_to(lane, head),
            None => false,
        };
        if !sound {
            self.tx[lane].reset();
            self.counters.resets += 1;
        }
        sound
    }

    fn fill_to(&mut self, lane: usize, head: u32) -> bool {
        while self.tx[lane].seen != head {
            let Some(end) = self.frame(lane, head) else { return false };
            self.tx[lane].seen = end;
        }
        true
    }

    /// Hands one frame to the driver; where the next one begins, nothing if a slot cannot be. One
    /// that is too short for Ethernet is left out.
    fn frame(&mut self, lane: usize, head: u32) -> Option<u32> {
        let room = self.port.device().room(lane);
        let (ring, mut tx) = (&self.tx[lane], self.port.tx(lane));
        let place = tx.head();
        let (mut at, mut total) = (ring.seen, 0);
        loop {
            let slot = ring.slot(at);
            let len = usize::from(slot.len);
            if !slot.is_sound() || total + len > room || tx.is_empty() {
                return None;
            }
            self.region.read(slot.index, &mut self.scratch[..len]);
            tx.slot(place).write(total, &self.scratch[..len]);
            self.counters.swapped += u64::from(slot.flags & CHANGED != 0);
            ring.describe(at, slot.len, slot.flags & !CHANGED);
            total += len;
            at = ring.next(at);
            if slot.flags & MORE == 0 || at == head {
                break;
            }
        }
        if tx.slot(place).set_len(total).is_ok() {
            let next = tx.next(place);
            tx.set_head(next);
            self.counters.tx_frames += 1;
            self.counters.tx_copies += 1;
        }
        Some(at)
    }

    /// Gives the driver what was read in these lanes, and brings what has come.
    pub(crate) fn rxsync(&mut self, lanes: Lanes) -> Result<(), SyncError> {
        let mut sound = true;
        for lane in lanes.clone() {
            sound &= self.take_back(lane);
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
        if sound { Ok(()) } else { Err(SyncError::Reset) }
    }

    fn take_back(&mut self, lane: usize) -> bool {
        let ring = &mut self.rx[lane];
        let mut sound = false;
        if let Some(head) = ring.head() {
            sound = true;
            while ring.seen != head && sound {
                let slot = ring.slot(ring.seen);
                sound = slot.is_sound();
                if sound {
                    self.counters.swapped += u64::from(slot.flags & CHANGED != 0);
                    ring.describe(ring.seen, slot.len, slot.flags & !CHANGED);
                    ring.seen = ring.next(ring.seen);
                }
            }
        }
        if !sound {
            ring.reset();
            self.counters.resets += 1;
        }
        sound
    }

    /// Slots that could take another frame.
    fn free(&self, lane: usize) -> u32 {
        let ring = &self.rx[lane];
        ring.most() - ring.distance(ring.seen, ring.tail)
    }

    fn bring(&mut self, lane: usize) -> bool {
        let mut any = false;
        loop {
            let left = self.free(lane);
            let (ring, mut rx) = (&mut self.rx[lane], self.port.rx(lane));
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
                    ring.reset();
                    self.counters.resets += 1;
                    return false;
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

    /// Has a ring of these lanes something beyond `cur`?
    pub(crate) fn ready(&self, lanes: &Lanes) -> Interest {
        let any = |rings: &[Ring]| rings[lanes.clone()].iter().any(Ring::is_ready);
        Interest { rx: any(&self.rx), tx: any(&self.tx) }
    }

    /// Gets ready for a sleep on the descriptor; false if there must be none.
    ///
    /// # Errors
    /// The other side is gone, and nothing of it is left.
    pub(crate) fn arm(&mut self, lanes: &Lanes, want: Interest) -> Result<bool, NetmapError> {
        let room = lanes.clone().any(|lane| self.free(lane) > 0);
        self.port.arm(Interest { rx: want.rx && room, tx: want.tx })
    }
}

impl<N: Nic> AsFd for NicPort<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}

impl<N: Nic> Drop for NicPort<N> {
    fn drop(&mut self) {
        // Buffers may have moved: what is in the rings now is what this port gives back.
        let rings = self.tx.iter().chain(&self.rx).flat_map(Ring::indexes);
        self.region.give_buffers(rings.chain(self.extra.iter().copied()).collect::<Vec<_>>());
        self.region.give_block(self.block, self.block_bytes);
    }
}
