//! An interface of the host, a physical NIC for one, as a port by XDP sockets:
//! `xdp:NAME[,queues=N][,zerocopy=on|off][,mtu=N]`.
//!
//! A program of five instructions, attached to the interface, hands every frame of a queue to that
//! queue's socket, past the host's stack. What comes in has no offloads, and what goes out must
//! have none: the switch finishes checksums and segments before. Frames are copied out of the
//! shared memory at once and into it once, so memory of guests is never shared with a device.
//!
//! Sockets, chunks and the link of the program end with the device. Made anew they want the same
//! rights, but for the program and the map of its sockets, which stay.
//!
//! The system calls are made here rather than by libxdp, which brings libbpf, libelf and zlib into
//! a program that links statically, and searches the file system for compiled programs.

mod queue;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::netdevice;
use vmlan_frame::{
    BATCH, Batch, Changed, Counters, Details, Doorbell, Offload, Offloads, Port, Reason, Sink,
    error_chain,
};
use vmlan_sandbox::Thread;

use self::queue::{Copying, LONGEST_MTU, Receiving, Sending};
use crate::inbox::Inbox;
use crate::link::{Interface, Link, Running};
use crate::sys;
use crate::thread_control::lock;
use crate::writer;

/// The most queues that are looked for.
const MAX_QUEUES: u32 = 64;

/// When the thread sends again what found the device's queue full.
const AGAIN: Duration = Duration::from_millis(1);

/// Room for the longest frame that fits a chunk.
const ROOM: usize = 4096;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What log lines call the port.
    pub label: String,
    /// The interface's name.
    pub name: String,
    /// Queues to take, from the first on; `None`: all there are.
    pub queues: Option<u16>,
    /// The device writes to our memory: it must, it must not, or it does if it can.
    pub zero_copy: Option<bool>,
}

/// Why XDP sockets on an interface could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum XdpError {
    #[error("xdp `{0}`: there is no such interface here; `ip link` lists those that are")]
    NoDevice(String, #[source] io::Error),
    #[error(
        "xdp `{0}`: XDP wants CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: start the switch as root, or \
         with AmbientCapabilities= of these in its systemd unit; packet:{0} wants the first only"
    )]
    NotAllowed(String, #[source] io::Error),
    #[error(
        "xdp `{0}`: the memory of its queues is above what this user may lock: give CAP_IPC_LOCK, \
         raise LimitMEMLOCK= (6 MiB a queue, 12 above an MTU of 1770), or take fewer by queues="
    )]
    Memory(String, #[source] io::Error),
    #[error(
        "xdp `{0}`: another XDP program is attached to it: stop its owner, or \
         `ip link set dev {0} xdp off`"
    )]
    Attached(String, #[source] io::Error),
    #[error("xdp `{0}`: a queue is in use by another program's XDP socket: stop that program")]
    Busy(String, #[source] io::Error),
    #[error(
        "xdp `{name}`: its MTU is {mtu}, and a frame must fit {LONGEST_MTU}: make it smaller \
         (`ip link set {name} mtu 1500`), or use packet:{name}"
    )]
    Mtu { name: String, mtu: u32 },
    #[error(
        "xdp `{0}`: it takes VLAN tags out of frames before XDP sees them, so those of any VLAN \
         would come in as untagged: `ethtool -K {0} rxvlan off`"
    )]
    TakesTags(String),
    #[error("xdp `{0}`: is no Ethernet device (its type is {1}): choose one with MAC addresses")]
    NotEthernet(String, u16),
    #[error("xdp `{0}`: its driver has no zero-copy mode: leave zerocopy=on out")]
    NoZeroCopy(String, #[source] io::Error),
    #[error("xdp `{0}`: this kernel cannot: Linux 5.9 with CONFIG_XDP_SOCKETS is needed")]
    TooOld(String, #[source] io::Error),
    #[error("xdp `{0}`: {1}")]
    Io(String, &'static str, #[source] io::Error),
}

/// A running port. Closed when dropped; then the program is detached.
pub struct Xdp(Running<XdpPort>);

impl std::fmt::Debug for Xdp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Xdp").field(&self.0.port.config).finish()
    }
}

/// The interface's side sends: we receive.
#[derive(Debug)]
struct Tx {
    queues: Vec<Receiving>,
    inbox: Inbox,
    /// The queue to begin with, so that none starves.
    next: usize,
}

impl AsMut<Inbox> for Tx {
    fn as_mut(&mut self) -> &mut Inbox {
        &mut self.inbox
    }
}

/// What there is while there is a device.
#[derive(Debug)]
struct Attached {
    index: u32,
    /// Detaches the program when it is closed.
    _program: OwnedFd,
    /// In the driver, or behind it (generic).
    native: bool,
    zero_copy: bool,
    sockets: Vec<Arc<OwnedFd>>,
}

