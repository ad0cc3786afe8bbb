//! UNIX sockets of ports: connecting to one, waiting for one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys;

/// Time between two attempts to reach somebody who may come.
pub const RETRY: Duration = Duration::from_millis(5);

/// How long a peer may take to answer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of the peer.
pub(crate) struct Reply {
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Bounds every wait at `socket` by [`REPLY_TIMEOUT`].
pub(crate) fn bound_waits(socket: &UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    socket.set_write_timeout(Some(REPLY_TIMEOUT))
}

/// Why a socket cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SocketError {
    #[error("{path}: cannot {what}")]
    Failed { path: PathBuf, what: &'static str, source: io::Error },
    #[error("{path}: nobody listens there: is `vmlan switch` running with a port at this path?")]
    NobodyListens { path: PathBuf, source: io::Error },
    #[error(
        "{path}: this user may not open the socket: give the switch's port mode= or group=, or run \
         as its owner"
    )]
    Forbidden { path: PathBuf, source: io::Error },
}

impl SocketError {
    /// For `map_err`: `what` cannot be done with the socket at `path`.
    pub fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Failed { path: path.into(), what, source }
    }
}

/// Binds the socket. A file that nobody listens on is replaced, a live one is not.
///
/// # Errors
/// [`SocketError::Failed`].
pub fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let fail = |source| SocketError::failed(path, "listen here")(source);
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let dead = UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !dead {
                return Err(fail(error));
            }
            std::fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)
        }
        done => done.map_err(fail),
    }
}

/// Waits for somebody to connect to the socket bound at `path`.
///
/// # Errors
/// [`SocketError::Failed`], after `patience` with `TimedOut`.
pub fn accept(
    path: &Path,
    listener: &UnixListener,
    patience: Duration,
) -> Result<UnixStream, SocketError> {
    let fail = |source| SocketError::failed(path, "wait for the back end")(source);
    match sys::poll_readable(&[listener.as_fd()], Some(patience)).map_err(fail)? {
        0 => Err(fail(io::ErrorKind::TimedOut.into())),
        _ => listener.accept().map(|(stream, _)| stream).map_err(fail),
    }
}

/// Could the same call succeed later?
fn may_come(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, WouldBlock};
    [NotFound, ConnectionRefused, WouldBlock, Interrupted].contains(&error.kind())
}

/// Connects to the socket at `path`, trying until `end`.
pub fn connect(path: &Path, end: Instant) -> Result<UnixStream, SocketError> {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    loop {
        let source = match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(source) => source,
        };
        let late = Instant::now() >= end;
        match source.kind() {
            NotFound | ConnectionRefused if late => {
                return Err(SocketError::NobodyListens { path: path.into(), source });
            }
            // Waiting changes nothing about that.
            PermissionDenied => return Err(SocketError::Forbidden { path: path.into(), source }),
            _ if late || !may_come(&source) => {
                return Err(SocketError::failed(path, "connect to the back end")(source));
            }
            _ => std::thread::sleep(RETRY),
        }
    }
}
