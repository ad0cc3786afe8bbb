//! A TAP device of the host as a port: `tap:NAME[,queues=N][,offload=off]`.
//!
//! The host's kernel is the port's owner: what it sends into the device we pull, what we push it
//! receives.
//!
//! *Link down*: writes fail with EIO, which costs the frame and nothing else; the port is up again
//! when the link is. *Deleted*: reads and writes fail with EBADFD; the port goes down and a new
//! device is made, or attached to, as soon as that works. Links are watched by netlink, and the
//! worker's own errors are believed too.

mod device;
mod header;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use vmlan_frame::{
    BATCH, Batch, Changed, Counters, Details, Doorbell, FrameView, MAX_FRAME, MIN_FRAME, Offloads,
    Port, Reason, Sink, error_chain,
};
use vmlan_ram::Slice;

pub use self::device::TapError;
use crate::inbox::Inbox;
use crate::sys;
use crate::thread_control::{Wake, Wanted, lock};

const RETRY: Duration = Duration::from_secs(1); // Time between attempts to get the device back.

/// Runs of a frame that are written where they lie; a frame in more pieces is copied together
/// first.
const RUNS: usize = 64;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What log lines call the port.
    pub label: String,
    /// The interface's name.
    pub name: String,
    /// Queues, 1 to 256. More than one lets the host's CPUs send in parallel.
    pub queues: u16,
    /// Let the host leave checksums and segmentation to us.
    pub offload: bool,
}

impl Config {
    /// One queue, with offloads.
    pub fn new(name: &str) -> Self {
        Self { label: format!("tap {name}"), name: name.to_owned(), queues: 1, offload: true }
    }
}

/// A running TAP port. Closed when dropped: a device that we created goes away with it.
#[derive(Debug)]
pub struct Tap {
    port: Arc<TapPort>,
    thread: Option<JoinHandle<()>>,
}

/// The kernel's side sends: we read.
#[derive(Debug)]
struct Tx {
    queues: Vec<Arc<OwnedFd>>,
    inbox: Inbox,
    /// The queue to begin with, so that none starves.
    next: usize,
}

/// The kernel's side receives: we write.
#[derive(Debug)]
struct Rx {
    queues: Vec<Arc<OwnedFd>>,
    scratch: Vec<u8>,
}

struct TapPort {
    config: Config,
    changed: Changed,
    wake: Wake,
    wanted: Wanted,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    counters: Counters,
    offloads: AtomicU8,
    version: AtomicU64,
    up: AtomicBool,
    /// Some call said EBADFD.
    gone: AtomicBool,
    /// The last read of every queue found nothing, so the next frame makes an edge in epoll.
    drained: AtomicBool,
    /// The device's MTU; 0: unknown.
    mtu: AtomicU32,
    /// Why the device is not there.
    trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for TapPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapPort").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Opens (or creates) the device and starts its control thread.
///
/// # Errors
/// If the device cannot be had: see [`TapError`].
pub fn open(config: Config, changed: Changed) -> Result<Tap, TapError> {
    device::check(&config)?;
    let fail = |e| TapError::Io(config.name.clone(), e);
    let wake = Wake::new().map_err(fail)?;
    let events = sys::link_events().map_err(fail)?;
    let port = Arc::new(TapPort::new(config.clone(), changed, wake));
    port.install(device::open(&config)?);
    port.look(&events);
    let watched = Arc::clone(&port);
    let thread = std::thread::Builder::new()
        .name(format!("tap {}", config.name))
        .spawn(move || watch(&watched, &events))
        .map_err(fail)?;
    Ok(Tap { port, thread: Some(thread) })
}

impl Tap {
    /// The port.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.port) as Arc<dyn Port>
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        let p = &self.port;
        let queues = lock(&p.rx).queues.len();
        let state = match (&*lock(&p.trouble), p.is_up()) {
            (Some(trouble), _) => format!("gone: {trouble}"),
            (None, true) => "up".to_owned(),
            (None, false) => "link down".to_owned(),
        };
        let offload = if p.config.offload { "on" } else { "off" };
        let mtu = self.mtu().map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        vec![
            ("kind", "tap".to_owned()),
            ("state", state),
            ("interface", p.config.name.clone()),
            ("queues", queues.to_string()),
            ("offload", offload.to_owned()),
            ("mtu", mtu),
        ]
    }

    /// The device's MTU, if it is there and in this namespace.
    pub fn mtu(&self) -> Option<u32> {
        Some(self.port.mtu.load(Ordering::Acquire)).filter(|mtu| *mtu > 0)
    }

