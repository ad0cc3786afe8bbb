//! The two sides of a port, each behind its lock: the guest's transmit queues and its receive
//! queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlan_nic::virtio::{Fault, Net, QueueState};
use vmlan_ram::Map;

use crate::interrupt_cost::STUCK_INTERRUPT;
use crate::interrupt_eventfd::InterruptEventFd;

/// Locks, whether or not somebody panicked with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One side: a NIC's queues, the map they work on, the interrupts they raise.
#[allow(missing_docs, reason = "the names say it")]
pub struct Side<N> {
    pub net: N,
    /// The map that was given to them.
    pub map: Arc<Map>,
    pub calls: Vec<Arc<InterruptEventFd>>,
}

impl<N: Default> Default for Side<N> {
    fn default() -> Self {
        Self { net: N::default(), map: Arc::default(), calls: Vec::new() }
    }
}

impl<S: QueueState> Side<Net<S>> {
    /// Why this side stands still, if it does.
    pub fn fault(&self) -> Option<PortFault> {
        if self.map.poisoned() {
            return Some(PortFault::Truncated);
        }
        if self.calls.iter().any(|c| c.is_stuck()) {
            return Some(PortFault::StuckCall);
        }
        // A virtqueue that was stopped since is forgiven.
        let fault = self.net.fault().filter(|(queue, _)| self.net.is_started(*queue));
        fault.map(|(queue, fault)| PortFault::Virtqueue { queue, fault })
    }
}

/// Why a port stands still although its front end is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PortFault {
    /// The guest broke a rule. The port works again once the virtqueue is set up afresh.
    #[error("the guest broke queue {queue}: {fault}")]
    Virtqueue { queue: u16, fault: Fault },
    #[error("the guest's memory file was truncated")]
    Truncated,
    /// A write to an interrupt's eventfd failed, hung, or took milliseconds again and again.
    #[error("{STUCK_INTERRUPT}")]
    StuckCall,
}

impl PortFault {
    /// As the port's, if it is one of lane `n` of so many, which numbers its queues by itself.
    #[must_use]
    pub fn of_lane(self, n: u16, lanes: u16) -> Self {
        match self {
            Self::Virtqueue { queue, fault } => {
                let queue = queue.saturating_mul(lanes).saturating_add(n);
                Self::Virtqueue { queue, fault }
            }
            other => other,
        }
    }
}
