//! Reaching the back end and agreeing on features.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::VirtioError;
use vmlan_transport::address::VhostUser as Address;
use vmlan_transport::socket::{self, RETRY, SocketError};
use vmlan_transport::vhost_user::feature;
use vmlan_transport::vhost_user::{F_PROTOCOL_FEATURES, FrontEnd, ProtocolError, protocol};

/// A connection whose features are agreed. `promised`: what the guest was given on the first
/// connection and must get again.
pub(super) fn open(
    address: &Address,
    listener: Option<&UnixListener>,
    promised: Option<u64>,
    patience: Duration,
) -> Result<(FrontEnd, u64), VirtioError> {
    let end = Instant::now() + patience;
    let path = &address.path;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let stream = match listener {
            Some(listener) => socket::accept(path, listener, left)?,
            None => socket::connect(path, end)?,
        };
        let front =
            FrontEnd::new(stream).map_err(SocketError::failed(path, "set up the connection"))?;
        match negotiate(front, address, promised) {
            // A back end that is about to exit still accepts: that is not an answer yet.
            Err(VirtioError::Protocol(ProtocolError::Socket { .. })) if Instant::now() < end => {
                std::thread::sleep(RETRY);
            }
            Err(VirtioError::Protocol(source @ ProtocolError::Socket { .. })) => {
                return Err(VirtioError::TurnedAway { path: path.clone(), source });
            }
            done => return done,
        }
    }
}

fn negotiate(
    mut front: FrontEnd,
    address: &Address,
    promised: Option<u64>,
) -> Result<(FrontEnd, u64), VirtioError> {
    let offered = front.features()?;
    let features = match promised {
        Some(features) if features & !offered != 0 => {
            return Err(VirtioError::FeaturesLost { missing: features & !offered });
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
        return Err(VirtioError::Queues { wanted: address.queues, offered: queues });
    }
    // Agreed last, as front ends do; the protocol bit is acknowledged so that rings start disabled.
    front.set_features(features | offered & F_PROTOCOL_FEATURES)?;
    Ok((front, features))
}

fn wanted(address: &Address) -> u64 {
    let single = if address.queues == 1 { feature::MQ } else { 0 };
    address.features & !single & !feature::LOG_ALL
}
