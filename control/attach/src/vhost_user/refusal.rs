//! Why a request was refused.

use super::inflight::InflightError;
use super::virtqueue_error::VirtqueueError;
use super::wire::Request;
use crate::eventfd::EventFdError;
use crate::memory::MemoryError;

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RequestRefusal {
    #[error("request {0} is not supported")]
    Unknown(u32),
    #[error("{} cannot have a body of {size} bytes", request.name())]
    BodySize { request: Request, size: usize },
    #[error("{} cannot have {count} descriptors", request.name())]
    FdCount { request: Request, count: usize },
    #[error("{} needs a protocol feature that was not negotiated", .0.name())]
    NotNegotiated(Request),
    #[error("features {0:#x} were not offered")]
    Features(u64),
    #[error("features cannot change while virtqueues are started")]
    RingsStarted,
    #[error(
        "a memory table of {regions} regions does not fit its {fds} descriptors and {size} bytes"
    )]
    Table { regions: u32, fds: usize, size: usize },
    #[error("an MTU of {0} is not possible")]
    Mtu(u64),
    #[error("{0:#x} is not a device status")]
    Status(u64),
    #[error("{} failed", request.name())]
    Memory { request: Request, source: MemoryError },
    #[error("{} failed", request.name())]
    Ring { request: Request, source: VirtqueueError },
    #[error("the inflight region was refused")]
    Inflight(#[from] InflightError),
    #[error("a descriptor cannot be used")]
    EventFd(#[from] EventFdError),
}

impl RequestRefusal {
    /// True if a virtqueue is in memory that the front end did not announce: most likely its user
    /// forgot to have the memory shared.
    pub fn is_unshared(&self) -> bool {
        matches!(self, Self::Ring { source: VirtqueueError::Address { .. }, .. })
    }
}
