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
    #[error("{} with a body of {size} bytes", request.name())]
    BodySize {
        /// The request.
        request: Request,
        /// Bytes that came.
        size: usize,
    },
    /// Too many descriptors, or too few.
    #[error("{} with {count} descriptors", request.name())]
    FdCount {
        /// The request.
        request: Request,
        /// Descriptors that came.
        count: usize,
    },
    /// A request that needs a protocol feature that was not negotiated.
    #[error("{} without its protocol feature", .0.name())]
    NotNegotiated(Request),
    /// Bits that were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// Features changed under a running ring.
    #[error("features changed while rings are started")]
    RingsStarted,
    /// A count that does not fit what came.
    #[error("a memory table of {regions} regions with {fds} descriptors and {size} bytes")]
    Table {
        /// Regions announced.
        regions: u32,
        /// Descriptors that came.
        fds: usize,
        /// Bytes that came.
        size: usize,
    },
    /// No such MTU.
    #[error("an MTU of {0}")]
    Mtu(u64),
    /// No such status.
    #[error("a device status of {0:#x}")]
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
    /// A ring.
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
    #[error("a descriptor is of no use")]
    EventFd(#[from] EventFdError),
}

impl RequestRefusal {
    /// True if a ring is in memory that the front end did not announce: most likely its user forgot
    /// to have the memory shared.
    #[must_use]
    pub fn is_unshared(&self) -> bool {
        matches!(self, Self::Ring { source: VirtqueueError::Address { .. }, .. })
    }
}
