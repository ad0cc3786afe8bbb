//! Why a command was refused.

use super::dma::DmaError;
use super::irqs::IrqError;
use super::version::VersionError;
use super::wire::Command;

/// Why a command was refused.
#[derive(Debug, thiserror::Error)]
pub enum CommandRefusal {
    /// A command that we do not know, or do not offer.
    #[error("command {0} is not supported")]
    Unknown(u16),
    /// A body of a length this command cannot have.
    #[error("{} cannot have a body of {size} bytes", command.name())]
    BodySize {
        /// The command.
        command: Command,
        /// Bytes that came.
        size: usize,
    },
    /// Too many descriptors, or too few.
    #[error("{} cannot have {count} descriptors", command.name())]
    FdCount {
        /// The command.
        command: Command,
        /// Descriptors that came.
        count: usize,
    },
    /// VERSION comes first, once, and wants a reply.
    #[error("{} out of order: VERSION comes first, and once", .0.name())]
    Order(Command),
    /// A version or capabilities that we cannot agree on.
    #[error("VERSION failed")]
    Version(#[from] VersionError),
    /// The room for the reply is too small.
    #[error("{} needs more room for its reply than an argsz of {argsz}", command.name())]
    Argsz {
        /// The command.
        command: Command,
        /// Its value.
        argsz: u32,
    },
    /// No such region or interrupt.
    #[error("{}: number {index} does not exist", command.name())]
    Index {
        /// The command.
        command: Command,
        /// What was asked for.
        index: u32,
    },
    /// An access outside its region, or longer than agreed.
    #[error("{count} bytes at {offset:#x} of region {region} are outside the region or too many")]
    Access {
        /// The region's number.
        region: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        count: u32,
    },
    /// Memory.
    #[error("the DMA region was refused")]
    Dma(#[from] DmaError),
    /// Interrupts.
    #[error("DEVICE_SET_IRQS failed")]
    Irqs(#[from] IrqError),
}

impl CommandRefusal {
    /// True if it answers a question that good clients ask: whether there is migration, or
    /// interrupts of other kinds.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        /// DEVICE_FEATURE
        const FEATURE: u16 = 16;
        matches!(self, Self::Unknown(FEATURE) | Self::Index { command: Command::GetIrqInfo, .. })
    }

    /// The error number for the client.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Unknown(_) => libc::ENOTSUP,
            Self::Dma(error) => error.errno(),
            _ => libc::EINVAL,
        }
    }
}
