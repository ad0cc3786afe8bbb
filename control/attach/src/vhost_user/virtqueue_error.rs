//! Why a virtqueue was not set up as asked.

use vmlan_nic::virtio::Fault;

use super::inflight::InflightError;
use super::queue_index::QueueIndex;
use crate::eventfd::EventFdError;
use crate::memory::UNSHARED;

/// Why a virtqueue was not set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum VirtqueueError {
    /// The virtqueue does not exist.
    #[error("virtqueue {index} does not exist: this port has {rings}")]
    NoRing {
        /// The number asked for.
        index: u32,
        /// How many there are.
        rings: usize,
    },
    /// It must be stopped for that.
    #[error("virtqueue {0} is started: stop it with GET_VRING_BASE first")]
    Started(QueueIndex),
    /// A base beyond 16 bits (packed virtqueues use more; we do not offer them).
    #[error("a virtqueue's base has 16 bits: {0} is too large")]
    Base(u32),
    /// A size that no virtqueue has.
    #[error("virtqueue size {0} is not a power of two from 1 to 32768")]
    Size(u32),
    /// The addresses do not lie in any region. A VMM announces no region at all for memory that it
    /// does not share.
    #[error("virtqueue {index} is at {addr:#x}, outside the memory that was announced: {UNSHARED}")]
    Address {
        /// The virtqueue.
        index: QueueIndex,
        /// The first address that was not found.
        addr: u64,
    },
    /// The NIC refused it.
    #[error("virtqueue {index} cannot start")]
    Fault {
        /// The virtqueue.
        index: QueueIndex,
        /// Why.
        #[source]
        source: Fault,
    },
    /// No doorbell: such a virtqueue would have to be polled for ever.
    #[error("virtqueue {0} has no kick descriptor: polled virtqueues are not supported")]
    NoKick(QueueIndex),
    /// The descriptor of its doorbell or interrupt.
    #[error("the descriptor of virtqueue {index} cannot be used")]
    EventFd {
        /// The virtqueue.
        index: QueueIndex,
        /// Why.
        #[source]
        source: EventFdError,
    },
    /// Its doorbell cannot be watched.
    #[error("the doorbell of virtqueue {index} cannot be watched")]
    Watch {
        /// The virtqueue.
        index: QueueIndex,
        /// That of epoll.
        #[source]
        source: std::io::Error,
    },
    /// Its inflight region.
    #[error("virtqueue {index} cannot start")]
    Inflight {
        /// The virtqueue.
        index: QueueIndex,
        /// Why.
        #[source]
        source: InflightError,
    },
}
