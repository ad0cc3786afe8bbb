//! A UNIX socket as a port: `stream:/path.sock[,connect]`.
//!
//! QEMU's `-netdev stream` framing: each frame after its length in four bytes, big-endian, and no
//! offload header. passt, gvproxy and socket_vmnet speak it too. One peer at a time; the next one
//! waits in the backlog.
//!
//! The peer is as hostile as a guest, and its socket more so: it can make any system call on it
//! slow. So no worker touches the socket. The port has a thread of its own for that
//! ([`conversation`]), and between the two lie bounded queues in our own memory: [`outbox`] to the
//! peer, [`handover`] from it. Lengths are checked, a peer that sends nonsense or a descriptor is
//! disconnected, one that does not read finds its senders told "no room", and one whose frames are
//! not taken is not read from.

mod conversation;
mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod handover;
mod keeping;
mod outbox;
mod peers;
mod read;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use vmlan_frame::{BATCH, Batch, Changed, Counters, Details, Doorbell, Offloads, Port, Sink};

use self::file::SocketFile;
use self::handover::{Found, Handover};
use self::outbox::Outbox;
use self::peers::Peers;
use crate::inbox::Inbox;
use crate::keep::{Keep, Keepers, Unkept};
use crate::sys;
use crate::thread_control::{CLOSE, Wake, Wanted, join, lock};

const PREFIX: usize = 4; // Bytes of the length before each frame.
const STACK: usize = 256 * 1024; // The thread keeps little on its stack.

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
    /// Who keeps the sockets that strangers reach.
    pub keepers: Arc<dyn Keepers>,
}

impl Config {
    /// We listen at `path`, with permissions 0600. Nobody else keeps the sockets.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let label = format!("stream {}", path.display());
        Self { label, path, connect: false, mode: None, keepers: Arc::new(Unkept) }
    }
}

