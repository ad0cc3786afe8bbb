//! Where peers come from, one after the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::conversation::Conversation;
use super::file::{self, SocketFile};
use super::keeping::Keeping;
use super::read::{Look, Reader};
use super::{Config, StreamError, StreamPort};
use crate::keep::{Keep, Keepers, Kept};
use crate::sys;
use vmlan_frame::LogLimit;

const BACKLOG: i32 = 16; // Peers that wait for the one before them.

/// Time between attempts to connect, and between attempts to accept after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Time between the end of one peer and the welcome of the next: a peer that comes and goes at once
/// must not keep this thread and the workers busy.
const PAUSE: Duration = Duration::from_millis(20);

/// What the port's thread owns.
#[derive(Debug)]
pub(super) struct Peers {
    /// Where to connect to; none if they come to us.
    server: Option<PathBuf>,
    keeping: Keeping,
    /// Those who come to us can send descriptors.
    peeks: bool,
    reader: Reader,
    start: Instant,
    log: LogLimit,
}

impl Peers {
    /// Listens, or is ready to connect.
    pub(super) fn new(config: &Config) -> Result<(Self, Option<SocketFile>), StreamError> {
        let fail = |e| StreamError::Io(config.path.clone(), e);
        let (mut server, mut peeks) = (Some(config.path.clone()), true);
        let (keep, file) = if config.connect {
            (config.keepers.keeper(None).map_err(fail)?, None)
        } else {
            let mode = config.mode.unwrap_or(0o600);
            let socket = sys::unix_socket().map_err(fail)?;
            peeks = sys::refuse_descriptors(socket.as_fd()).is_err();
            server = None;
            let (socket, file) = file::bind(socket, &config.path, mode)?;
            (listen(&*config.keepers, socket).map_err(fail)?, Some(file))
        };
        let (keeping, start) = (Keeping::new(keep), Instant::now());
        let (reader, log) = (Reader::new(), LogLimit::default());
        Ok((Self { server, keeping, peeks, reader, start, log }, file))
    }

    pub(super) fn keep(&self) -> Arc<dyn Keep> {
        Arc::clone(&self.keeping.keep)
    }

    /// The port's thread: serves one peer after the other.
    pub(super) fn serve(mut self, port: &StreamPort) {
        let pause = if self.server.is_some() { RETRY } else { PAUSE };
        while !port.wake.stopped() {
            match self.find() {
                Ok(peer) => {
                    self.serve_one(port, peer);
                    port.wake.sleep(pause);
                }
                Err(e) if self.server.is_none() && is_none_yet(&e) => self.wait(port),
                Err(e) => {
                    if self.server.is_none() && !port.wake.stopped() {
                        self.log(port, log::Level::Warn, &format!("accept: {e}"));
                    }
                    // After a failed accept (EMFILE) the listener stays readable.
                    port.wake.sleep(RETRY);
                }
            }
        }
    }

    fn serve_one(&mut self, port: &StreamPort, peer: (Box<dyn Kept>, bool)) {
        self.log(port, log::Level::Info, "connected");
        let end = Conversation::new(port, &mut self.reader, &mut self.keeping, peer).run();
        port.set_down();
        let (level, words) = match end {
            Some(Look::Nonsense) => (log::Level::Warn, "disconnected: it sent no frames"),
            Some(Look::Descriptor) => (log::Level::Warn, "disconnected: it sent a descriptor"),
            _ => (log::Level::Info, "disconnected"),
        };
        if matches!(end, Some(Look::Nonsense | Look::Descriptor)) {
            port.counters.faults.add_shared(1);
        }
        self.log(port, level, words);
    }

    /// The next peer, and whether it can send descriptors. An error means to try again later.
    fn find(&self) -> io::Result<(Box<dyn Kept>, bool)> {
        let Some(server) = &self.server else {
            return Ok((self.keeping.keep.accept()?, self.peeks));
        };
        let socket = sys::unix_socket()?;
        let peeks = sys::refuse_descriptors(socket.as_fd()).is_err();
        let socket = self.keeping.keep.hold(socket)?;
        file::connect(&socket, server)?;
        Ok((socket, peeks))
    }

    /// Sleeps until somebody comes.
    fn wait(&mut self, port: &StreamPort) {
        let keep = self.keep();
        self.keeping.sleep(&port.wake, keep.listener().map(|fd| (fd, PollFlags::IN)));
    }

    fn log(&mut self, port: &StreamPort, level: log::Level, what: &str) {
        let label = &port.config.label;
        match self.log.allow(self.start.elapsed()) {
            None => {}
            Some(0) => log::log!(level, "{label}: {what}"),
            Some(n) => log::log!(level, "{label}: {what} (and {n} lines left out before)"),
        }
    }
}

/// The keeper is there before anybody can connect.
fn listen(keepers: &dyn Keepers, socket: OwnedFd) -> io::Result<Arc<dyn Keep>> {
    let keep = keepers.keeper(Some(socket))?;
    let listener = keep.listener().ok_or(io::ErrorKind::Unsupported)?;
    rustix::net::listen(listener, BACKLOG)?;
    Ok(keep)
}

fn is_none_yet(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
