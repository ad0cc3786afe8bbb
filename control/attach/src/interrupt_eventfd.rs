//! An interrupt of a guest: an eventfd that its VMM handed over, and that we write to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vmlan_nic::Interrupt;

use crate::interrupt_cost::{InterruptCost, SystemClocks, write};
use crate::irq_limit::IrqLimit;

/// Longest wait for those who write to an interrupt. The watchdog ends their writes long before.
const WRITERS: Duration = Duration::from_secs(1);
/// Time between two looks whether somebody does.
const LOOK: Duration = Duration::from_micros(50);

#[derive(Debug, Default)]
struct Line {
    fd: Option<Arc<File>>,
    held: bool,
    pending: bool,
}

/// Drops what is or has an interrupt's descriptor, once nobody else has it. For a port's own
/// thread, without locks: to close it as the last takes as long as the crowd is large that watches
/// it, and a worker that is just writing to it must not be that one.
pub fn drop_last<T>(old: Arc<T>) {
    let end = Instant::now() + WRITERS;
    while Arc::strong_count(&old) > 1 && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
}

/// One interrupt. The descriptor may be exchanged while its virtqueue or NIC runs: VMMs do so to
/// mask it.
#[derive(Debug, Default)]
pub struct InterruptEventFd {
    line: Mutex<Line>,
    /// There is a descriptor: for who need not know which.
    connected: AtomicBool,
    raised: AtomicU64,
    stuck: AtomicBool,
    cost: Arc<InterruptCost>,
    /// The port's limit of interrupts, and the number of this interrupt there.
    limit: Option<(Arc<IrqLimit>, u8)>,
}

impl InterruptEventFd {
    /// An interrupt without a descriptor. What its writes cost is added to `cost`.
    pub fn new(cost: Arc<InterruptCost>) -> Self {
        Self { cost, ..Self::default() }
    }

    /// An interrupt that `limit` may hold back, as its number `who`.
    pub fn limited(cost: Arc<InterruptCost>, limit: Arc<IrqLimit>, who: u8) -> Self {
        Self { cost, limit: Some((limit, who)), ..Self::default() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends interrupts to `fd` from now on, or to nobody if it is `None`. An interrupt that hung
    /// stays stuck with a new descriptor too: otherwise a peer could park one worker after the
    /// other.
    ///
    /// For the port's own thread, without locks: see [`drop_last`].
    pub fn set(&self, fd: Option<OwnedFd>) {
        let fd = fd.map(|fd| Arc::new(fd.into()));
        let mut line = self.line();
        self.connected.store(fd.is_some(), Ordering::SeqCst);
        let old = std::mem::replace(&mut line.fd, fd);
        drop(line);
        old.into_iter().for_each(drop_last);
    }

    /// True if interrupts have somewhere to go.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    /// Its descriptor.
    pub fn fd(&self) -> Option<Arc<File>> {
        self.line().fd.clone()
    }

    /// Only notes interrupts until [`InterruptEventFd::release`]. A write can hang until the
    /// thread's timer ends it. The attach thread must not write while it has a port's locks, or the
    /// workers that wait for them would hang too.
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

    pub fn raised(&self) -> u64 {
        self.raised.load(Ordering::Relaxed)
    }

    /// True once a write hung or failed: the peer has broken the descriptor, and its port must be
    /// stopped.
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

impl Interrupt for InterruptEventFd {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_worker_does_not_wait_until_an_exchanged_descriptor_is_closed() {
        let closes_while_it_raises = || {
            // As an eventfd with a crowd of watches, it takes long to close.
            let (slow, far) = vmlan_harness::lingering_socket(Duration::from_secs(3600)).unwrap();
            let call = InterruptEventFd::default();
            call.set(Some(slow.into()));
            std::thread::scope(|s| {
                let exchange = s.spawn(|| call.set(None));
                while call.line().fd.is_some() {
                    std::thread::yield_now();
                }
                assert!(call.raise());
                // It is being closed, until the far end goes.
                let closes = !exchange.is_finished();
                drop(far);
                closes
            })
        };
        // Who closes it does not wait while the child of another test, which has just been forked,
        // has a copy.
        assert!((0..100).any(|_| closes_while_it_raises()));
    }

    #[test]
    fn a_worker_is_not_the_last_to_close_an_exchanged_descriptor() {
        let call = InterruptEventFd::default();
        call.set(Some(crate::eventfd::new().unwrap()));
        let writing = call.target().unwrap();
        let watched = Arc::downgrade(&writing);
        let (tell, told) = channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                call.set(None);
                tell.send(()).unwrap();
            });
            while call.line().fd.is_some() {
                std::thread::yield_now();
            }
            assert!(told.try_recv().is_err(), "it waits for who writes");
            assert_eq!(watched.strong_count(), 2, "and has it still");
            drop(writing);
            told.recv().unwrap();
        });
        assert_eq!(watched.strong_count(), 0);
    }
}