struct XdpPort {
    config: Config,
    link: Link,
    map: OwnedFd,
    program: OwnedFd,
    /// Has the interface receive frames for any address.
    promiscuous: OwnedFd,
    attached: Mutex<Option<Attached>>,
    tx: Mutex<Tx>,
    rx: Mutex<Vec<Sending>>,
    /// Frames wait in the rings of queues that send, for a call. Written under their lock.
    left: AtomicBool,
    /// Losses that were counted.
    lost: AtomicU64,
}

/// Attaches to the interface and starts the thread that looks after it.
///
/// # Errors
/// If it cannot be had: see [`XdpError`].
pub fn open(config: Config, changed: Changed) -> Result<Xdp, XdpError> {
    let name = &config.name.clone();
    let fail = |what| move |e| XdpError::new(name, what, e);
    let map = sys::bpf_socket_map(MAX_QUEUES).map_err(fail("the map of sockets"))?;
    let program = sys::bpf_load_xdp(&program(map.as_fd())).map_err(fail("the program"))?;
    let port = XdpPort {
        link: Link::new(&config.label, name, changed).map_err(fail("its state"))?,
        map,
        program,
        promiscuous: sys::packet_socket().map_err(fail("a packet socket"))?,
        attached: Mutex::new(None),
        tx: Mutex::new(Tx { queues: Vec::new(), inbox: Inbox::new(BATCH), next: 0 }),
        rx: Mutex::new(Vec::new()),
        left: AtomicBool::new(false),
        lost: AtomicU64::new(0),
        config,
    };
    port.attach_now()?;
    Ok(Xdp(Running::start(port).map_err(fail("its thread"))?))
}

/// Asks again for what is in use: the kernel frees queues and programs some time after their last
/// descriptor was closed. `sleep` says whether to end.
fn once_free<T>(
    sleep: impl Fn(Duration) -> bool,
    take: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..10 {
        match take() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                if sleep(PAUSE) {
                    return Err(e);
                }
            }
            taken => return taken,
        }
    }
    take()
}

/// `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS)`: what has no socket goes to the
/// host (kernel: `Documentation/bpf/standardization/instruction-set.rst`).
fn program(map: BorrowedFd<'_>) -> [u64; 6] {
    use std::os::fd::AsRawFd;
    const RX_QUEUE_INDEX: i16 = 16; // In `xdp_md`.
    const PSEUDO_MAP_FD: u8 = 1;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    let instruction = |code: u8, to: u8, from: u8, offset: i16, value: i32| {
        let ([o0, o1], [v0, v1, v2, v3]) = (offset.to_ne_bytes(), value.to_ne_bytes());
        let registers =
            if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
        u64::from_ne_bytes([code, registers, o0, o1, v0, v1, v2, v3])
    };
    [
        instruction(0x61, 2, 1, RX_QUEUE_INDEX, 0), // r2 = *(u32 *)(r1 + 16)
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, map.as_raw_fd()), // r1 = map, in two slots
        0,
        instruction(0xb7, 3, 0, 0, XDP_PASS), // r3 = XDP_PASS
        instruction(0x85, 0, 0, 0, REDIRECT_MAP), // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x95, 0, 0, 0, 0),        // return r0
    ]
}

impl XdpError {
    /// From what failed.
    fn new(name: &str, what: &'static str, e: io::Error) -> Self {
        let name = name.to_owned();
        match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed(name, e),
            Some(libc::ENODEV | libc::ENXIO) => Self::NoDevice(name, e),
            Some(libc::ENOBUFS) => Self::Memory(name, e),
            Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT | libc::ENOSYS) => Self::TooOld(name, e),
            None if e.kind() == io::ErrorKind::Unsupported => Self::TooOld(name, e),
            _ => Self::Io(name, what, e),
        }
    }
}

