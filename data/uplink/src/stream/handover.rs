//! What the port's thread has read, on its way to the worker: one inbox lies between them.

use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlan_frame::Direction;

use super::read::{FRAMES, Reader, Refused};
use crate::inbox::Inbox;
use crate::thread_control::lock;

/// The place between the two. Its lock is held for exchanges, never while frames are lent.
#[derive(Debug)]
pub(super) struct Handover {
    slot: Mutex<Slot>,
    /// What [`Slot::full`] says, for a look without the lock.
    full: AtomicBool,
    /// The worker sleeps: whoever fills the slot rings.
    worker_sleeps: AtomicBool,
}

#[derive(Debug)]
struct Slot {
    inbox: Inbox,
    refused: Refused,
    full: bool,
    /// The worker has not finished what it took.
    lent: bool,
    /// The thread sleeps until the slot is empty, or until nothing is lent either.
    thread_waits: bool,
}

/// What the worker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// Frames, and what was read and passed over.
    Frames(Refused),
    /// Frames that find no room behind those that the switch holds.
    TooMany,
}

impl Handover {
    pub(super) fn new() -> Self {
        let slot = Slot {
            inbox: Inbox::new(FRAMES),
            refused: Refused::default(),
            full: false,
            lent: false,
            thread_waits: false,
        };
        let (full, worker_sleeps) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { slot: Mutex::new(slot), full, worker_sleeps }
    }

    /// The thread gives what it has read, if the slot is empty.
    pub(super) fn give(&self, reader: &mut Reader) -> bool {
        let mut slot = lock(&self.slot);
        slot.thread_waits = false;
        if slot.full {
            return false;
        }
        slot.refused = reader.exchange(&mut slot.inbox);
        slot.full = true;
        self.full.store(true, Ordering::SeqCst);
        true
    }

    /// After [`Handover::give`]: true if the worker is to be rung for.
    pub(super) fn worker_sleeps(&self) -> bool {
        // Published by `give` before, with a full fence.
        self.worker_sleeps.swap(false, Ordering::SeqCst)
    }

    /// The thread is about to sleep until the worker has taken what lies here, or has `finished` it
    /// too. False if it has.
    pub(super) fn arm_thread(&self, finished: bool) -> bool {
        let mut slot = lock(&self.slot);
        slot.thread_waits = slot.full || finished && slot.lent;
        slot.thread_waits
    }

    /// The worker takes what is there, behind the frames it has; and whether the thread is to be
    /// woken.
    pub(super) fn take(&self, inbox: &mut Inbox) -> (Found, bool) {
        if !self.full.load(Ordering::SeqCst) {
            return (Found::Nothing, false);
        }
        let mut slot = lock(&self.slot);
        if inbox.len() == 0 {
            mem::swap(inbox, &mut slot.inbox);
        } else if !inbox.append(&mut slot.inbox) {
            return (Found::TooMany, false);
        }
        slot.full = false;
        self.full.store(false, Ordering::SeqCst);
        slot.lent = inbox.len() > 0;
        let refused = mem::take(&mut slot.refused);
        (Found::Frames(refused), mem::take(&mut slot.thread_waits))
    }

    /// The worker has finished all that it took. True if the thread is to be woken.
    pub(super) fn finished(&self) -> bool {
        let mut slot = lock(&self.slot);
        slot.lent = false;
        mem::take(&mut slot.thread_waits)
    }

    /// The worker is about to sleep. True if there is something for it.
    pub(super) fn arm_worker(&self) -> bool {
        self.worker_sleeps.store(true, Ordering::SeqCst);
        self.full.load(Ordering::SeqCst)
    }

    /// The worker is awake.
    pub(super) fn disarm_worker(&self) {
        self.worker_sleeps.store(false, Ordering::Relaxed);
    }

    /// Drops what nobody has taken.
    pub(super) fn lose(&self, input: &Direction) {
        let mut slot = lock(&self.slot);
        slot.inbox.lose(input);
        (slot.full, slot.refused) = (false, Refused::default());
        self.full.store(false, Ordering::SeqCst);
    }
}
