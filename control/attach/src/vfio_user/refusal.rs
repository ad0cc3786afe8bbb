//! Why a command was refused.

use super::dma::DmaError;
use super::irqs::IrqError;
use super::version::VersionError;
use super::wire::Command;

/// Why a command was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CommandRefusal {
    #[error("command {0} is not supported")]
    Unknown(u16),
    #[error("{} cannot have a body of {size} bytes", command.name())]
    BodySize { command: Command, size: usize },
    #[error("{} cannot have {count} descriptors", command.name())]
    FdCount { command: Command, count: usize },
    #[error("{} out of order: VERSION comes first, and once", .0.name())]
    Order(Command),
    #[error("VERSION failed")]
    Version(#[from] VersionError),
    #[error("{} needs more room for its reply than an argsz of {argsz}", command.name())]
    Argsz { command: Command, argsz: u32 },
    #[error("{}: number {index} does not exist", command.name())]
    Index { command: Command, index: u32 },
    #[error("{count} bytes at {offset:#x} of region {region} are outside the region or too many")]
    Access { region: u32, offset: u64, count: u32 },
    #[error("the DMA region was refused")]
    Dma(#[from] DmaError),
    #[error("DEVICE_SET_IRQS failed")]
    Irqs(#[from] IrqError),
}

impl CommandRefusal {
    /// True if it answers a question that good clients ask: whether there is migration, or
    /// interrupts of other kinds.
    pub fn is_answer(&self) -> bool {
        /// DEVICE_FEATURE
        const FEATURE: u16 = 16;
        matches!(self, Self::Unknown(FEATURE) | Self::Index { command: Command::GetIrqInfo, .. })
    }

    pub fn errno(&self) -> i32 {
        match self {
            Self::Unknown(_) => libc::ENOTSUP,
            Self::Dma(error) => error.errno(),
            _ => libc::EINVAL,
        }
    }
}
