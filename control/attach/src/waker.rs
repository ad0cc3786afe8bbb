//! How others wake a port's thread.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::eventfd;

/// Wakes the attach thread: to stop, or to look at what a worker found.
#[derive(Debug)]
pub struct Waker {
    fd: File,
    stop: AtomicBool,
}

impl Waker {
    /// A waker that has not been used.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { fd: eventfd::new()?.into(), stop: AtomicBool::new(false) })
    }

    /// The descriptor to poll. Nobody else has it, so a write to it cannot hang.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn wake(&self) {
        let _ = (&self.fd).write(&1u64.to_ne_bytes());
    }

    /// Tells the thread to end; the descriptor stays readable from now on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// True if the thread is to end; takes nothing.
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes a wake-up; true if the thread is to end.
    pub fn is_stopped(&self) -> bool {
        if self.stop.load(Ordering::Acquire) {
            return true;
        }
        let _ = (&self.fd).read(&mut [0; 8]);
        self.stop.load(Ordering::Acquire)
    }
}
