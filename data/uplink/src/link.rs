//! What all ports on an interface of the host share: the link's state, and the thread that watches
//! it.
//!
//! *Link down*: the port is down, and up again when the link is. *Deleted*: the port goes down, and
//! is attached again as soon as that works. Links are watched by netlink, and the worker's own
//! errors are believed too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use vmlan_frame::{Batch, Changed, Counters, Details, LogLimit, Offloads, Port, Reason, Sink};
use vmlan_sandbox::Thread;

use crate::inbox::Inbox;
use crate::sys;
use crate::thread_control::{Wake, Wanted, lock};

/// Time between the first attempts to get the device back.
const RETRY: Duration = Duration::from_secs(1);

/// A port on an interface, as its thread sees it.
pub(crate) trait Interface: Port + 'static {
    /// Whose list of system calls its thread has.
    const THREAD: Thread;
    /// Time between attempts to get the device back, when many have failed.
    const LONGEST_RETRY: Duration = RETRY;
    /// The flags of an interface that is up.
    const UP: libc::c_int;

    fn link(&self) -> &Link;

    fn attached(&self) -> bool;

    /// The device's present name; none if it is gone. `socket` takes requests.
    fn name(&self, socket: BorrowedFd<'_>) -> Option<String>;

    /// Attaches to the device of the configured name.
    ///
    /// # Errors
    /// One line that says why not.
    fn attach(&self, socket: BorrowedFd<'_>) -> Result<(), String>;

    /// Lets the device go: no frame of it is lent or being written when this returns.
    fn detach(&self);

    /// Does what is to be done from time to time; returns in what time it is to be called again, if
    /// nothing else wakes the thread before.
    fn chores(&self) -> Option<Duration> {
        None
    }

    /// What it says of itself beside what is said of any interface.
    fn more_details(&self) -> Details;
}

/// The state of a link.
pub(crate) struct Link {
    label: String,
    /// The configured name.
    pub(crate) interface: String,
    changed: Changed,
    wake: Wake,
    pub(crate) wanted: Wanted,
    pub(crate) counters: Counters,
    offloads: AtomicU8,
    version: AtomicU64,
    pub(crate) up: AtomicBool,
    /// Some call said that the device is gone.
    pub(crate) gone: AtomicBool,
    /// The last look at every queue found nothing, so the next frame makes an edge in epoll.
    drained: AtomicBool,
    /// The device's MTU; 0: unknown.
    mtu: AtomicU32,
    /// Why the device is not there.
    trouble: Mutex<Option<String>>,
    log: Mutex<LogLimit>,
    /// When the time of that began.
    start: Instant,
}

impl Link {
    pub(crate) fn new(label: &str, interface: &str, changed: Changed) -> io::Result<Self> {
        Ok(Self {
            label: label.to_owned(),
            interface: interface.to_owned(),
            changed,
            wake: Wake::new()?,
            wanted: Wanted::default(),
            counters: Counters::default(),
            offloads: AtomicU8::new(0),
            version: AtomicU64::new(0),
            up: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            mtu: AtomicU32::new(0),
            trouble: Mutex::new(None),
            log: Mutex::default(),
            start: Instant::now(),
        })
    }

    /// There is a device, which takes `offloads`.
    pub(crate) fn found(&self, offloads: Offloads) {
        self.offloads.store(offloads.bits(), Ordering::Release);
        *lock(&self.trouble) = None;
        self.replaced();
    }

    /// There is none.
    pub(crate) fn lost(&self) {
        *lock(&self.trouble) = Some("detached".to_owned());
        self.replaced();
    }

    /// The queues are others now. Called under both of the port's locks.
    fn replaced(&self) {
        self.gone.store(false, Ordering::Release);
        self.drained.store(false, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn offloads(&self) -> Offloads {
        Offloads::from_bits(self.offloads.load(Ordering::Acquire))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// True if the link takes a frame of `len` bytes that begins with `head`: one tag of 802.1Q
    /// comes on top of the MTU.
    pub(crate) fn takes(&self, head: &[u8], len: usize) -> bool {
        let tag = if head.get(12..14) == Some(&[0x81, 0]) { 4 } else { 0 };
        len <= self.mtu.load(Ordering::Acquire) as usize + 14 + tag
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Lends what waits in the inbox of `tx`, which `fill` has filled: see [`Port::pull`]. `fill`
    /// says whether looking again is useless until a doorbell rings.
    pub(crate) fn pull<T: AsMut<Inbox>>(
        &self,
        tx: &Mutex<T>,
        fill: impl FnOnce(&mut T, usize) -> bool,
        (batch, limit, sink): (&mut Batch<'static>, usize, &mut dyn Sink),
    ) -> usize {
        let Some(mut tx) = self.wanted.try_lock(tx) else {
            // The thread, or who reads counters, has it for a moment: what rang is still there.
            self.drained.store(false, Ordering::Release);
            return 0;
        };
        let drained = fill(&mut tx, limit);
        self.drained.store(drained, Ordering::Release);
        let inbox = (*tx).as_mut();
        if inbox.len() == 0 { 0 } else { inbox.lend(batch, limit, sink, &self.counters.input) }
    }

    /// True if frames may be waiting. Without a device nothing can wait; with one, a frame that
    /// comes after the last look in vain makes an edge, and epoll keeps it.
    pub(crate) fn arm(&self) -> bool {
        self.is_up() && !self.drained.load(Ordering::Acquire)
    }

    /// Sleeps for `time`; true if the thread is to end.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        self.wake.sleep(time);
        self.wake.stopped()
    }

    /// Has the thread look at its chores.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    pub(crate) fn warn(&self, what: &str) {
        match lock(&self.log).allow(self.start.elapsed()) {
            None => {}
            Some(0) => log::warn!("{}: {what}", self.label),
            Some(n) => log::warn!("{}: {what} (and {n} lines left out before)", self.label),
        }
    }

    /// A call said that the device is gone: the thread will see to it.
    pub(crate) fn report_gone(&self) {
        if !self.gone.swap(true, Ordering::AcqRel) {
            self.wake.wake();
        }
    }

    /// Why the kernel did not take a frame. No errno costs more than the frame.
    pub(crate) fn refused(&self, e: &io::Error) -> Reason {
        match e.raw_os_error() {
            Some(libc::EIO | libc::ENETDOWN) => Reason::LinkDown,
            Some(libc::EBADFD | libc::ENXIO) => {
                self.report_gone();
                Reason::LinkDown
            }
            Some(libc::EAGAIN | libc::ENOBUFS) => Reason::ReceiverFull,
            Some(libc::EMSGSIZE) => Reason::TooLong,
            _ => Reason::DeviceError,
        }
    }
}

/// A running port on an interface, with its thread. Closed when dropped.
pub(crate) struct Running<T: Interface> {
    pub(crate) port: Arc<T>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Interface> Running<T> {
    /// Starts the thread of a port that is attached.
    pub(crate) fn start(port: T) -> io::Result<Self> {
        let events = sys::link_events()?;
        let port = Arc::new(port);
        look(&*port, &events, &mut Retry::default());
        let watched = Arc::clone(&port);
        let thread = std::thread::Builder::new()
            .name(format!("{} {}", T::THREAD.name(), port.link().interface))
            .spawn(move || watch(&*watched, &events))?;
        Ok(Self { port, thread: Some(thread) })
    }

    /// Its state in words.
    pub(crate) fn details(&self, kind: &str) -> Details {
        let link = self.port.link();
        let state = match (&*lock(&link.trouble), link.is_up()) {
            (Some(trouble), _) => format!("gone: {trouble}"),
            (None, true) => "up".to_owned(),
            (None, false) => "link down".to_owned(),
        };
        let mtu = self.mtu().map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        let mut details = vec![
            ("kind", kind.to_owned()),
            ("state", state),
            ("interface", link.interface.clone()),
        ];
        details.extend(self.port.more_details());
        details.push(("mtu", mtu));
        details
    }

    /// The device's MTU, if it is there and in this namespace.
    pub(crate) fn mtu(&self) -> Option<u32> {
        Some(self.port.link().mtu.load(Ordering::Acquire)).filter(|mtu| *mtu > 0)
    }

    /// Stops the thread and lets the device go.
    pub(crate) fn close(&mut self) {
        let link = self.port.link();
        link.wake.stop();
        if let Some(thread) = self.thread.take() {
            // It ends at once; a panic in it has been reported by the runtime.
            let _ = thread.join();
            link.up.store(false, Ordering::Release);
            self.port.detach();
            // No worker has the port any more, and nobody else does them.
            self.port.chores();
            (link.changed)();
        }
    }
}

impl<T: Interface> Drop for Running<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread: sleeps until a link changes, somebody wakes it, or it is time to retry or for
/// chores.
fn watch<T: Interface>(port: &T, events: &OwnedFd) {
    vmlan_sandbox::enter(T::THREAD);
    let wake = &port.link().wake;
    let mut retry = Retry::default();
    while !wake.stopped() {
        let chores = port.chores();
        let mut fds =
            [events.as_fd(), wake.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let again = (!port.attached()).then(|| retry.pause.max(RETRY));
        sys::poll(&mut fds, again.into_iter().chain(chores).min());
        let heard = hear(port.link(), events);
        if !wake.stopped() && (heard || !port.attached()) {
            look(port, events, &mut retry);
        }
    }
}

/// Takes note of all that has been said so far. True if the device is to be looked at. What `poll`
/// said does not count: more may have come since.
fn hear(link: &Link, events: &OwnedFd) -> bool {
    let heard = sys::drain(events.as_fd());
    link.wake.clear();
    heard || link.gone.load(Ordering::Acquire)
}

/// When to try again to get the device back. An attempt makes events of links itself and may
/// disturb the device, so events are no reason for another one, unless it was not there before.
#[derive(Debug, Default)]
struct Retry {
    /// The device of that name was there at the last attempt.
    there: bool,
    /// Time between the last attempt and the next.
    pause: Duration,
    last: Option<Instant>,
}

impl Retry {
    /// True if it is time for an attempt, which the next one keeps away from.
    fn is_due(&mut self, there: bool, now: Instant, longest: Duration) -> bool {
        let later = self.last.is_some_and(|last| now.duration_since(last) < self.pause);
        if later && there && self.there {
            return false;
        }
        let pause = if there && self.there { self.pause * 2 } else { RETRY };
        *self = Self { there, pause: pause.clamp(RETRY, longest), last: Some(now) };
        true
    }
}

/// Finds out what became of the device, and acts on it.
fn look<T: Interface>(port: &T, socket: &OwnedFd, retry: &mut Retry) {
    let (link, socket) = (port.link(), socket.as_fd());
    let (gone, mut news) = (link.gone.load(Ordering::Acquire), false);
    if port.attached() && (gone || port.name(socket).is_none()) {
        link.warn("the device was deleted");
        news = link.up.swap(false, Ordering::AcqRel);
        port.detach();
    }
    let there = sys::link_flags(socket, &link.interface).is_ok();
    if !port.attached() && retry.is_due(there, Instant::now(), T::LONGEST_RETRY) {
        match port.attach(socket) {
            Ok(()) => (news, *retry) = (true, Retry::default()),
            Err(e) => *lock(&link.trouble) = Some(e),
        }
    }
    // A device moved to another namespace has no flags here; where it is still ours, it works.
    let name = port.name(socket);
    let mtu = name.as_ref().and_then(|n| sys::link_mtu(socket, n).ok()).unwrap_or(0);
    news |= link.mtu.swap(mtu, Ordering::AcqRel) != mtu;
    let flags = name.map(|n| sys::link_flags(socket, &n).unwrap_or(T::UP));
    let up = flags.is_some_and(|f| f & T::UP == T::UP);
    if link.up.swap(up, Ordering::AcqRel) != up || news {
        log::info!("{}: {}", link.label, if up { "up" } else { "down" });
        (link.changed)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between `poll` and the look at what there is, an event may come: it is not lost.
    #[test]
    fn what_is_read_is_heard() {
        let link = Link::new("link", "link", Arc::new(|| ())).unwrap();
        let (kernel, events) = std::os::unix::net::UnixDatagram::pair().unwrap();
        events.set_nonblocking(true).unwrap();
        let events = OwnedFd::from(events);
        assert!(!hear(&link, &events));
        kernel.send(b"event").unwrap();
        assert!(hear(&link, &events));
        assert!(!hear(&link, &events));
        link.wake();
        assert!(!hear(&link, &events), "that is for chores");
        link.report_gone();
        assert!(hear(&link, &events) && hear(&link, &events), "until somebody has looked");
    }

    #[test]
    fn attempts_become_rare_while_the_device_is_there() {
        let (start, longest) = (Instant::now(), Duration::from_secs(30));
        let mut retry = Retry::default();
        let mut attempts = Vec::new();
        // Events each 100 ms.
        for tenth in 0..1000 {
            let now = start + Duration::from_millis(100) * tenth;
            if retry.is_due(true, now, longest) {
                attempts.push(tenth);
            }
        }
        assert_eq!(attempts, [0, 10, 30, 70, 150, 310, 610, 910]);
        let now = start + Duration::from_millis(100_000);
        assert!(retry.is_due(false, now, longest), "gone");
        assert!(retry.is_due(true, now, longest), "and back at once");
        assert!(!retry.is_due(true, now, longest));
    }
}
