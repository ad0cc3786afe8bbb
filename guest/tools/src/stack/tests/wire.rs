//! Two NICs and the wire between them, in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vmlan_driver::nic::{Connected, Info, NicError, Receive, Registers, Transmit, Wait};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::wait::{Interest, Prepared, Wake};
use vmlan_transport::Mac;
use vmlan_transport::sys::{self, EventFd};

const SLOTS: u16 = 64;
/// Frames that one direction holds; more are lost.
const CAPACITY: usize = 2048;

/// What happens to each frame on the way: may change it, or lose it with `false`.
pub(crate) type Fate = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

struct Way {
    frames: Mutex<VecDeque<Vec<u8>>>,
    bell: EventFd,
}

/// One end.
pub(crate) struct Wire {
    to: Arc<Way>,
    from: Arc<Way>,
    slots: RefCell<Vec<Vec<u8>>>,
    next: u16,
    out: Vec<Vec<u8>>,
    fate: Fate,
    stats: QueueStats,
    gone: Arc<AtomicBool>,
    reconnects: u64,
}

/// A wire, whose first end's frames meet `fate`.
pub(crate) fn pair(fate: Fate) -> (Wire, Wire) {
    let way = || Arc::new(Way { frames: Mutex::default(), bell: EventFd::new().unwrap() });
    let (there, back) = (way(), way());
    let end = |to: &Arc<Way>, from: &Arc<Way>, fate| Wire {
        to: Arc::clone(to),
        from: Arc::clone(from),
        slots: RefCell::new(vec![vec![0; 2048]; SLOTS.into()]),
        next: 0,
        out: Vec::new(),
        fate,
        stats: QueueStats::default(),
        gone: Arc::default(),
        reconnects: 0,
    };
    (end(&there, &back, fate), end(&back, &there, Box::new(|_| true)))
}

impl Wire {
    /// Set it, and the switch is gone until somebody connects again.
    pub(super) fn gone(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.gone)
    }

    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.fate = fate;
    }

    fn is_empty(&self) -> bool {
        self.from.frames.lock().unwrap().is_empty()
    }
}

impl Info for Wire {
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
        !self.gone.load(Relaxed)
    }

    fn reconnects(&self) -> u64 {
        self.reconnects
    }

    fn stats(&self) -> QueueStats {
        self.stats
    }

    fn is_sound(&self) -> bool {
        true
    }

    fn registers(&self) -> Option<Registers> {
        None
    }
}

impl Transmit for Wire {
    fn slots(&self, _lane: usize) -> u16 {
        SLOTS
    }

    fn room(&self, _lane: usize) -> usize {
        2048
    }

    fn free_slots(&self, _lane: usize) -> u16 {
        SLOTS - u16::try_from(self.out.len()).unwrap()
    }

    fn under_way(&self, _lane: usize) -> u16 {
        0
    }

    fn reap(&mut self, lane: usize) -> u16 {
        self.flush(lane);
        SLOTS
    }

    fn next(&mut self, lane: usize) -> Option<u16> {
        let free = self.free_slots(lane) > 0;
        free.then_some(self.next).inspect(|_| self.next = (self.next + 1) % SLOTS)
    }

    fn slot_ahead(&self, _lane: usize, ahead: u16) -> u16 {
        (self.next + ahead) % SLOTS
    }

    fn write(&self, _lane: usize, slot: u16, at: usize, bytes: &[u8]) {
        self.slots.borrow_mut()[usize::from(slot)][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn offload_checksum(&mut self, _lane: usize, _slot: u16, _on: bool) {}

    fn send(&mut self, _lane: usize, slot: u16, len: u32) {
        let mut frame = self.slots.borrow()[usize::from(slot)][..len as usize].to_vec();
        if (self.fate)(&mut frame) {
            self.out.push(frame);
        }
    }

    fn send_filled(&mut self, _lane: usize, _count: u32, _len: u32) -> u32 {
        0
    }

    fn flush(&mut self, _lane: usize) {
        if self.out.is_empty() {
            return;
        }
        let mut frames = self.to.frames.lock().unwrap();
        for frame in self.out.drain(..) {
            if frames.len() < CAPACITY {
                frames.push_back(frame);
            }
        }
        self.stats.doorbells += 1;
        self.to.bell.signal();
    }

    fn count_full(&mut self, _lane: usize) {}
}

impl Receive for Wire {
    type Batch = Vec<Vec<u8>>;

    fn batch(&self, _lane: usize) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn ready(&mut self, _lane: usize) -> bool {
        !self.is_empty()
    }

    fn poll(&mut self, _lane: usize, batch: &mut Vec<Vec<u8>>, most: usize) -> usize {
        let mut frames = self.from.frames.lock().unwrap();
        let most = most.min(frames.len());
        batch.extend(frames.drain(..most));
        batch.len()
    }

    fn bytes(batch: &Vec<Vec<u8>>) -> u64 {
        batch.iter().map(|frame| frame.len() as u64).sum()
    }

    fn frame_len(batch: &Vec<Vec<u8>>, at: usize) -> usize {
        batch[at].len()
    }

    fn read(&self, _lane: usize, batch: &Vec<Vec<u8>>, at: usize, bytes: &mut [u8]) -> usize {
        let len = batch[at].len().min(bytes.len());
        bytes[..len].copy_from_slice(&batch[at][..len]);
        len
    }

    fn checksum_pending(&self, _lane: usize, _batch: &Vec<Vec<u8>>, _at: usize) -> bool {
        false
    }

    fn release(&mut self, _lane: usize, batch: &mut Vec<Vec<u8>>) {
        batch.clear();
    }

    fn release_first(&mut self, _lane: usize, batch: &mut Vec<Vec<u8>>, count: usize) {
        batch.drain(..count);
    }

    fn posted(&self, _lane: usize) -> u16 {
        0
    }
}

impl Wait for Wire {
    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, NicError> {
        if let Prepared::Now(wake) = self.prepare_wait(interest)? {
            return Ok(wake);
        }
        if !self.is_connected() {
            return Ok(Wake::Disconnected);
        }
        let ready = sys::poll_readable(&self.watched(), Some(timeout)).unwrap();
        self.finish_wait(ready)
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        let now = interest.tx || !self.is_empty();
        Ok(if now { Prepared::Now(Wake::Ready) } else { Prepared::Sleep(Duration::MAX) })
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.from.bell.as_fd()]
    }

    fn watched_for_end(&self) -> u64 {
        0
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        self.stats.interrupts += self.from.bell.take();
        Ok(if ready > 0 { Wake::Ready } else { Wake::Timeout })
    }

    fn reconnect(&mut self, _patience: Duration) -> Result<(), NicError> {
        self.gone.store(false, Relaxed);
        self.reconnects += 1;
        Ok(())
    }
}