impl Xdp {
    /// The port.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.0.port) as Arc<dyn Port>
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        self.0.details("xdp")
    }

    /// The interface's MTU, if it is there.
    pub fn mtu(&self) -> Option<u32> {
        self.0.mtu()
    }

    /// Stops the thread and detaches the program.
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl Interface for XdpPort {
    const THREAD: Thread = Thread::Xdp;
    // To attach the program makes some devices start anew.
    const LONGEST_RETRY: Duration = Duration::from_secs(30);
    const UP: libc::c_int = libc::IFF_UP | libc::IFF_RUNNING;

    fn link(&self) -> &Link {
        &self.link
    }

    fn attached(&self) -> bool {
        lock(&self.attached).is_some()
    }

    fn name(&self, socket: BorrowedFd<'_>) -> Option<String> {
        let index = lock(&self.attached).as_ref()?.index;
        netdevice::index_to_name(socket, index).ok()
    }

    fn attach(&self, _socket: BorrowedFd<'_>) -> Result<(), String> {
        self.attach_now().map_err(|e| error_chain(&e))
    }

    fn detach(&self) {
        self.count_losses();
        self.replace(None, Vec::new(), Vec::new(), Link::lost);
    }

    /// Sends what a push left in the rings, which waits for a link that is down.
    fn chores(&self) -> Option<Duration> {
        let left = || self.left.load(Ordering::Acquire) && self.is_up();
        if left() {
            self.send(&mut lock(&self.rx));
        }
        left().then_some(AGAIN)
    }

    fn more_details(&self) -> Details {
        let attached = lock(&self.attached);
        let words = attached.as_ref().map(|a| {
            let mode = if a.native { "native" } else { "generic" };
            let zero_copy = if a.zero_copy { "on" } else { "off" };
            (a.sockets.len().to_string(), mode, zero_copy)
        });
        let (queues, mode, zero_copy) = words.unwrap_or(("0".to_owned(), "none", "off"));
        vec![("queues", queues), ("mode", mode.to_owned()), ("zerocopy", zero_copy.to_owned())]
    }
}

impl XdpPort {
    fn attach_now(&self) -> Result<(), XdpError> {
        let name = &self.config.name;
        let fail = |what| move |e| XdpError::new(name, what, e);
        let socket = self.promiscuous.as_fd();
        match sys::link_type(socket, name).map_err(fail("its type"))? {
            libc::ARPHRD_ETHER => {}
            other => return Err(XdpError::NotEthernet(name.clone(), other)),
        }
        let index = netdevice::name_to_index(socket, name);
        let index = index.map_err(|e| XdpError::new(name, "its index", e.into()))?;
        let mtu = sys::link_mtu(socket, name).map_err(fail("its MTU"))?;
        let chunk = queue::chunk(mtu).ok_or_else(|| XdpError::Mtu { name: name.clone(), mtu })?;
        if sys::link_takes_tags(socket, name).map_err(fail("its offloads"))? {
            return Err(XdpError::TakesTags(name.clone()));
        }
        // Some devices start anew with a program, and have queues for XDP only then. What comes in
        // while the map is empty goes to the host.
        let (link, native) = self.attach_program(index)?;
        let (receiving, sending) = self.open_queues(index, chunk)?;
        for (n, queue) in (0..).zip(&receiving) {
            let socket = queue.socket().as_fd();
            sys::bpf_map_socket(self.map.as_fd(), n, socket).map_err(fail("the map of sockets"))?;
        }
        sys::packet_promiscuous(socket, index).map_err(fail("promiscuous mode"))?;
        let attached = Attached {
            index,
            _program: link,
            native,
            zero_copy: receiving.iter().all(Receiving::is_zero_copy),
            sockets: receiving.iter().map(|queue| queue.socket().clone()).collect(),
        };
        // Losses are counted from 0 by new sockets.
        self.lost.store(0, Ordering::Relaxed);
        self.replace(Some(attached), receiving, sending, |link| link.found(Offloads::NONE));
        Ok(())
    }

    fn open_queues(
        &self,
        index: u32,
        chunk: u32,
    ) -> Result<(Vec<Receiving>, Vec<Sending>), XdpError> {
        let name = &self.config.name;
        let copying = match self.config.zero_copy {
            None => Copying::IfNeeded,
            Some(true) => Copying::Never,
            Some(false) => Copying::Always,
        };
        let (mut receiving, mut sending) = (Vec::new(), Vec::new());
        let there = sys::link_queues(self.promiscuous.as_fd(), name);
        let (receive, send) = there.map_err(|e| XdpError::new(name, "its queues", e))?;
        let wanted = self.config.queues.map_or(receive, |wanted| receive.min(wanted.into()));
        for n in 0..wanted.clamp(1, MAX_QUEUES) {
            let opened =
                once_free(|time| self.link.sleep(time), || queue::open(index, n, chunk, copying));
            let (r, s) = opened.map_err(|e| match (e.raw_os_error(), copying) {
                (Some(libc::EBUSY), _) => XdpError::Busy(name.clone(), e),
                (Some(libc::EOPNOTSUPP | libc::EINVAL), Copying::Never) => {
                    XdpError::NoZeroCopy(name.clone(), e)
                }
                _ => XdpError::new(name, "a queue", e),
            })?;
            receiving.push(r);
            // A socket whose queue does not send keeps what it is given.
            if n < send.max(1) {
                sending.push(s);
            }
        }
        Ok((receiving, sending))
    }

