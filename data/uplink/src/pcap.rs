//! A capture file, written while frames pass: `pcap:out.pcapng[,snaplen=N]`.
//!
//! ```text
//!  workers ── capture: format into the queue ──► [ 4 MiB ] ── swapped for an empty one ──┐
//!                                                                      file ◄── writer ◄──┘
//! ```
//!
//! A capturing worker holds the queue's lock for one copy and never waits for it: what finds it
//! taken for too long, or full, is lost to the capture, counted, and told in the file's statistics.
//! The writer sleeps while the queue is empty; frames are in the file [`GATHER`] after they passed.

mod blocks;
#[cfg(test)]
mod tests;

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vmlan_frame::{Batch, Counters, Details, FrameView, Mirror, Offloads, Port, Reason, Sink};

use crate::has_directory;
use crate::thread_control::{CLOSE, join, lock, try_lock};

const QUEUE: usize = 4 * 1024 * 1024; // Bytes that wait for the writer, at most.

/// How long frames may gather before they are written together.
pub const GATHER: Duration = Duration::from_millis(100);

/// Interfaces whose losses are told apart; further ones share the last counter.
const INTERFACES: usize = 1024;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What log lines call the port.
    pub label: String,
    /// The file. What it held is lost.
    pub path: PathBuf,
    /// Bytes kept of each frame.
    pub snaplen: u32,
}

impl Config {
    /// Whole frames.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { label: format!("pcap {}", path.display()), path, snaplen: 262_144 }
    }
}

/// Why a capture could not begin.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PcapError {
    #[error("{0}: exists and is not a regular file: choose another path or remove it")]
    NotFile(PathBuf),
    #[error("snaplen={0}: use at least 14 bytes")]
    BadSnaplen(u32),
    #[error("{0}: its directory does not exist: create it first")]
    NoDirectory(PathBuf, #[source] io::Error),
    #[error("{0}: this user may not write there: choose another path")]
    NotWritable(PathBuf, #[source] io::Error),
    #[error("{0}")]
    Io(PathBuf, #[source] io::Error),
}

#[derive(Debug)]
struct Queue {
    bytes: Vec<u8>,
    names: Vec<String>,
    stop: bool,
}

/// What workers, writer and handle share.
#[derive(Debug)]
struct Shared {
    config: Config,
    queue: Mutex<Queue>,
    ready: Condvar,
    lost: Vec<AtomicU64>,
    frames: AtomicU64,
    failed: AtomicBool,
    trouble: Mutex<Option<String>>,
    counters: Counters,
}

/// A running capture. Closed when dropped: everything captured is in the file then, unless its file
/// system hangs.
#[derive(Debug)]
pub struct Pcap {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// When the writer was told to end.
    told: Option<Instant>,
}

/// Creates (or empties) the file and starts the writer.
///
/// # Errors
/// If the file cannot be had: see [`PcapError`].
pub fn open(config: Config) -> Result<Pcap, PcapError> {
    if config.snaplen < 14 {
        return Err(PcapError::BadSnaplen(config.snaplen));
    }
    let mut file = create(&config)?;
    let fail = |e| PcapError::Io(config.path.clone(), e);
    let mut bytes = Vec::with_capacity(QUEUE);
    blocks::section(&mut bytes);
    // At once, so that the file is a capture whenever somebody looks.
    file.write_all(&bytes).map_err(fail)?;
    bytes.clear();
    let shared = Arc::new(Shared {
        config: config.clone(),
        queue: Mutex::new(Queue { bytes, names: Vec::new(), stop: false }),
        ready: Condvar::new(),
        lost: (0..INTERFACES).map(|_| AtomicU64::new(0)).collect(),
        frames: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        trouble: Mutex::new(None),
        counters: Counters::default(),
    });
    let served = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name("pcap".to_owned())
        .spawn(move || write(&served, &mut file))
        .map_err(fail)?;
    Ok(Pcap { shared, thread: Some(thread), told: None })
}

/// Opens the file without following a link or waiting for a pipe's reader; nobody else may read it.
fn create(config: &Config) -> Result<File, PcapError> {
    let path = &config.path;
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => PcapError::NotFile(path.clone()),
        Some(libc::ENOENT) if !has_directory(path) => PcapError::NoDirectory(path.clone(), e),
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT) => {
            PcapError::NotWritable(path.clone(), e)
        }
        _ => PcapError::Io(path.clone(), e),
    })?;
    let fail = |e| PcapError::Io(path.clone(), e);
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(PcapError::NotFile(path.clone()));
    }
    file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
    file.set_len(0).map_err(fail)?;
    Ok(file)
}

impl Pcap {
    /// Who watches.
    pub fn mirror(&self) -> Arc<dyn Mirror> {
        Arc::clone(&self.shared) as Arc<dyn Mirror>
    }

