//! Why a virtqueue was not set up as asked.

use vmlan_nic::virtio::Fault;

use super::inflight::InflightError;
use super::queue_index::QueueIndex;
use crate::eventfd::EventFdError;
use crate::memory::UNSHARED;

/// Why a ring was not set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum VirtqueueError {
    /// No such ring.
    #[error("there is no ring {index}: this port has {rings}")]
    NoRing {
        /// The number asked for.
        index: u32,
        /// How many there are.
        rings: usize,
    },
    /// It must be stopped for that.
    #[error("ring {0} is started: stop it with GET_VRING_BASE first")]
    Started(QueueIndex),
    /// A base beyond 16 bits (packed rings use more; we do not offer them).
    #[error("ring base {0} has more than 16 bits")]
    Base(u32),
    /// A size no ring has.
    #[error("ring size {0} is no power of two from 1 to 32768")]
    Size(u32),
    /// The addresses do not lie in any region. A VMM announces no region at all for memory that it
    /// does not share.
    #[error("ring {index} is at {addr:#x}, outside the memory that was announced: {UNSHARED}")]
    Address {
        /// The ring.
        index: QueueIndex,
        /// The first address that was not found.
        addr: u64,
    },
    /// The model refused it.
    #[error("ring {index} cannot start")]
    Fault {
        /// The ring.
        index: QueueIndex,
        /// Why.
        #[source]
        source: Fault,
    },
    /// No doorbell: such a ring would have to be polled for ever.
    #[error("ring {0} comes without a kick descriptor; polled rings are not supported")]
    NoKick(QueueIndex),
    /// The descriptor that should ring or be rung.
    #[error("ring {index}'s descriptor is of no use")]
    EventFd {
        /// The ring.
        index: QueueIndex,
        /// Why.
        #[source]
        source: EventFdError,
    },
    /// Its inflight region.
    #[error("ring {index} cannot start")]
    Inflight {
        /// The ring.
        index: QueueIndex,
        /// Why.
        #[source]
        source: InflightError,
    },
}