    /// In the driver, or where that cannot, behind it.
    fn attach_program(&self, index: u32) -> Result<(OwnedFd, bool), XdpError> {
        const GENERIC: u32 = 1 << 1; // `XDP_FLAGS_SKB_MODE`
        const NATIVE: u32 = 1 << 2; // `XDP_FLAGS_DRV_MODE`
        let program = self.program.as_fd();
        let sleep = |time| self.link.sleep(time);
        let attach = |flags| once_free(sleep, || sys::bpf_link_xdp(program, index, flags));
        let attached = match attach(NATIVE) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                attach(GENERIC).map(|link| (link, false))
            }
            link => link.map(|link| (link, true)),
        };
        attached.map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Attached(self.config.name.clone(), e),
            _ => XdpError::new(&self.config.name, "attaching the program", e),
        })
    }

    fn replace(
        &self,
        attached: Option<Attached>,
        receiving: Vec<Receiving>,
        sending: Vec<Sending>,
        note: impl FnOnce(&Link),
    ) {
        let mut tx = self.link.wanted.lock(&self.tx);
        let mut rx = self.link.wanted.lock(&self.rx);
        let attached = std::mem::replace(&mut *lock(&self.attached), attached);
        let receiving = std::mem::replace(&mut tx.queues, receiving);
        let sending = std::mem::replace(&mut *rx, sending);
        tx.next = 0;
        note(&self.link);
        drop((tx, rx));
        // To detach the program waits for the kernel's lock on all its links, and no worker waits
        // for that.
        drop((attached, receiving, sending));
    }

    /// Takes frames until `limit` wait, all queues are empty, or there is no room. True if looking
    /// again is useless until a doorbell rings or a held frame is finished.
    fn fill(&self, Tx { queues, inbox, next }: &mut Tx, limit: usize) -> bool {
        if inbox.len() >= limit {
            return true;
        }
        let n = queues.len();
        let first = *next;
        *next = if first + 1 < n { first + 1 } else { 0 };
        let (before, from) = queues.split_at_mut(first.min(n));
        for queue in from.iter_mut().chain(before) {
            let empty = self.fill_from(queue, inbox, limit);
            queue.give_back();
            if !empty {
                return false;
            }
        }
        true
    }

    /// True if the queue has nothing more for us.
    fn fill_from(&self, queue: &mut Receiving, inbox: &mut Inbox, limit: usize) -> bool {
        while inbox.len() < limit {
            let Some(room) = inbox.free(ROOM) else { return true };
            let Some(taken) = queue.take(room.get_mut(..ROOM).unwrap_or_default()) else {
                return true;
            };
            match taken {
                Ok(n) => {
                    inbox.filled(n);
                    inbox.take(usize::MAX, Offload::NONE);
                    inbox.align();
                }
                Err(reason) => self.link.counters.input.drop(reason, 1),
            }
        }
        false
    }

    /// Has the kernel send what was added. True if the thread is to be told that some is left.
    fn send(&self, queues: &mut [Sending]) -> bool {
        let mut left = false;
        for queue in queues {
            left |= queue.send().unwrap_or_else(|e| self.link.refused(&e) == Reason::LinkDown);
        }
        !self.left.swap(left, Ordering::AcqRel) && left
    }

    fn count_losses(&self) {
        let tx = self.link.wanted.lock(&self.tx);
        let all: u64 = tx.queues.iter().map(Receiving::lost).sum();
        let new = all.saturating_sub(self.lost.swap(all, Ordering::Relaxed));
        if new > 0 {
            self.link.counters.input.drop(Reason::Overrun, new);
        }
    }
}

impl Port for XdpPort {
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
        // What is sent while the link is down would leave when it is up.
        let up = self.link.is_up();
        let done = writer::push(batch, list, &self.link.counters.output, |frame| {
            let n = writer::queue_of(frame.head, rx.len());
            let queue = rx.get_mut(n).filter(|_| up).ok_or(Reason::LinkDown)?;
            let takes = self.link.takes(frame.head, frame.len);
            if takes { queue.add(frame) } else { Err(Reason::TooLong) }
        });
        if self.send(&mut rx) {
            self.link.wake();
        }
        done
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
        let attached = lock(&self.attached);
        let sockets = attached.iter().flat_map(|attached| &attached.sockets);
        sockets.map(|socket| socket.clone() as Doorbell).collect()
    }

    fn doorbells_version(&self) -> u64 {
        self.link.version()
    }

    fn rang(&self) {
        self.link.counters.input.notifications.add_shared(1);
    }

    fn count_doorbells(&self) {
        self.count_losses();
    }

    fn counters(&self) -> &Counters {
        &self.link.counters
    }
}
