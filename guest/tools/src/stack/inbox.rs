//! A bounded queue of frames between the driver and what is above it: one thread puts, one takes.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[derive(Debug)]
struct Slot {
    len: usize,
    bytes: Box<[u8]>,
}

/// The slots are made once. Their locks are never waited for: a slot belongs to the putter before
/// `tail` passes it, and to the taker afterwards.
#[derive(Debug)]
pub(super) struct FrameQueue {
    slots: Box<[Mutex<Slot>]>,
    /// Frames taken so far.
    head: AtomicUsize,
    /// Frames put so far.
    tail: AtomicUsize,
}

impl FrameQueue {
    /// Room for so many frames of so many bytes.
    pub(super) fn new(slots: usize, bytes: usize) -> Self {
        let slot = || Mutex::new(Slot { len: 0, bytes: vec![0; bytes].into() });
        Self {
            slots: std::iter::repeat_with(slot).take(slots).collect(),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tail.load(Acquire).wrapping_sub(self.head.load(Acquire))
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.slots.len()
    }

    /// Lets `fill` write a frame and say how long it is; not called, and false, when there is no
    /// room.
    #[inline]
    pub(super) fn put(&self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.is_full() {
            return false;
        }
        let tail = self.tail.load(Relaxed);
        if let Ok(mut slot) = self.slots[tail % self.slots.len()].lock() {
            slot.len = fill(&mut slot.bytes);
        }
        self.tail.store(tail.wrapping_add(1), Release);
        true
    }

    /// Shows the oldest frame to `look` and takes it out; `None` when there is none.
    #[inline]
    pub(super) fn take<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let head = self.head.load(Relaxed);
        if self.tail.load(Acquire) == head {
            return None;
        }
        let result = self.slots[head % self.slots.len()]
            .lock()
            .map(|slot| look(slot.bytes.get(..slot.len).unwrap_or_default()));
        self.head.store(head.wrapping_add(1), Release);
        result.ok()
    }
}
