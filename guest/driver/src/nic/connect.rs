//! Reaching the back end and agreeing on features.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::Error;
use crate::address::{Address, feature};
use crate::sys;
use crate::vhost_user::{F_PROTOCOL_FEATURES, FrontEnd, ProtocolError, protocol};

const RETRY: Duration = Duration::from_millis(5);

fn socket_error(path: &Path, what: &'static str, source: io::Error) -> Error {
    Error::Socket { path: path.into(), what, source }
}

/// Binds the socket; a file that nobody listens on is replaced, a live one is not.
pub(super) fn bind(path: &Path) -> Result<UnixListener, Error> {
    let fail = |source| socket_error(path, "listen here", source);
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

fn accept(path: &Path, listener: &UnixListener, patience: Duration) -> Result<UnixStream, Error> {
    let fail = |source| socket_error(path, "wait for the back end", source);
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
pub(crate) fn dial(path: &Path, end: Instant) -> Result<UnixStream, Error> {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(source)
                if Instant::now() >= end
                    && matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) =>
            {
                return Err(Error::NobodyListens { path: path.into(), source });
            }
            // Waiting changes nothing about that.
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Error::Forbidden { path: path.into(), source });
            }
            Err(error) if Instant::now() >= end || !may_come(&error) => {
                return Err(socket_error(path, "connect to the back end", error));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// A connection whose features are agreed. `promised`: what the guest was given on the first connection and must get again.
pub(super) fn open(
    address: &Address,
    listener: Option<&UnixListener>,
    promised: Option<u64>,
    patience: Duration,
) -> Result<(FrontEnd, u64), Error> {
    let end = Instant::now() + patience;
    let path = &address.path;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let stream = match listener {
            Some(listener) => accept(path, listener, left)?,
            None => dial(path, end)?,
        };
        let front = FrontEnd::new(stream)
            .map_err(|source| socket_error(path, "set up the connection", source))?;
        match negotiate(front, address, promised) {
            // A back end that is about to exit still accepts: that is no answer yet.
            Err(Error::Protocol(ProtocolError::Socket { .. })) if Instant::now() < end => {
                std::thread::sleep(RETRY);
            }
            Err(Error::Protocol(source @ ProtocolError::Socket { .. })) => {
                return Err(Error::TurnedAway { path: path.clone(), source });
            }
            done => return done,
        }
    }
}

fn negotiate(
    mut front: FrontEnd,
    address: &Address,
    promised: Option<u64>,
) -> Result<(FrontEnd, u64), Error> {
    let offered = front.features()?;
    let features = match promised {
        Some(features) if features & !offered != 0 => {
            return Err(Error::FeaturesLost { missing: features & !offered });
        }
        Some(features) => features,
        None => wanted(address) & offered,
    };
    let mut queues = 1;
    if offered & F_PROTOCOL_FEATURES != 0 {
        let common = front.negotiate_protocol(address.protocol)?;
        if common & protocol::MQ != 0 {
            queues = front.queue_num()?;
        }
    }
    front.set_owner()?;
    if u64::from(address.queues) > queues {
        return Err(Error::Queues { wanted: address.queues, offered: queues });
    }
    // Agreed last, as front ends do; the protocol bit is acknowledged so that rings start disabled.
    front.set_features(features | offered & F_PROTOCOL_FEATURES)?;
    Ok((front, features))
}

fn wanted(address: &Address) -> u64 {
    let single = if address.queues == 1 { feature::MQ } else { 0 };
    address.features & !single & !feature::LOG_ALL
}
