//! Why a port could not be made.

use std::io;

use crate::socket::SocketError;
use crate::vhost_user::MAX_PAIRS;

/// Why a port could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AttachError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("cannot start a keeper for the port")]
    Keeper(#[source] io::Error),
    #[error("cannot start the port's thread")]
    Thread(#[source] io::Error),
    #[error("{0} queue pairs are more than the {MAX_PAIRS} a port can have")]
    Queues(u16),
    /// Whoever parses an address says why (`vmlan_config::address::AddressError`).
    #[error("{0} does not go with {1}: leave one out")]
    Contradiction(&'static str, String),
    #[error("cannot make the memory for its registers")]
    Pages(#[source] io::Error),
}
