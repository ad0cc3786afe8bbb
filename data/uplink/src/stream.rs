//! A UNIX socket as a port: `stream:/path.sock[,connect]`.
//!
//! QEMU's `-netdev stream` framing: each frame after its length in four bytes, big-endian, and no
//! offload header. passt, gvproxy and socket_vmnet speak it too. One peer at a time; the next one
//! waits in the backlog.
//!
//! The peer is as hostile as a guest: lengths are checked, a peer that sends nonsense is
//! disconnected, and one that does not read finds its senders told "no room" and costs nobody else
//! anything.

mod file;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use vmlan_frame::{Batch, Counters, Doorbell, Offloads, Port, Reason, Sink};

use self::file::Listener;
use self::read::{Look, Tx};
use self::write::{Rx, Sent, hang_up};
use crate::thread_control::{Wake, Wanted, lock};
use crate::{Changed, Details, sys};

/// Bytes of the length before each frame.
const PREFIX: usize = 4;

/// Time between attempts to connect, and between attempts to accept after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Time between the end of one peer and the welcome of the next.
const PAUSE: Duration = Duration::from_millis(20);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What log lines call the port.
    pub label: String,
    /// The socket.
    pub path: PathBuf,
    /// Connect to it, instead of listening there.
    pub connect: bool,
    /// Permission bits of the socket file when listening; 0600 if none are given.
    pub mode: Option<u32>,
}

impl Config {
    /// We listen at `path`, with permissions 0600.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { label: format!("stream {}", path.display()), path, connect: false, mode: None }
    }
}

