//! Why a request was refused.

use super::inflight::InflightError;
use super::virtqueue_error::VirtqueueError;
use super::wire::Request;
use crate::eventfd::EventFdError;
use crate::memory::MemoryError;

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestRefusal {
    /// A request that we do not know, or did not offer.
    #[error("request {0} is not supported")]
    Unknown(u32),
    /// A body of a length this request cannot have.
    #[error("{} cannot have a body of {size} bytes", request.name())]
    BodySize {
        /// The request.
        request: Request,
        /// Bytes that came.
        size: usize,
    },
    /// Too many descriptors, or too few.
    #[error("{} cannot have {count} descriptors", request.name())]
    FdCount {
        /// The request.
        request: Request,
        /// Descriptors that came.
        count: usize,
    },
    /// A request that needs a protocol feature that was not negotiated.
    #[error("{} needs a protocol feature that was not negotiated", .0.name())]
    NotNegotiated(Request),
    /// Bits that were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// Features that change under a running virtqueue.
    #[error("features cannot change while virtqueues are started")]
    RingsStarted,
    /// A number of regions that does not fit the body or the descriptors.
    #[error(
        "a memory table of {regions} regions does not fit its {fds} descriptors and {size} bytes"
    )]
    Table {
        /// Regions announced.
        regions: u32,
        /// Descriptors that came.
        fds: usize,
        /// Bytes that came.
        size: usize,
    },
    /// An MTU outside what IPv4 needs and a frame carries.
    #[error("an MTU of {0} is not possible")]
    Mtu(u64),
    /// A status of more than 8 bits.
    #[error("{0:#x} is not a device status")]
    Status(u64),
    /// The memory or the log.
    #[error("{} failed", request.name())]
    Memory {
        /// The request.
        request: Request,
        /// Why.
        #[source]
        source: MemoryError,
    },
    /// A virtqueue.
    #[error("{} failed", request.name())]
    Ring {
        /// The request.
        request: Request,
        /// Why.
        #[source]
        source: VirtqueueError,
    },
    /// The inflight region.
    #[error("the inflight region was refused")]
    Inflight(#[from] InflightError),
    /// A descriptor.
    #[error("a descriptor cannot be used")]
    EventFd(#[from] EventFdError),
}

impl RequestRefusal {
    /// True if a virtqueue is in memory that the front end did not announce: most likely its user
    /// forgot to have the memory shared.
    #[must_use]
    pub fn is_unshared(&self) -> bool {
        matches!(self, Self::Ring { source: VirtqueueError::Address { .. }, .. })
    }
}