    /// Stops the thread and lets the device go.
    pub fn close(&mut self) {
        self.port.wake.stop();
        if let Some(thread) = self.thread.take() {
            // It ends at once; a panic in it has been reported by the runtime.
            let _ = thread.join();
            self.port.detach();
            self.port.up.store(false, Ordering::Release);
            (self.port.changed)();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}

/// The control thread: sleeps until a link changes, somebody wakes it, or it is time to retry.
fn watch(port: &TapPort, events: &OwnedFd) {
    vmlan_sandbox::enter(vmlan_sandbox::Thread::Tap);
    while !port.wake.stopped() {
        let mut fds =
            [events.as_fd(), port.wake.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        sys::poll(&mut fds, (!port.attached()).then_some(RETRY));
        sys::drain(events.as_fd());
        port.wake.clear();
        if !port.wake.stopped() {
            port.look(events);
        }
    }
}

impl TapPort {
    fn new(config: Config, changed: Changed, wake: Wake) -> Self {
        Self {
            config,
            changed,
            wake,
            wanted: Wanted::default(),
            tx: Mutex::new(Tx { queues: Vec::new(), inbox: Inbox::new(BATCH), next: 0 }),
            rx: Mutex::new(Rx { queues: Vec::new(), scratch: vec![0; MAX_FRAME] }),
            counters: Counters::default(),
            offloads: AtomicU8::new(0),
            version: AtomicU64::new(0),
            up: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            mtu: AtomicU32::new(0),
            trouble: Mutex::new(None),
        }
    }

    fn attached(&self) -> bool {
        !lock(&self.rx).queues.is_empty()
    }

    /// Finds out what became of the device, and acts on it.
    fn look(&self, socket: &OwnedFd) {
        let name = self.name();
        if self.attached() && name.is_none() {
            log::warn!("{}: the device was deleted", self.config.label);
            self.detach();
        }
        let mut news = false;
        if !self.attached() {
            news = self.reattach();
        }
        // A device moved to another namespace has no flags here, and works.
        let name = self.name();
        let mtu = name.as_ref().and_then(|n| sys::link_mtu(socket.as_fd(), n).ok()).unwrap_or(0);
        news |= self.mtu.swap(mtu, Ordering::AcqRel) != mtu;
        let flags = name.map(|n| sys::link_flags(socket.as_fd(), &n).unwrap_or(libc::IFF_UP));
        let up = flags.is_some_and(|f| f & libc::IFF_UP != 0);
        if self.up.swap(up, Ordering::AcqRel) != up || news {
            log::info!("{}: {}", self.config.label, if up { "up" } else { "down" });
            (self.changed)();
        }
    }

    /// The device's present name; none if it is gone.
    fn name(&self) -> Option<String> {
        let queue = lock(&self.rx).queues.first().cloned()?;
        sys::tun_name(queue.as_fd()).ok()
    }

    fn reattach(&self) -> bool {
        match device::open(&self.config) {
            Ok(device) => {
                self.install(device);
                true
            }
            Err(e) => {
                *lock(&self.trouble) = Some(error_chain(&e));
                false
            }
        }
    }

    fn install(&self, device: device::Device) {
        self.offloads.store(device.offloads.bits(), Ordering::Release);
        *lock(&self.trouble) = None;
        self.replace(device.queues);
    }

    /// Lets the device go: no frame of it is lent or being written when this returns.
    fn detach(&self) {
        *lock(&self.trouble) = Some("detached".to_owned());
        self.replace(Vec::new());
    }

    fn replace(&self, queues: Vec<Arc<OwnedFd>>) {
        let mut tx = self.wanted.lock(&self.tx);
        let mut rx = self.wanted.lock(&self.rx);
        tx.inbox.lose(&self.counters.input);
        tx.queues.clone_from(&queues);
        rx.queues = queues;
        self.gone.store(false, Ordering::Release);
        self.drained.store(false, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// A call said that the device is gone: the control thread will see to it.
    fn report_gone(&self) {
        if !self.gone.swap(true, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    /// Reads until `limit` frames wait, all queues are empty, or there is no room. True if looking
    /// again is useless until a doorbell rings or a held frame is finished.
    fn fill(&self, tx: &mut Tx, limit: usize) -> bool {
        if tx.inbox.len() >= limit {
            return true;
        }
        let Tx { queues, inbox, next } = tx;
        let n = queues.len();
        let first = *next;
        *next = if first + 1 < n { first + 1 } else { 0 };
        for queue in queues.iter().cycle().skip(first).take(n) {
            if !self.fill_from(queue.as_fd(), inbox, limit) {
                return false;
            }
        }
        true
    }

    /// True if the queue has nothing more for us.
    fn fill_from(&self, queue: BorrowedFd<'_>, inbox: &mut Inbox, limit: usize) -> bool {
        while inbox.len() < limit {
            // One byte over, so that a cut frame is longer than allowed.
            let Some(room) = inbox.free(header::LEN + MAX_FRAME + 1) else { return true };
            let room = room.get_mut(..header::LEN + MAX_FRAME + 1).unwrap_or_default();
            match rustix::io::read(queue, room) {
                Ok(n) => {
                    inbox.filled(n);
                    self.accept(inbox);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => {
                    self.report_gone();
                    return true;
                }
            }
        }
        false
    }

    /// Makes a frame of what was just read. The kernel is believed no more than a guest: lengths
    /// are checked here, offsets by the batch.
    fn accept(&self, inbox: &mut Inbox) {
        let parsed = inbox.tail().first_chunk().ok_or(Reason::Runt).and_then(header::parse);
        match parsed {
            Ok(offload) => {
                inbox.skip(header::LEN);
                inbox.take(usize::MAX, offload);
            }
            Err(reason) => {
                inbox.skip(usize::MAX);
                self.counters.input.drop(reason, 1);
            }
        }
        inbox.align();
    }

    /// Writes one frame.
    fn write(&self, rx: &mut Rx, frame: &FrameView<'_, '_>) -> Result<(), Reason> {
        if frame.len < MIN_FRAME {
            return Err(Reason::Runt);
        }
        let Rx { queues, scratch } = rx;
        let queue = pick(queues, frame.head).ok_or(Reason::LinkDown)?;
        let header = header::emit(&frame.offload);
        let mut runs = sys::Gather::<RUNS>::new();
        runs.add(Slice::from_bytes(&header));
        if runs.has_room(frame.body.len() + 1) {
            runs.add(Slice::from_bytes(frame.head));
            frame.body.iter().for_each(|run| runs.add(*run));
        } else {
            let n = frame.copy_to(scratch);
            runs.add(Slice::from_bytes(scratch.get(..n).unwrap_or_default()));
        }
        loop {
            match runs.write(queue.as_fd()) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.refused(&e)),
            }
        }
    }

    /// Why the kernel did not take a frame. No errno costs more than the frame.
    fn refused(&self, e: &io::Error) -> Reason {
        match e.raw_os_error() {
            Some(libc::EIO) => Reason::LinkDown,
            Some(libc::EBADFD) => {
                self.report_gone();
                Reason::LinkDown
            }
            Some(libc::EAGAIN) => Reason::ReceiverFull,
            _ => Reason::DeviceError,
        }
    }
}

/// The queue for a frame: one flow, one queue. For IPv4 the bytes mixed are both addresses, and
/// both ports; for IPv6 they are the source's low half.
fn pick<'q>(queues: &'q [Arc<OwnedFd>], head: &[u8]) -> Option<&'q Arc<OwnedFd>> {
    if queues.len() < 2 {
        return queues.first();
    }
    let flow = head.iter().take(12).chain(head.get(26..38).unwrap_or_default());
    let hash = flow.fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    queues.get((hash >> 8) as usize % queues.len())
}

impl Port for TapPort {
    fn pull(&self, batch: &mut Batch<'static>, limit: usize, sink: &mut dyn Sink) -> usize {
        let Some(mut tx) = self.wanted.try_lock(&self.tx) else { return 0 };
        let drained = self.fill(&mut tx, limit);
        self.drained.store(drained, Ordering::Release);
        if tx.inbox.len() == 0 {
            return 0;
        }
        tx.inbox.lend(batch, limit, sink, &self.counters.input)
    }

    fn push(&self, batch: &Batch<'_>, list: &[u16]) -> usize {
        let mut rx = lock(&self.rx);
        let (mut frames, mut bytes) = (0, 0);
        for frame in list.iter().filter_map(|i| batch.frame(usize::from(*i))) {
            match self.write(&mut rx, &frame) {
                Ok(()) => {
                    frames += 1;
                    bytes += frame.len as u64;
                }
                Err(reason) => self.counters.output.drop(reason, 1),
            }
        }
        self.counters.output.count(frames, bytes);
        list.len()
    }

    fn offloads(&self) -> Offloads {
        Offloads::from_bits(self.offloads.load(Ordering::Acquire))
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn arm(&self) -> bool {
        // Without a device nothing can wait; with one, a frame that comes after the last empty read
        // makes an edge, and epoll keeps it.
        self.is_up() && !self.drained.load(Ordering::Acquire)
    }

    fn disarm(&self) {}

    fn doorbells(&self) -> Vec<Doorbell> {
        lock(&self.rx).queues.iter().map(|q| q.clone() as Doorbell).collect()
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