/// Why a port could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Something else has that name.
    #[error("{0}: exists and is not a socket: choose another path or remove it")]
    NotSocket(PathBuf),
    /// Another process listens there.
    #[error("{0}: another process listens there: add `,connect` to connect to it")]
    InUse(PathBuf),
    /// Its directory is missing.
    #[error("{0}: its directory does not exist: create it first")]
    NoDirectory(PathBuf, #[source] io::Error),
    /// The directory belongs to somebody else, or cannot be written at all.
    #[error("{0}: this user may not create a socket there: choose another path")]
    NotWritable(PathBuf, #[source] io::Error),
    /// Anything else.
    #[error("{0}")]
    Io(PathBuf, #[source] io::Error),
}

/// A running stream port. Closed when dropped.
#[derive(Debug)]
pub struct Stream {
    port: Arc<StreamPort>,
    thread: Option<JoinHandle<()>>,
}

struct StreamPort {
    config: Config,
    changed: Changed,
    wake: Wake,
    wanted: Wanted,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    counters: Counters,
    /// Readable when there is room again.
    room: Arc<OwnedFd>,
    version: AtomicU64,
    up: AtomicBool,
    /// The peer is to be disconnected.
    dead: AtomicBool,
    /// The socket was full: the control thread waits for it to take more.
    blocked: AtomicBool,
    /// The last read found nothing, so the peer's next bytes make an edge in epoll.
    drained: AtomicBool,
}

impl std::fmt::Debug for StreamPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPort").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Listens (or begins to connect) and starts the control thread. A connecting port tries until it
/// succeeds.
///
/// # Errors
/// If the socket file cannot be had: see [`StreamError`].
pub fn open(config: Config, changed: Changed) -> Result<Stream, StreamError> {
    let fail = |e| StreamError::Io(config.path.clone(), e);
    let listener = match config.connect {
        true => None,
        false => Some(Listener::new(&config.path, config.mode.unwrap_or(0o600))?),
    };
    let port = Arc::new(StreamPort::new(config.clone(), changed).map_err(fail)?);
    let served = Arc::clone(&port);
    let thread = std::thread::Builder::new()
        .name("stream".to_owned())
        .spawn(move || serve(&served, listener.as_ref()))
        .map_err(fail)?;
    Ok(Stream { port, thread: Some(thread) })
}

impl Stream {
    /// The port.
    #[must_use]
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.port) as Arc<dyn Port>
    }

    /// Its state in words.
    #[must_use]
    pub fn details(&self) -> Details {
        let p = &self.port;
        let state = match (p.is_up(), p.blocked.load(Ordering::Relaxed), p.config.connect) {
            (true, true, _) => "connected, peer does not read",
            (true, false, _) => "connected",
            (false, _, true) => "connecting",
            (false, _, false) => "listening",
        };
        vec![
            ("kind", "stream".to_owned()),
            ("state", state.to_owned()),
            ("path", p.config.path.display().to_string()),
        ]
    }

    /// Disconnects, stops the thread, removes the socket file.
    pub fn close(&mut self) {
        self.port.wake.stop();
        if let Some(thread) = self.thread.take() {
            // It ends at once; a panic in it has been reported by the runtime.
            let _ = thread.join();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

/// The control thread: gets peers, gets rid of them, and waits for a slow one on the data path's
/// behalf.
fn serve(port: &StreamPort, listener: Option<&Listener>) {
    let mut retry = None;
    while !port.wake.stopped() {
        if port.dead.load(Ordering::Acquire) {
            port.set_peer(None);
            // A peer that comes and goes at once must not keep this thread and the workers busy.
            port.wait(None, Some(if listener.is_some() { PAUSE } else { RETRY }));
            continue;
        }
        if !port.is_up() {
            retry = match port.find_peer(listener) {
                Ok(Some(peer)) => {
                    port.set_peer(Some(peer));
                    continue;
                }
                Ok(None) => None,
                Err(_) => Some(RETRY),
            };
        }
        port.wait(listener, retry);
    }
    port.set_peer(None);
}

impl StreamPort {
    fn new(config: Config, changed: Changed) -> io::Result<Self> {
        Ok(Self {
            config,
            changed,
            wake: Wake::new()?,
            wanted: Wanted::default(),
            tx: Mutex::new(Tx::new()),
            rx: Mutex::new(Rx::new()),
            counters: Counters::default(),
            room: Arc::new(sys::eventfd()?),
            version: AtomicU64::new(0),
            up: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            drained: AtomicBool::new(false),
        })
    }

    /// Sleeps until there is something to do for the control thread.
    fn wait(&self, listener: Option<&Listener>, retry: Option<Duration>) {
        let peer = lock(&self.rx).peer.clone();
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.fd(), PollFlags::IN)];
        match (&peer, listener) {
            (Some(peer), _) if self.blocked.load(Ordering::Acquire) => {
                fds.push(PollFd::new(peer, PollFlags::OUT));
            }
            // After a failed accept (EMFILE) the listener stays readable: it is left alone for a
            // while.
            (None, Some(l)) if retry.is_none() => {
                fds.push(PollFd::new(&l.socket, PollFlags::IN));
            }
            _ => {}
        }
        sys::poll(&mut fds, if peer.is_none() { retry } else { None });
        self.wake.clear();
        if peer.is_some() && fds.get(1).is_some_and(|f| !f.revents().is_empty()) {
            self.unblock();
        }
    }

    /// A peer, if there is one now; an error means to try again later.
    fn find_peer(&self, listener: Option<&Listener>) -> io::Result<Option<OwnedFd>> {
        let Some(listener) = listener else {
            return connect(&self.config.path).map(Some);
        };
        match listener.socket.accept() {
            Ok((peer, _)) => {
                peer.set_nonblocking(true)?;
                Ok(Some(peer.into()))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => {
                log::warn!("{}: accept: {e}", self.config.label);
                Err(e)
            }
        }
    }

    /// Puts a peer, or none, in the place of the present one.
    fn set_peer(&self, peer: Option<OwnedFd>) {
        let peer = peer.map(Arc::new);
        let up = peer.is_some();
        let mut tx = self.wanted.lock(&self.tx);
        let mut rx = self.wanted.lock(&self.rx);
        hang_up(tx.peer.take());
        tx.set_peer(peer.clone(), &self.counters.input);
        rx.set_peer(peer);
        self.dead.store(false, Ordering::Release);
        self.blocked.store(false, Ordering::Release);
        self.drained.store(false, Ordering::Release);
        let was = self.up.swap(up, Ordering::AcqRel);
        self.version.fetch_add(1, Ordering::AcqRel);
        drop((rx, tx));
        if was || up {
            let word = if up { "connected" } else { "disconnected" };
            log::info!("{}: {word}", self.config.label);
            (self.changed)();
        }
    }

    /// The peer took something, or is gone.
    fn unblock(&self) {
        let mut rx = lock(&self.rx);
        match rx.flush() {
            Sent::Full(_) => {}
            Sent::Gone => self.dead.store(true, Ordering::Release),
            Sent::Frames(_) => {
                self.blocked.store(false, Ordering::Release);
                sys::notify(self.room.as_fd());
            }
        }
    }

    fn block(&self) {
        if !self.blocked.swap(true, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    fn kill(&self) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    /// Sends what the socket takes; returns how much of `list` is dealt with.
    fn send(&self, rx: &mut Rx, batch: &Batch<'_>, list: &[u16]) -> usize {
        if rx.peer.is_none() {
            // Frames that were under way when it went. Killing it again would keep its thread from
            // looking for the next one.
            self.counters.output.drop(Reason::LinkDown, list.len() as u64);
            return list.len();
        }
        let mut done = 0;
        let mut sent = rx.flush();
        while let Sent::Frames(n) = sent {
            done += n;
            let rest = list.get(done..).unwrap_or_default();
            if rest.is_empty() {
                return list.len();
            }
            sent = rx.send(batch, rest, &self.counters);
        }
        if let Sent::Full(n) = sent {
            self.block();
            return done + n;
        }
        self.kill();
        let lost = list.len().saturating_sub(done);
        self.counters.output.drop(Reason::LinkDown, lost as u64);
        list.len()
    }
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = sys::unix_socket()?;
    file::connect(&socket, path)?;
    Ok(socket)
}

impl Port for StreamPort {
    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        let Some(mut tx) = self.wanted.try_lock(&self.tx) else { return 0 };
        let look = tx.fill(limit, &self.counters.input);
        self.drained.store(look != Look::More, Ordering::Release);
        if look == Look::Nonsense {
            self.counters.faults.add_shared(1);
        }
        if matches!(look, Look::Nonsense | Look::Closed) {
            self.kill();
        }
        let refused = tx.take_refused().map_or(0, |(frames, bytes)| {
            sink.skipped(frames, bytes);
            frames
        });
        if tx.inbox.len() == 0 {
            return refused;
        }
        refused + tx.inbox.lend(batch, limit, sink, &self.counters.input)
    }

    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        self.send(&mut lock(&self.rx), batch, list)
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn room(&self) -> usize {
        if self.blocked.load(Ordering::Acquire) { 0 } else { usize::MAX }
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn arm(&self) -> bool {
        self.is_up() && !self.drained.load(Ordering::Acquire)
    }

    fn disarm(&self) {}

    fn want_room(&self) -> bool {
        // While blocked, the control thread waits for room and rings.
        !self.blocked.load(Ordering::Acquire)
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        let peer = lock(&self.rx).peer.clone();
        peer.into_iter().chain([Arc::clone(&self.room)]).map(|fd| fd as Doorbell).collect()
    }

    fn doorbells_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn rang(&self) {
        self.counters.input.notifications.add_shared(1);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