    /// A port that neither sends nor receives, to be listed among the others.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.shared) as Arc<dyn Port>
    }

    /// The number of the interface called `name`, which is added if it is new.
    #[must_use]
    pub fn add_interface(&self, name: &str) -> u32 {
        let mut queue = lock(&self.shared.queue);
        let mut id = 0;
        for known in &queue.names {
            if known == name {
                return id;
            }
            id += 1;
        }
        queue.names.push(name.to_owned());
        // May exceed the queue's bound: without it every later packet would be unreadable.
        blocks::interface(&mut queue.bytes, name, self.shared.config.snaplen);
        self.shared.ready.notify_one();
        id
    }

    /// Frames that passed but are not in the file.
    pub fn lost(&self) -> u64 {
        self.shared.lost.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        let state = lock(&self.shared.trouble)
            .clone()
            .map_or("capturing".to_owned(), |t| format!("failed: {t}"));
        vec![
            ("kind", "pcap".to_owned()),
            ("state", state),
            ("path", self.shared.config.path.display().to_string()),
            ("captured", self.shared.frames.load(Ordering::Relaxed).to_string()),
            ("lost", self.lost().to_string()),
        ]
    }

    /// Begins to close, and waits for nothing: for several ports that are closed together.
    pub fn stop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.ready.notify_one();
        self.told.get_or_insert_with(Instant::now);
    }

    /// Writes what waits, and statistics, and ends the writer. The file stays. If the file system
    /// keeps the writer for long, it is left behind with what it has not written.
    pub fn close(&mut self) {
        self.stop();
        let Some(thread) = self.thread.take() else { return };
        if !join(thread, self.told.unwrap_or_else(Instant::now) + CLOSE) {
            log::error!("{}: its file hangs and is left behind", self.shared.config.label);
        }
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        self.close();
    }
}

/// The writer: swaps the queue for an empty one and writes it, until told to stop.
fn write(shared: &Shared, file: &mut File) {
    vmlan_sandbox::enter(vmlan_sandbox::Thread::Pcap);
    let mut spare = Vec::with_capacity(QUEUE);
    loop {
        let mut queue = shared.gather();
        std::mem::swap(&mut queue.bytes, &mut spare);
        let stop = queue.stop;
        if stop {
            shared.statistics(&queue, &mut spare);
        }
        drop(queue);
        if let Err(e) = file.write_all(&spare) {
            return shared.fail(&e);
        }
        if stop {
            return;
        }
        spare.clear();
        // A burst of interfaces may have grown it.
        spare.shrink_to(QUEUE);
    }
}

impl Shared {
    /// Waits until there is something to write, and for more of it.
    fn gather(&self) -> MutexGuard<'_, Queue> {
        let queue = lock(&self.queue);
        let idle = |q: &mut Queue| q.bytes.is_empty() && !q.stop;
        let queue = self.ready.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        let filling = |q: &mut Queue| q.bytes.len() < QUEUE / 2 && !q.stop;
        let waited = self.ready.wait_timeout_while(queue, GATHER, filling);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// A statistics block for each interface.
    fn statistics(&self, queue: &Queue, out: &mut Vec<u8>) {
        let time = now();
        for (id, lost) in (0..).zip(&self.lost).take(queue.names.len()) {
            blocks::statistics(out, id, time, lost.load(Ordering::Relaxed));
        }
    }

    fn fail(&self, e: &io::Error) {
        self.failed.store(true, Ordering::Relaxed);
        log::warn!("{}: {e}; the capture ends here", self.config.label);
        *lock(&self.trouble) = Some(e.to_string());
    }

    fn lose(&self, interface: u32) {
        let i = (interface as usize).min(INTERFACES - 1);
        if let Some(n) = self.lost.get(i) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True if the frame is in the queue.
    fn enqueue(
        &self,
        interface: u32,
        outgoing: bool,
        frame: &FrameView<'_, '_>,
        dropped: Option<Reason>,
    ) -> bool {
        let snaplen = self.config.snaplen as usize;
        let Some(mut queue) = try_lock(&self.queue) else { return false };
        let (before, most) = (queue.bytes.len(), frame.len.min(snaplen) + blocks::OVERHEAD);
        if before + most > QUEUE || queue.stop {
            return false;
        }
        let place = (interface, now(), snaplen);
        blocks::packet(&mut queue.bytes, place, outgoing, frame, dropped);
        let after = queue.bytes.len();
        drop(queue);
        // The writer sleeps in one of two ways, and each begins where its condition held.
        if before == 0 || (before < QUEUE / 2 && after >= QUEUE / 2) {
            self.ready.notify_one();
        }
        true
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}

impl Mirror for Shared {
    fn capture(
        &self,
        interface: u32,
        outgoing: bool,
        frame: &FrameView<'_, '_>,
        dropped: Option<Reason>,
    ) {
        let failed = self.failed.load(Ordering::Relaxed);
        if !failed && self.enqueue(interface, outgoing, frame, dropped) {
            self.frames.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lose(interface);
        }
    }
}

impl Port for Shared {
    fn pull(&self, _: usize, _: &mut Batch<'static>, _: usize, _: &mut dyn Sink) -> usize {
        0
    }

    fn push(&self, _: &Batch<'_>, list: &mut [u16]) -> usize {
        self.counters.output.drop(Reason::LinkDown, list.len() as u64);
        list.len()
    }

    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    /// Never: nothing is to be delivered here.
    fn is_up(&self) -> bool {
        false
    }

    fn arm(&self, _: usize) -> bool {
        false
    }

    fn disarm(&self, _: usize) {}

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
