//! Why a virtqueue was not set up as asked.

use vmlan_nic::virtio::Fault;

use super::inflight::InflightError;
use super::queue_index::QueueIndex;
use crate::eventfd::EventFdError;
use crate::memory::UNSHARED;

/// Why a virtqueue was not set up as asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VirtqueueError {
    #[error("virtqueue {index} does not exist: this port has {rings}")]
    NoRing { index: u32, rings: usize },
    #[error("virtqueue {0} is started: stop it with GET_VRING_BASE first")]
    Started(QueueIndex),
    /// A base beyond 16 bits, where packed virtqueues, which use more, were not negotiated.
    #[error("a split virtqueue's base has 16 bits: {0} is too large")]
    Base(u32),
    #[error("virtqueue size {size} is not {}from 1 to 32768", power(*packed))]
    Size { size: u32, packed: bool },
    /// The addresses do not lie in any region. A VMM announces no region at all for memory that it
    /// does not share.
    #[error("virtqueue {index} is at {addr:#x}, outside the memory that was announced: {UNSHARED}")]
    Address { index: QueueIndex, addr: u64 },
    #[error("virtqueue {index} cannot start")]
    Fault { index: QueueIndex, source: Fault },
    /// No doorbell: such a virtqueue would have to be polled for ever.
    #[error("virtqueue {0} has no kick descriptor: polled virtqueues are not supported")]
    NoKick(QueueIndex),
    #[error("the descriptor of virtqueue {index} cannot be used")]
    EventFd { index: QueueIndex, source: EventFdError },
    #[error("the doorbell of virtqueue {index} cannot be watched")]
    Watch { index: QueueIndex, source: std::io::Error },
    #[error("virtqueue {index} cannot start")]
    Inflight { index: QueueIndex, source: InflightError },
}

/// What a size has to be besides.
fn power(packed: bool) -> &'static str {
    if packed { "" } else { "a power of two " }
}
