//! An interrupt of a guest: an eventfd that its VMM handed over, and that we write to.

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

/// One interrupt. The descriptor may be exchanged while its virtqueue or NIC runs: VMMs do so to
/// mask it.
#[derive(Debug, Default)]
pub struct Call {
    line: Mutex<Line>,
    raised: AtomicU64,
    stuck: AtomicBool,
    cost: Arc<InterruptCost>,
    /// The port's limit of interrupts, and the number of this interrupt there.
    limit: Option<(Arc<IrqLimit>, u8)>,
}

impl Call {
    /// An interrupt without a descriptor. What its writes cost is added to `cost`.
    #[must_use]
    pub fn new(cost: Arc<InterruptCost>) -> Self {
        Self { cost, ..Self::default() }
    }

    /// An interrupt that `limit` may hold back, as its number `who`.
    #[must_use]
    pub fn limited(cost: Arc<InterruptCost>, limit: Arc<IrqLimit>, who: u8) -> Self {
        Self { cost, limit: Some((limit, who)), ..Self::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends interrupts to `fd` from now on, or to nobody if it is `None`. An interrupt that hung
    /// stays stuck with a new descriptor too: otherwise a peer could park one worker after the
    /// other.
    pub fn set(&self, fd: Option<OwnedFd>) {
        self.line().fd = fd.map(|fd| Arc::new(fd.into()));
    }

    /// Only notes interrupts until [`Call::release`]. A write can hang until the thread's timer
    /// ends it. The attach thread must not write while it has a port's locks, or the workers that
    /// wait for them would hang too.
    pub fn hold(&self) {
        self.line().held = true;
    }

    /// Raises the interrupt that was noted, if there was one. Call it without locks.
    pub fn release(&self) {
        let mut line = self.line();
        line.held = false;
        let pending = std::mem::take(&mut line.pending);
        drop(line);
        if pending {
            self.raise();
        }
    }

    /// Delivers an interrupt that the limit held back. Call it without locks.
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

    /// True once a write hung or failed: the peer has broken the descriptor, and its port must be
    /// stopped.
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

    /// The lock is not held meanwhile: who exchanges the descriptor must not wait for the write.
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
        // An interrupt that reaches nobody, or not yet, does not count against the limit.
        let Some(fd) = self.target() else { return true };
        let admitted = self.limit.as_ref().is_none_or(|(limit, who)| limit.admits(*who));
        if admitted {
            self.write(&fd);
        }
        admitted
    }
}