/// Why a port could not be set up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StreamError {
    #[error("{0}: exists and is not a socket: choose another path or remove it")]
    NotSocket(PathBuf),
    #[error("{0}: another process listens there: add `,connect` to connect to it")]
    InUse(PathBuf),
    #[error("{0}: its directory does not exist: create it first")]
    NoDirectory(PathBuf, #[source] io::Error),
    #[error("{0}: this user may not create a socket there: choose another path")]
    NotWritable(PathBuf, #[source] io::Error),
    #[error("{0}")]
    Io(PathBuf, #[source] io::Error),
}

/// A running stream port. Closed when dropped.
#[derive(Debug)]
pub struct Stream {
    port: Arc<StreamPort>,
    keep: Arc<dyn Keep>,
    file: Option<SocketFile>,
    thread: Option<JoinHandle<()>>,
    /// When the thread was told to end.
    told: Option<Instant>,
}

struct StreamPort {
    config: Config,
    changed: Changed,
    /// Wakes the port's thread.
    wake: Wake,
    /// Rings for the worker: frames came, or room.
    bell: Arc<OwnedFd>,
    wanted: Wanted,
    tx: Mutex<Tx>,
    handover: Handover,
    outbox: Mutex<Outbox>,
    counters: Counters,
    up: AtomicBool,
    /// Frames are left that the last pull did not lend.
    rest: AtomicBool,
    /// Frames that the switch holds fill the worker's inbox: there is no room for others.
    stuck: AtomicBool,
}

/// The peer's sending side, as the worker sees it.
#[derive(Debug)]
struct Tx {
    inbox: Inbox,
    /// Some of what was taken last is not finished.
    lent: bool,
}

impl std::fmt::Debug for StreamPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPort").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Listens (or begins to connect) and starts the port's thread. A connecting port tries until it
/// succeeds.
///
/// # Errors
/// If the socket file cannot be had: see [`StreamError`].
pub fn open(config: Config, changed: Changed) -> Result<Stream, StreamError> {
    let fail = |e| StreamError::Io(config.path.clone(), e);
    let (peers, file) = Peers::new(&config)?;
    let keep = peers.keep();
    let port = Arc::new(StreamPort::new(config.clone(), changed).map_err(fail)?);
    let served = Arc::clone(&port);
    let thread = std::thread::Builder::new()
        .name("stream".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            vmlan_sandbox::enter(vmlan_sandbox::Thread::Stream);
            peers.serve(&served);
        })
        .map_err(fail)?;
    Ok(Stream { port, keep, file, thread: Some(thread), told: None })
}

impl Stream {
    /// The port.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.port) as Arc<dyn Port>
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        let p = &self.port;
        let state = match (p.is_up(), p.room() == 0, p.config.connect) {
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

    /// Begins to close, and waits for nothing: for several ports that are closed together.
    pub fn stop(&mut self) {
        self.port.wake.stop();
        self.keep.close();
        self.told.get_or_insert_with(Instant::now);
    }

    /// Disconnects, removes the socket file, stops the thread. If its peer keeps the thread in a
    /// system call for long, it is left behind: it has nothing that others need.
    pub fn close(&mut self) {
        self.stop();
        self.file = None;
        let Some(thread) = self.thread.take() else { return };
        let end = self.told.unwrap_or_else(Instant::now) + CLOSE;
        if !join(thread, end) {
            log::error!("{}: its thread hangs and is left behind", self.port.config.label);
            self.port.set_down();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

impl StreamPort {
    fn new(config: Config, changed: Changed) -> io::Result<Self> {
        Ok(Self {
            config,
            changed,
            wake: Wake::new()?,
            bell: Arc::new(sys::eventfd()?),
            wanted: Wanted::default(),
            tx: Mutex::new(Tx { inbox: Inbox::new(read::FRAMES), lent: false }),
            handover: Handover::new(),
            outbox: Mutex::new(Outbox::new()),
            counters: Counters::default(),
            up: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        })
    }

    fn set_up(&self) {
        self.up.store(true, Ordering::Release);
        (self.changed)();
    }

    /// Nobody is there any more. What the worker has not taken is lost.
    fn set_down(&self) {
        let was = self.up.swap(false, Ordering::AcqRel);
        lock(&self.outbox).set_connected(false);
        let mut tx = self.wanted.lock(&self.tx);
        tx.inbox.lose(&self.counters.input);
        tx.lent = false;
        self.handover.lose(&self.counters.input);
        drop(tx);
        // For those who wait for room.
        sys::notify(self.bell.as_fd());
        if was {
            (self.changed)();
        }
    }

    /// Takes over what the thread has read; returns how many frames of it were passed over, and
    /// whether there was more than can be kept.
    fn take(&self, tx: &mut Tx, limit: usize, sink: &mut dyn Sink) -> (usize, bool) {
        if tx.inbox.len() >= limit {
            return (0, true);
        }
        let (found, wakes) = self.handover.take(&mut tx.inbox);
        if wakes {
            self.wake.wake();
        }
        let Found::Frames(refused) = found else { return (0, found == Found::TooMany) };
        tx.lent = tx.inbox.len() > 0;
        if refused.bytes == 0 {
            return (0, false);
        }
        sink.skipped(refused.frames.max(1), refused.bytes);
        (refused.frames.max(1), false)
    }
}

impl Port for StreamPort {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        let Some(mut tx) = self.wanted.try_lock(&self.tx) else { return 0 };
        let limit = limit.min(BATCH);
        let (refused, stuck) = self.take(&mut tx, limit, sink);
        let mut done = refused;
        if tx.inbox.len() > 0 {
            done += tx.inbox.lend(batch, limit, sink, &self.counters.input);
        }
        self.stuck.store(stuck && done == 0, Ordering::Relaxed);
        self.rest.store(done > 0 && tx.inbox.len() > 0, Ordering::Relaxed);
        if tx.lent && tx.inbox.len() == 0 {
            tx.lent = false;
            if self.handover.finished() {
                self.wake.wake();
            }
        }
        done
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let mut outbox = lock(&self.outbox);
        let (done, wakes) = outbox.push(batch, list, &self.counters.output);
        drop(outbox);
        if wakes {
            self.wake.wake();
        }
        done
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn room(&self) -> usize {
        lock(&self.outbox).room()
    }

    fn room_in(&self, _: usize, wanted: usize) -> usize {
        lock(&self.outbox).room_in(wanted)
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn arm(&self, _: usize) -> bool {
        let news = self.handover.arm_worker();
        news && !self.stuck.load(Ordering::Relaxed) || self.rest.load(Ordering::Relaxed)
    }

    fn disarm(&self, _: usize) {
        self.handover.disarm_worker();
    }

    fn want_room(&self) -> bool {
        lock(&self.outbox).want_room()
    }

    fn doorbells(&self, _: usize) -> Vec<Doorbell> {
        vec![Arc::clone(&self.bell) as Doorbell]
    }

    fn rang(&self) {
        self.counters.input.notifications.add_shared(1);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
