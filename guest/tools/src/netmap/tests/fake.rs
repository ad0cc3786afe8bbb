//! A device whose other side is the test.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use vmlan_driver::nic::{Connected, Info, NicError, Receive, Registers, Transmit, Wait};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::wait::{Interest, Prepared, Wake};
use vmlan_transport::Mac;
use vmlan_transport::sys::{self, EventFd};

pub(super) const ROOM: usize = 300;

/// Frame `n`: its length and its bytes follow from that.
pub(super) fn frame(n: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((n * 31 + at * 7) % 251).unwrap();
    (0..20 + n * 13 % (ROOM - 20)).map(byte).collect()
}

/// Marsaglia's xorshift.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

#[derive(Debug)]
pub(super) struct Fake {
    /// What lies in the slots, those that are free in the order of their use, and those that were
    /// sent.
    bodies: RefCell<Vec<Vec<u8>>>,
    free: VecDeque<u16>,
    under_way: Vec<u16>,
    done: Vec<u16>,
    /// Frames sent, and flushed.
    unseen: Vec<Vec<u8>>,
    pub(super) wire: Vec<Vec<u8>>,
    /// Slots come back in any order.
    pub(super) shuffles: bool,
    posted: u16,
    waiting: VecDeque<Vec<u8>>,
    pub(super) armed: bool,
    interrupt: EventFd,
    gone: EventFd,
    hung_up: bool,
    pub(super) at_next_arm: Option<Vec<u8>>,
    pub(super) limit: Duration,
}

impl Fake {
    pub(super) fn new(slots: u16, posted: u16) -> Self {
        Self {
            bodies: RefCell::new(vec![vec![0; ROOM]; slots.into()]),
            free: (0..slots).collect(),
            under_way: Vec::new(),
            done: Vec::new(),
            unseen: Vec::new(),
            wire: Vec::new(),
            shuffles: false,
            posted,
            waiting: VecDeque::new(),
            armed: false,
            interrupt: EventFd::new().unwrap(),
            gone: EventFd::new().unwrap(),
            hung_up: false,
            at_next_arm: None,
            limit: Duration::MAX,
        }
    }

    fn interrupt(&mut self) {
        if self.armed {
            self.interrupt.signal();
        }
    }

    pub(super) fn deliver(&mut self, frame: &[u8]) {
        self.waiting.push_back(frame.to_vec());
        self.interrupt();
    }

    /// Sends up to `count` frames.
    pub(super) fn finish(&mut self, count: usize, random: &mut Random) {
        for _ in 0..count.min(self.under_way.len()) {
            let which = if self.shuffles { random.below(self.under_way.len()) } else { 0 };
            self.done.push(self.under_way.remove(which));
        }
        self.interrupt();
    }

    pub(super) fn interrupts(&self) -> u64 {
        self.interrupt.take()
    }

    pub(super) fn hang_up(&mut self) {
        self.hung_up = true;
        self.gone.signal();
    }

    fn has(&self, want: Interest) -> bool {
        want.rx && self.posted > 0 && !self.waiting.is_empty() || want.tx && !self.done.is_empty()
    }
}

impl Info for Fake {
    fn lanes(&self) -> usize {
        1
    }

    fn connected(&self) -> Connected {
        Connected::Virtio { features: 0, queues: 1 }
    }

    fn settle_mac(&mut self, chosen: Option<Mac>) -> Option<Mac> {
        chosen
    }

    fn can_checksum(&self) -> bool {
        false
    }

    fn is_connected(&self) -> bool {
        !self.hung_up
    }

    fn reconnects(&self) -> u64 {
        0
    }

    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }

    fn is_sound(&self) -> bool {
        true
    }

    fn registers(&self) -> Option<Registers> {
        None
    }
}

impl Transmit for Fake {
    fn slots(&self, _: usize) -> u16 {
        u16::try_from(self.bodies.borrow().len()).unwrap()
    }

    fn room(&self, _: usize) -> usize {
        ROOM
    }

    fn free_slots(&self, _: usize) -> u16 {
        u16::try_from(self.free.len()).unwrap()
    }

