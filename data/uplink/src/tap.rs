//! A TAP device of the host as a port: `tap:NAME[,queues=N][,offload=off]`.
//!
//! The host's kernel is the port's owner: what it sends into the device we pull, what we push it
//! receives.
//!
//! *Link down*: writes fail with EIO, which costs the frame and nothing else. *Deleted*: reads and
//! writes fail with EBADFD; a new device is made, or attached to, as soon as that works. Any other
//! error costs a frame: for one, no virtio-net header describes some that a NIC has merged.

mod device;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use vmlan_frame::{
    BATCH, Batch, Changed, Counters, Details, Doorbell, FrameView, MAX_FRAME, Offloads, Port,
    Reason, Sink, error_chain,
};
use vmlan_sandbox::Thread;

pub use self::device::TapError;
use crate::inbox::Inbox;
use crate::link::{Interface, Link, Running};
use crate::sys;
use crate::thread_control::lock;
use crate::vnet_header;
use crate::writer::{self, Writer, queue_of};

/// Looks at a queue that end in [`BATCH`] errors before it counts as empty. More errors than any
/// queue has frames do not come from frames, and a worker that looked for their end would spin.
const ERRORS: usize = 64;

/// How often the thread looks whether workers have let go of queues.
const LOOK: Duration = Duration::from_secs(1);

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
pub struct Tap(Running<TapPort>);

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tap").field(&self.0.port.config).finish()
    }
}

/// The kernel's side sends: we read.
#[derive(Debug)]
struct Tx {
    queues: Vec<Queue>,
    inbox: Inbox,
    /// The queue to begin with, so that none starves.
    next: usize,
}

impl AsMut<Inbox> for Tx {
    fn as_mut(&mut self) -> &mut Inbox {
        &mut self.inbox
    }
}

/// A queue that we read.
#[derive(Debug)]
struct Queue {
    fd: Arc<OwnedFd>,
    /// Looks since it was empty that brought nothing but errors at their end.
    errors: usize,
}

/// The kernel's side receives: we write.
#[derive(Debug)]
struct Rx {
    queues: Vec<Arc<OwnedFd>>,
    writer: Writer,
}

struct TapPort {
    config: Config,
    link: Link,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    /// Queues of devices that are gone, which workers may still watch.
    old: Mutex<Vec<Arc<OwnedFd>>>,
}

/// Opens (or creates) the device and starts its control thread.
///
/// # Errors
/// If the device cannot be had: see [`TapError`].
pub fn open(config: Config, changed: Changed) -> Result<Tap, TapError> {
    device::check(&config)?;
    let device = device::open(&config)?;
    let name = config.name.clone();
    start(config, device, changed).map_err(|e| TapError::Io(name, e))
}

/// As [`open`], with the queues that another process was attached by ([`Tap::queues`]). `None`:
/// they are not those of this device any more, and are closed.
pub fn adopt(config: Config, queues: Vec<OwnedFd>, changed: Changed) -> Option<Tap> {
    let device = device::adopt(&config, queues)?;
    start(config, device, changed).ok()
}

fn start(config: Config, device: device::Device, changed: Changed) -> std::io::Result<Tap> {
    let port = TapPort::new(config, changed)?;
    port.install(device);
    Ok(Tap(Running::start(port)?))
}

impl Tap {
    /// The port.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.0.port) as Arc<dyn Port>
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        self.0.details("tap")
    }

    /// The device's MTU, if it is there and in this namespace.
    pub fn mtu(&self) -> Option<u32> {
        self.0.mtu()
    }

    /// Another number when [`Tap::queues`] has changed.
    pub fn version(&self) -> u64 {
        self.0.port.link.version()
    }

    /// What it is attached by, and a number that is another one when that has changed. As long as
    /// somebody has duplicates, the device stays as it is.
    pub fn queues(&self) -> (Vec<Arc<OwnedFd>>, u64) {
        let rx = lock(&self.0.port.rx);
        (rx.queues.clone(), self.0.port.link.version())
    }

    /// Stops the thread and lets the device go.
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl Interface for TapPort {
    const THREAD: Thread = Thread::Tap;
    const UP: libc::c_int = libc::IFF_UP;

    fn link(&self) -> &Link {
        &self.link
    }

    fn attached(&self) -> bool {
        !lock(&self.rx).queues.is_empty()
    }

    fn name(&self, _socket: BorrowedFd<'_>) -> Option<String> {
        let queue = lock(&self.rx).queues.first().cloned()?;
        sys::tun_name(queue.as_fd()).ok()
    }

    fn attach(&self, _socket: BorrowedFd<'_>) -> Result<(), String> {
        self.install(device::open(&self.config).map_err(|e| error_chain(&e))?);
        Ok(())
    }

    fn detach(&self) {
        self.replace(Vec::new(), Link::lost);
    }

    /// Closes old queues that only we have. To close one waits for the kernel's lock on all its
    /// links, and no worker is to be the last that has one.
    fn chores(&self) -> Option<Duration> {
        let mut old = lock(&self.old);
        old.retain(|queue| Arc::strong_count(queue) > 1);
        (!old.is_empty()).then_some(LOOK)
    }

    fn more_details(&self) -> Details {
        let offload = if self.config.offload { "on" } else { "off" };
        let queues = lock(&self.rx).queues.len();
        vec![("queues", queues.to_string()), ("offload", offload.to_owned())]
    }
}

