//! A NIC of one lane whose other side is the test: it interrupts only for what the driver wishes
//! for, and has room for no frame.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vmlan_driver::nic::{Connected, Info, NicError, Receive, Registers, Transmit, Wait};
use vmlan_driver::stats::QueueStats;
use vmlan_driver::wait::{Interest, Prepared, Wake};
use vmlan_transport::Mac;
use vmlan_transport::sys::EventFd;

const SLOTS: u16 = 4;

/// The other side.
#[derive(Debug)]
pub(super) struct Wire {
    frames: Mutex<VecDeque<Vec<u8>>>,
    wish: Mutex<Option<Interest>>,
    interrupt: EventFd,
}

impl Wire {
    pub(super) fn deliver(&self, frame: &[u8]) {
        self.frames.lock().unwrap().push_back(frame.to_vec());
        if self.wish().is_some_and(|wish| wish.rx) {
            self.interrupt.signal();
        }
    }

    /// What the driver sleeps for, if it does.
    pub(super) fn wish(&self) -> Option<Interest> {
        *self.wish.lock().unwrap()
    }
}

#[derive(Debug)]
pub(super) struct Quiet(pub(super) Arc<Wire>);

impl Quiet {
    pub(super) fn new() -> Self {
        let interrupt = EventFd::new().unwrap();
        Self(Arc::new(Wire { frames: Mutex::default(), wish: Mutex::default(), interrupt }))
    }
}

impl Info for Quiet {
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
        true
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

impl Transmit for Quiet {
    fn slots(&self, _: usize) -> u16 {
        SLOTS
    }

    fn room(&self, _: usize) -> usize {
        2048
    }

    fn free_slots(&self, _: usize) -> u16 {
        0
    }

    fn under_way(&self, _: usize) -> u16 {
        SLOTS
    }

    fn reap(&mut self, _: usize) -> u16 {
        0
    }

    fn next(&mut self, _: usize) -> Option<u16> {
        None
    }

    fn slot_ahead(&self, _: usize, _: u16) -> u16 {
        unreachable!("no slot is free")
    }

    fn write(&self, _: usize, _: u16, _: usize, _: &[u8]) {
        unreachable!("no slot is free")
    }

    fn offload_checksum(&mut self, _: usize, _: u16, _: bool) {}

    fn send(&mut self, _: usize, _: u16, _: u32) {
        unreachable!("no slot is free")
    }

    fn send_filled(&mut self, _: usize, _: u32, _: u32) -> u32 {
        0
    }

    fn flush(&mut self, _: usize) {}

    fn count_full(&mut self, _: usize) {}
}

impl Receive for Quiet {
    type Batch = Vec<Vec<u8>>;

    fn batch(&self, _: usize) -> Self::Batch {
        Vec::new()
    }

    fn ready(&mut self, _: usize) -> bool {
        !self.0.frames.lock().unwrap().is_empty()
    }

    fn poll(&mut self, _: usize, batch: &mut Self::Batch, most: usize) -> usize {
        let mut frames = self.0.frames.lock().unwrap();
        let count = frames.len().min(most - batch.len());
        batch.extend(frames.drain(..count));
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

    fn release(&mut self, _: usize, batch: &mut Self::Batch) {
        batch.clear();
    }

    fn release_first(&mut self, _: usize, batch: &mut Self::Batch, count: usize) {
        batch.drain(..count);
    }

    fn posted(&self, _: usize) -> u16 {
        SLOTS
    }
}

impl Wait for Quiet {
    fn wait(&mut self, _: Interest, _: Duration) -> Result<Wake, NicError> {
        unreachable!("it sleeps on the descriptor")
    }

    fn prepare_wait(&mut self, interest: Interest) -> Result<Prepared, NicError> {
        *self.0.wish.lock().unwrap() = Some(interest);
        let now = interest.rx && self.ready(0);
        Ok(if now { Prepared::Now(Wake::Ready) } else { Prepared::Sleep(Duration::MAX) })
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.0.interrupt.as_fd()]
    }

    fn watched_for_end(&self) -> u64 {
        0
    }

    fn finish_wait(&mut self, ready: u64) -> Result<Wake, NicError> {
        *self.0.wish.lock().unwrap() = None;
        if ready != 0 {
            self.0.interrupt.take();
        }
        Ok(if ready == 0 { Wake::Timeout } else { Wake::Ready })
    }

    fn reconnect(&mut self, _: Duration) -> Result<(), NicError> {
        Ok(())
    }
}
