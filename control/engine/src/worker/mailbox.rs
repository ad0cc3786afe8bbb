//! How other threads reach a worker: its inbox, its alarm, its pulse.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use vmlan_switch::{PortId, Table};

use super::lock;

/// Frames that may wait for a worker.
const MOST_ERRANDS: usize = 1024;

/// All that a worker needs to know of the switch's ports.
pub(super) struct Assignment {
    pub(super) table: Arc<Table>,
    /// The worker's ports, and their lanes that are its own.
    pub(super) own: Vec<(PortId, Vec<usize>)>,
    pub(super) generation: u64,
}

pub(super) struct Mailbox {
    index: usize,
    alarm: OwnedFd,
    inbox: Mutex<Option<Assignment>>,
    /// Frames of the switch's own, and the ports that they are for.
    errands: Mutex<Vec<(PortId, Vec<u8>)>>,
    /// Something is in the inbox, or doorbells changed, or it is time to stop.
    mail: AtomicBool,
    stopping: AtomicBool,
    taken: Mutex<u64>,
    taken_changed: Condvar,
    /// Counts loops, for the watchdog; odd while asleep.
    pub(super) pulse: AtomicU64,
    /// Sleeps with frames held for a full receiver: wake it when any port rings.
    pub(super) wants_room: AtomicBool,
    /// The kernel's number of the thread, to signal it; 0: it has not started.
    pub(super) thread: AtomicI32,
}

impl Mailbox {
    pub(super) fn new(index: usize) -> io::Result<Arc<Self>> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            index,
            alarm,
            inbox: Mutex::new(None),
            errands: Mutex::default(),
            mail: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            taken: Mutex::new(0),
            taken_changed: Condvar::new(),
            pulse: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
            thread: AtomicI32::new(0),
        }))
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// Ends the worker's sleep. The worker never reads the counter, which is watched
    /// edge-triggered; 2^64 wake-ups do not occur.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
    }

    /// Doorbells changed: look at them.
    pub(super) fn refresh(&self) {
        self.mail.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.refresh();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(super) fn assign(&self, a: Assignment) {
        *lock(&self.inbox) = Some(a);
        self.refresh();
    }

    /// Has the worker send a frame to a port; not if many wait for it already.
    pub(super) fn send(&self, to: PortId, frame: Vec<u8>) {
        let mut errands = lock(&self.errands);
        if errands.len() < MOST_ERRANDS {
            errands.push((to, frame));
        }
        drop(errands);
        self.refresh();
    }

    pub(super) fn take_errands(&self) -> Vec<(PortId, Vec<u8>)> {
        std::mem::take(&mut lock(&self.errands))
    }

    /// True once after each [`Mailbox::refresh`].
    pub(super) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed) && self.mail.swap(false, Ordering::SeqCst)
    }

    /// As [`Mailbox::has_mail`], without taking it: the look before sleeping.
    pub(super) fn mail_waits(&self) -> bool {
        self.mail.load(Ordering::SeqCst)
    }

    pub(super) fn take(&self) -> Option<Assignment> {
        lock(&self.inbox).take()
    }

    /// Called by the worker: it has dropped everything older than `generation`.
    pub(super) fn took(&self, generation: u64) {
        *lock(&self.taken) = generation;
        self.taken_changed.notify_all();
    }

    /// The generation that the worker has taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        *lock(&self.taken)
    }

    /// Called by the control thread: waits until the worker has taken `generation`, or is gone.
    pub(super) fn wait_for(&self, generation: u64) {
        let mut taken = lock(&self.taken);
        while *taken < generation {
            taken =
                self.taken_changed.wait(taken).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