impl TapPort {
    fn new(config: Config, changed: Changed) -> std::io::Result<Self> {
        Ok(Self {
            link: Link::new(&config.label, &config.name, changed)?,
            config,
            tx: Mutex::new(Tx { queues: Vec::new(), inbox: Inbox::new(BATCH), next: 0 }),
            rx: Mutex::new(Rx { queues: Vec::new(), writer: Writer::new() }),
            old: Mutex::default(),
        })
    }

    fn install(&self, device: device::Device) {
        self.replace(device.queues, |link| link.found(device.offloads));
    }

    fn replace(&self, queues: Vec<Arc<OwnedFd>>, note: impl FnOnce(&Link)) {
        let mut tx = self.link.wanted.lock(&self.tx);
        let mut rx = self.link.wanted.lock(&self.rx);
        tx.inbox.lose(&self.link.counters.input);
        tx.queues = queues.iter().map(|fd| Queue { fd: Arc::clone(fd), errors: 0 }).collect();
        let old = std::mem::replace(&mut rx.queues, queues);
        note(&self.link);
        drop((tx, rx));
        lock(&self.old).extend(old);
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
        let (before, from) = queues.split_at_mut(first.min(n));
        from.iter_mut().chain(before).all(|queue| self.fill_from(queue, inbox, limit))
    }

    /// True if the queue has nothing more for us.
    fn fill_from(&self, queue: &mut Queue, inbox: &mut Inbox, limit: usize) -> bool {
        let mut errors = 0;
        while inbox.len() < limit {
            // One byte over, so that a cut frame is longer than allowed.
            let Some(room) = inbox.free(vnet_header::LEN + MAX_FRAME + 1) else { return true };
            let room = room.get_mut(..vnet_header::LEN + MAX_FRAME + 1).unwrap_or_default();
            match rustix::io::read(&queue.fd, room) {
                Ok(n) => {
                    inbox.filled(n);
                    self.accept(inbox);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    queue.errors = 0;
                    return true;
                }
                Err(Errno::BADFD) => {
                    self.link.report_gone();
                    return true;
                }
                // As a rule the kernel has freed a frame that its header cannot describe.
                Err(_) => {
                    self.link.counters.input.drop(Reason::DeviceError, 1);
                    errors += 1;
                    if errors == BATCH {
                        queue.errors += 1;
                        return queue.errors > ERRORS;
                    }
                }
            }
        }
        false
    }

    /// Makes a frame of what was just read. The kernel is believed no more than a guest: lengths
    /// are checked here, offsets by the batch.
    fn accept(&self, inbox: &mut Inbox) {
        let parsed = inbox.tail().first_chunk().ok_or(Reason::Runt).and_then(vnet_header::parse);
        match parsed {
            Ok(offload) => {
                inbox.skip(vnet_header::LEN);
                inbox.take(usize::MAX, offload);
            }
            Err(reason) => {
                inbox.skip(usize::MAX);
                self.link.counters.input.drop(reason, 1);
            }
        }
        inbox.align();
    }

    /// Writes one frame.
    fn write(&self, rx: &mut Rx, frame: &FrameView<'_, '_>) -> Result<(), Reason> {
        let queue = rx.queues.get(queue_of(frame.head, rx.queues.len())).ok_or(Reason::LinkDown)?;
        rx.writer.write(queue.as_fd(), frame, &self.link)
    }
}

impl Port for TapPort {
    fn pull(
        &self,
        _: usize,
        batch: &mut Batch<'static>,
        limit: usize,
        sink: &mut dyn Sink,
    ) -> usize {
        self.link.pull(&self.tx, |tx, limit| self.fill(tx, limit), (batch, limit, sink))
    }

    fn push(&self, batch: &Batch<'_>, list: &mut [u16]) -> usize {
        let mut rx = lock(&self.rx);
        writer::push(batch, list, &self.link.counters.output, |f| self.write(&mut rx, f))
    }

    fn offloads(&self) -> Offloads {
        self.link.offloads()
    }

    fn is_up(&self) -> bool {
        self.link.is_up()
    }

    fn arm(&self, _: usize) -> bool {
        self.link.arm()
    }

    fn disarm(&self, _: usize) {}

    fn doorbells(&self, _: usize) -> Vec<Doorbell> {
        lock(&self.rx).queues.iter().map(|q| q.clone() as Doorbell).collect()
    }

    fn doorbells_version(&self) -> u64 {
        self.link.version()
    }

    fn rang(&self) {
        self.link.counters.input.notifications.add_shared(1);
    }

    fn counters(&self) -> &Counters {
        &self.link.counters
    }
}
