//! Why a port could not be made.

use std::io;

use crate::socket::SocketError;
use crate::vhost_user::MAX_PAIRS;

/// Why a port could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No process for what its peers send.
    #[error("cannot start a keeper for the port")]
    Keeper(#[source] io::Error),
    /// The port's thread, or a descriptor that it waits for.
    #[error("cannot start the port's thread")]
    Thread(#[source] io::Error),
    /// More queue pairs than a port can have.
    #[error("{0} queue pairs are more than the {MAX_PAIRS} a port can have")]
    Queues(u16),
    /// Two ways to ring that exclude each other.
    #[error(
        "csb=on does not go with doorbell=mapped: a kick must be heard, and a store to a mapped \
         register is heard by nobody: leave one out"
    )]
    CsbMapped,
    /// A model whose registers cannot be shared memory.
    #[error(
        "doorbell=mapped does not go with model={0}: its 256 bytes of registers are one page, and \
         a store to those beside the doorbell (interrupt status, commands) must be heard: leave it \
         out, or write model=e1000"
    )]
    NoMapped(&'static str),
    /// A chip without rings.
    #[error(
        "csb=on does not go with plus=off: a plain RTL8139 has no descriptor rings whose indexes \
         could be shared: leave one out"
    )]
    CsbPlain,
    /// The memory that registers are in.
    #[error("cannot make the memory for its registers")]
    Pages(#[source] io::Error),
}
