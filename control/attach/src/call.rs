//! An interrupt: an eventfd of the front end's that is written to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_nic::Interrupt;

use crate::interrupt_cost::{InterruptCost, SystemClocks, write};
use crate::irq_limit::IrqLimit;

#[derive(Debug, Default)]
struct Line {
    fd: Option<Arc<File>>,
    held: bool,
    pending: bool,
}

/// The interrupt of one ring. The descriptor may be exchanged while the ring runs: VMMs do so to
/// mask it.
#[derive(Debug, Default)]
pub struct Call {
    line: Mutex<Line>,
    raised: AtomicU64,
    stuck: AtomicBool,
    cost: Arc<InterruptCost>,
    /// The port's limit, and this one's number there.
    limit: Option<(Arc<IrqLimit>, u8)>,
}

impl Call {
    /// One of the port that has this cost.
    #[must_use]
    pub fn new(cost: Arc<InterruptCost>) -> Self {
        Self { cost, ..Self::default() }
    }

    /// One that the port's limit holds for, as number `who`.
    #[must_use]
    pub fn limited(cost: Arc<InterruptCost>, limit: Arc<IrqLimit>, who: u8) -> Self {
        Self { cost, limit: Some((limit, who)), ..Self::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on interrupts go to `fd`; to nobody if `None`. One that hung stays stuck whatever
    /// it is given: else a front end could park one worker after the other.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.line().fd = fd.map(|fd| Arc::new(fd.into()));
    }

    /// Only notes interrupts until [`Call::release`]. While the attach thread has a port's locks it
    /// must make no write that could hang until its timer ends it, or it would take the workers
    /// that wait for them along.
    pub fn hold(&self) {
        self.line().held = true;
    }

    /// Raises what was noted. Call without locks.
    pub fn release(&self) {
        let mut line = self.line();
        line.held = false;
        let pending = std::mem::take(&mut line.pending);
        drop(line);
        if pending {
            self.raise();
        }
    }

    /// Delivers what the limit held back. Call without locks.
    pub fn deliver(&self) {
        if let Some(fd) = self.target() {
            self.write(&fd);
        }
    }

    /// Interrupts raised so far.
    #[must_use]
    pub fn raised(&self) -> u64 {
        self.raised.load(Ordering::Relaxed)
    }

    /// True once a write hung or failed: the front end has broken the descriptor, and its port must
    /// be stopped.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    #[cold]
    fn break_off(&self) {
        self.stuck.store(true, Ordering::Relaxed);
        self.cost.set_broken();
    }

    /// The descriptor to write to now; `None` if there is none, or the interrupt was noted.
    fn target(&self) -> Option<Arc<File>> {
        if self.is_stuck() {
            return None;
        }
        let mut line = self.line();
        line.pending |= line.held;
        if line.held { None } else { line.fd.clone() }
    }

    /// The lock is not held: exchanging the descriptor must not wait for it.
    fn write(&self, fd: &File) {
        self.raised.fetch_add(1, Ordering::Relaxed);
        let (done, tolerable) = self.cost.timed(&SystemClocks, || write(fd));
        // WouldBlock: the counter is full, so an interrupt is pending already.
        let failed = done.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock);
        if failed || !tolerable {
            self.break_off();
        }
    }
}

impl Interrupt for Call {
    fn raise(&self) -> bool {
        // One that reaches nobody, or not yet, uses up nothing of the limit.
        let Some(fd) = self.target() else { return true };
        let admitted = self.limit.as_ref().is_none_or(|(limit, who)| limit.admits(*who));
        if admitted {
            self.write(&fd);
        }
        admitted
    }
}