    fn under_way(&self, _: usize) -> u16 {
        u16::try_from(self.under_way.len() + self.done.len()).unwrap()
    }

    fn reap(&mut self, lane: usize) -> u16 {
        self.free.extend(self.done.drain(..));
        self.free_slots(lane)
    }

    fn next(&mut self, _: usize) -> Option<u16> {
        self.free.front().copied()
    }

    fn slot_ahead(&self, _: usize, ahead: u16) -> u16 {
        self.free[usize::from(ahead)]
    }

    fn write(&self, _: usize, slot: u16, at: usize, bytes: &[u8]) {
        assert!(self.free.contains(&slot), "slot {slot} is the device's");
        self.bodies.borrow_mut()[usize::from(slot)][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn offload_checksum(&mut self, _: usize, _: u16, _: bool) {}

    fn send(&mut self, _: usize, slot: u16, len: u32) {
        assert_eq!(self.free.pop_front(), Some(slot));
        self.under_way.push(slot);
        let body = &self.bodies.borrow()[usize::from(slot)];
        self.unseen.push(body[..len as usize].to_vec());
    }

    fn send_filled(&mut self, _: usize, _: u32, _: u32) -> u32 {
        0
    }

    fn flush(&mut self, _: usize) {
        self.wire.append(&mut self.unseen);
    }

    fn count_full(&mut self, _: usize) {}
}

impl Receive for Fake {
    type Batch = Vec<Vec<u8>>;

    fn batch(&self, _: usize) -> Self::Batch {
        Vec::new()
    }

    fn ready(&mut self, _: usize) -> bool {
        !self.waiting.is_empty()
    }

    fn poll(&mut self, _: usize, batch: &mut Self::Batch, most: usize) -> usize {
        while batch.len() < most && self.posted > 0 {
            let Some(frame) = self.waiting.pop_front() else { break };
            self.posted -= 1;
            batch.push(frame);
        }
        batch.len()
    }

    fn bytes(batch: &Self::Batch) -> u64 {
        batch.iter().map(|frame| frame.len() as u64).sum()
    }

    fn frame_len(batch: &Self::Batch, at: usize) -> usize {
        batch[at].len()
    }

    fn read(&self, _: usize, batch: &Self::Batch, at: usize, bytes: &mut [u8]) -> usize {
        let len = batch[at].len().min(bytes.len());
        bytes[..len].copy_from_slice(&batch[at][..len]);
        len
    }

    fn checksum_pending(&self, _: usize, _: &Self::Batch, _: usize) -> bool {
        false
    }

    fn release(&mut self, lane: usize, batch: &mut Self::Batch) {
        self.release_first(lane, batch, batch.len());
    }

    fn release_first(&mut self, _: usize, batch: &mut Self::Batch, count: usize) {
        self.posted += u16::try_from(batch.drain(..count).count()).unwrap();
    }

    fn posted(&self, _: usize) -> u16 {
        self.posted
    }
}

impl Wait for Fake {
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError> {
        let prepared = self.prepare_wait(interest)?;
        if let Prepared::Now(wake) = prepared {
            self.finish_wait(0)?;
            return Ok(wake);
        }
        let ready = sys::poll_readable(&self.watched(), Some(timeout)).unwrap();
        self.finish_wait(ready)
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        if let Some(frame) = self.at_next_arm.take() {
            self.deliver(&frame);
        }
        self.armed = true;
        Ok(match (self.has(interest), self.hung_up) {
            (true, _) => Prepared::Now(Wake::Ready),
            (false, true) => Prepared::Now(Wake::Disconnected),
            (false, false) => Prepared::Sleep(self.limit),
        })
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.gone.as_fd(), self.interrupt.as_fd()]
    }

    fn watched_for_end(&self) -> u64 {
        0
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        self.armed = false;
        if ready & 2 != 0 {
            assert!(self.interrupt.take() > 0, "the interrupt's bit is set");
        }
        Ok(match ready {
            0 => Wake::Timeout,
            1 => Wake::Disconnected,
            _ => Wake::Ready,
        })
    }

    fn reconnect(&mut self, _: Duration) -> Result<(), NicError> {
        *self = Self::new(self.slots(0), self.posted);
        Ok(())
    }
}
