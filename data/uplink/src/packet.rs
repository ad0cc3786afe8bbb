//! An interface of the host, a physical NIC for one, as a port by a packet socket:
//! `packet:NAME[,mtu=N]`.
//!
//! The port has what comes in at the interface, and sends by it. What the host itself sends there
//! is not received, and the host's own stack gets what comes in as well. Offloads pass both ways in
//! virtio-net headers: what the kernel has merged (GRO) stays in one piece, and the interface, or
//! the kernel before it, segments what guests send.
//!
//! The socket, made once, outlives the device: to bind it again wants no right. A frame is copied
//! out of the ring at once, so no receiver without room keeps it from the frames behind.
//! `PACKET_TX_RING` is not used: its slots are free again when the skb that borrows them is
//! orphaned, which a receiver on the same host does while it still reads them.

mod ring;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{netdevice, sockopt};
use vmlan_frame::{
    BATCH, Batch, Changed, Counters, Details, Doorbell, Gso, MAX_FRAME, Offload, Offloads, Port,
    Reason, Sink, error_chain,
};
use vmlan_sandbox::Thread;

use self::ring::{Ring, Slot};
use crate::inbox::Inbox;
use crate::link::{Interface, Link, Running};
use crate::thread_control::lock;
use crate::writer::{self, Writer};
use crate::{sys, vnet_header};

/// Bytes that the kernel may queue, as far as it lets us: for frames that are too long for the
/// ring, and for those that are sent.
const QUEUE: usize = 4 << 20;

/// How often the thread looks whether the ring stands still, while the link is up.
const LOOK: Duration = Duration::from_secs(1);

/// Reads of a frame that is queued beside the ring.
const READS: usize = 8;

/// Bytes of a VLAN tag.
const TAG_LEN: u16 = 4;
const TAG: usize = TAG_LEN as usize;

/// Where MAC addresses end and a tag begins.
const MACS: usize = 12;

/// Room for any frame, its header, and a tag; and one byte over, so that a cut frame is longer than
/// allowed.
const ROOM: usize = TAG + vnet_header::LEN + MAX_FRAME + 1;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// What log lines call the port.
    pub label: String,
    /// The interface's name.
    pub name: String,
}

/// Why a packet socket on an interface could not be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PacketError {
    #[error("packet `{0}`: there is no such interface here; `ip link` lists those that are")]
    NoDevice(String, #[source] io::Error),
    #[error(
        "packet `{0}`: packet sockets want CAP_NET_RAW: start the switch as root, or with \
         AmbientCapabilities=CAP_NET_RAW in its systemd unit"
    )]
    NotAllowed(String, #[source] io::Error),
    #[error("packet `{0}`: is no Ethernet device (its type is {1}): choose one with MAC addresses")]
    NotEthernet(String, u16),
    #[error("packet `{0}`: this kernel is too old: Linux 4.20 or later is needed")]
    TooOld(String, #[source] io::Error),
    #[error("packet `{0}`")]
    Io(String, #[source] io::Error),
}

/// A running port. Closed when dropped; the interface stays as it is.
pub struct Packet(Running<PacketPort>);

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Packet").field(&self.0.port.link().interface).finish()
    }
}

/// The interface's side sends: we read.
#[derive(Debug)]
struct Tx {
    ring: Ring,
    inbox: Inbox,
    /// What the thread saw at its last look: frames lost, slots given back.
    seen: (u64, u64),
    /// That a ring stood still was said.
    told: bool,
}

impl AsMut<Inbox> for Tx {
    fn as_mut(&mut self) -> &mut Inbox {
        &mut self.inbox
    }
}

struct PacketPort {
    link: Link,
    socket: Arc<OwnedFd>,
    bound: AtomicBool,
    /// A frame is not where the ring says.
    astray: AtomicBool,
    offloads: Offloads,
    tx: Mutex<Tx>,
    rx: Mutex<Writer>,
}

/// Opens a packet socket on the interface and starts the thread that looks after it.
///
/// # Errors
/// If it cannot be had: see [`PacketError`].
pub fn open(config: &Config, changed: Changed) -> Result<Packet, PacketError> {
    let fail = |e| PacketError::new(&config.name, e);
    let socket = sys::packet_socket().map_err(fail)?;
    let index = ethernet(socket.as_fd(), &config.name)?;
    let mtu = sys::link_mtu(socket.as_fd(), &config.name).map_err(fail)?;
    let offloads = set_up(socket.as_fd()).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOPROTOOPT) => PacketError::TooOld(config.name.clone(), e),
        _ => fail(e),
    })?;
    let port = PacketPort {
        link: Link::new(&config.label, &config.name, changed).map_err(fail)?,
        bound: AtomicBool::new(false),
        astray: AtomicBool::new(false),
        offloads,
        tx: Mutex::new(Tx {
            ring: Ring::new(socket.as_fd(), mtu).map_err(fail)?,
            inbox: Inbox::new(BATCH),
            seen: (0, 0),
            told: false,
        }),
        rx: Mutex::new(Writer::new()),
        socket: Arc::new(socket),
    };
    port.bind(index)?;
    Ok(Packet(Running::start(port).map_err(fail)?))
}

/// The index of an Ethernet device.
fn ethernet(socket: BorrowedFd<'_>, name: &str) -> Result<u32, PacketError> {
    let fail = |e| PacketError::new(name, e);
    match sys::link_type(socket, name).map_err(fail)? {
        libc::ARPHRD_ETHER => netdevice::name_to_index(socket, name).map_err(|e| fail(e.into())),
        other => Err(PacketError::NotEthernet(name.to_owned(), other)),
    }
}

/// Sets the options that a ring must find set; returns what the kernel takes from us.
fn set_up(socket: BorrowedFd<'_>) -> io::Result<Offloads> {
    let set = |option, value| sys::packet_set(socket, option, &value);
    set(&sys::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
    set(&sys::PACKET_IGNORE_OUTGOING, 1)?;
    // Kernels that know the length of the header (6.5) know USO (6.2).
    let uso = match set(&sys::PACKET_VNET_HDR_SZ, vnet_header::LEN_FOR_IOCTL) {
        Ok(()) => Offloads::USO,
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            set(&sys::PACKET_VNET_HDR, 1)?;
            Offloads::NONE
        }
        Err(e) => return Err(e),
    };
    set(&sys::PACKET_COPY_THRESH, 1)?;
    // Beyond what any user may have, this wants CAP_NET_ADMIN.
    if sockopt::set_socket_recv_buffer_size_force(socket, QUEUE).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, QUEUE)?;
    }
    sockopt::set_socket_send_buffer_size(socket, QUEUE)?;
    Ok(Offloads::CSUM.with(Offloads::TSO4).with(Offloads::TSO6).with(Offloads::ECN).with(uso))
}

impl PacketError {
    fn new(name: &str, e: io::Error) -> Self {
        let name = name.to_owned();
        match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed(name, e),
            Some(libc::ENODEV | libc::ENXIO) => Self::NoDevice(name, e),
            _ => Self::Io(name, e),
        }
    }
}

impl Packet {
    /// The port.
    pub fn port(&self) -> Arc<dyn Port> {
        Arc::clone(&self.0.port) as Arc<dyn Port>
    }

    /// Its state in words.
    pub fn details(&self) -> Details {
        self.0.details("packet")
    }

    /// The interface's MTU, if it is there.
    pub fn mtu(&self) -> Option<u32> {
        self.0.mtu()
    }

    /// Stops the thread. Frames come and go no more once the port is dropped.
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl Interface for PacketPort {
    const THREAD: Thread = Thread::Packet;
    const UP: libc::c_int = libc::IFF_UP | libc::IFF_RUNNING;

    fn link(&self) -> &Link {
        &self.link
    }

    fn attached(&self) -> bool {
        self.bound.load(Ordering::Acquire)
    }

    fn name(&self, socket: BorrowedFd<'_>) -> Option<String> {
        // That the link went down is an error of the next call to send, also when it is up again.
        let _ = sockopt::socket_error(&self.socket);
        let index = sys::packet_bound(self.socket.as_fd())?;
        netdevice::index_to_name(socket, index).ok()
    }

    fn attach(&self, socket: BorrowedFd<'_>) -> Result<(), String> {
        let name = &self.link.interface;
        let bound = ethernet(socket, name).and_then(|index| self.bind(index));
        bound.map_err(|e| error_chain(&e))
    }

    fn detach(&self) {
        let _tx = self.link.wanted.lock(&self.tx);
        let _rx = self.link.wanted.lock(&self.rx);
        self.bound.store(false, Ordering::Release);
        self.link.lost();
    }

    /// Renews a ring that stands still, or whose frames are astray. The kernel takes a slot, drops
    /// the frame if virtio-net headers cannot say how it is to be segmented (by UDP fragments or
    /// for SCTP, or as a NIC has merged it), and finds that slot taken ever after (kernel:
    /// `tpacket_rcv`). Nothing but its count of losses tells of this, and that wakes nobody.
    fn chores(&self) -> Option<Duration> {
        if !self.attached() {
            return None;
        }
        let mut tx = self.link.wanted.lock(&self.tx);
        self.count_losses(&tx);
        let lost = self.link.counters.input.dropped(Reason::Overrun);
        let Tx { ring, seen, told, .. } = &mut *tx;
        let before = std::mem::replace(seen, (lost, ring.taken()));
        // It was not full, since nothing was taken from it.
        let still = lost > before.0 && ring.taken() == before.1 && ring.peek().is_none();
        let astray = self.astray.swap(false, Ordering::AcqRel);
        if astray {
            self.link.counters.input.drop(Reason::DeviceError, 1);
        }
        if still && !std::mem::replace(told, true) {
            let what = "a frame that virtio-net headers cannot describe stopped the ring";
            self.link.warn(&format!("{what}; see docs/operations.md, Physical NICs"));
        }
        if (still || astray || !ring.is_there())
            && let Err(e) = ring.renew(self.socket.as_fd())
        {
            self.link.warn(&format!("no new ring: {e}"));
        }
        self.is_up().then_some(LOOK)
    }

    fn more_details(&self) -> Details {
        Details::new()
    }
}

impl PacketPort {
    fn bind(&self, index: u32) -> Result<(), PacketError> {
        let (socket, name) = (self.socket.as_fd(), &self.link.interface);
        sys::packet_bind(socket, index).map_err(|e| PacketError::new(name, e))?;
        let _tx = self.link.wanted.lock(&self.tx);
        let _rx = self.link.wanted.lock(&self.rx);
        self.bound.store(true, Ordering::Release);
        self.link.found(self.offloads);
        Ok(())
    }

    /// The kernel forgets what it has said, so one at a time asks it.
    fn count_losses(&self, _: &Tx) {
        let lost = sys::packet_lost(self.socket.as_fd());
        if lost > 0 {
            self.link.counters.input.drop(Reason::Overrun, lost);
        }
    }

    /// Takes frames until `limit` wait, the ring is empty, or there is no room. True if looking
    /// again is useless until a doorbell rings or a held frame is finished.
    fn fill(&self, Tx { ring, inbox, .. }: &mut Tx, limit: usize) -> bool {
        if inbox.len() >= limit {
            return true;
        }
        while inbox.len() < limit {
            let Some(slot) = ring.peek() else { return true };
            let Some(room) = inbox.free(ROOM) else { return true };
            let room = room.get_mut(..ROOM).unwrap_or_default();
            match self.take(ring, &slot, room) {
                Err(Reason::DeviceError) => {
                    // Slots and queue do not belong together any more: the thread starts anew.
                    self.astray.store(true, Ordering::Release);
                    self.link.wake();
                    return true;
                }
                Ok((start, end, offload)) => {
                    inbox.filled(end);
                    inbox.skip(start);
                    inbox.take(usize::MAX, offload);
                    inbox.align();
                }
                Err(reason) => self.link.counters.input.drop(reason, 1),
            }
            ring.give_back();
        }
        false
    }

    /// Puts the frame of `slot` into `room`, with its tag; returns where it begins and ends. The
    /// kernel is believed no more than a guest: lengths are checked here and by the inbox, offsets
    /// by the batch.
    fn take(
        &self,
        ring: &Ring,
        slot: &Slot,
        room: &mut [u8],
    ) -> Result<(usize, usize, Offload), Reason> {
        let behind_tag = room.get_mut(TAG..).unwrap_or_default();
        let n = match (slot.queued, slot.cut) {
            (true, _) => self.read(slot, behind_tag)?,
            // There was no room for the whole of it.
            (false, true) => return Err(Reason::Overrun),
            (false, false) => ring.copy(slot, behind_tag)?,
        };
        place(room, n, slot.tag)
    }

    /// Reads header and frame of `slot` from the socket's queue.
    fn read(&self, slot: &Slot, room: &mut [u8]) -> Result<usize, Reason> {
        let mut read = || rustix::io::read(&self.socket, &mut *room);
        // Each time that the link went down is said once; the frame is there all the same.
        match (0..READS).map(|_| read()).find(|got| *got != Err(Errno::NETDOWN)) {
            Some(Ok(n)) if n == slot.whole.min(room.len()) => Ok(n),
            _ => Err(Reason::DeviceError),
        }
    }
}

/// Makes a frame of `n` bytes, header and frame, that lie behind room for a tag; returns where it
/// begins and ends.
fn place(
    room: &mut [u8],
    n: usize,
    tag: Option<[u8; TAG]>,
) -> Result<(usize, usize, Offload), Reason> {
    let message = room.get(TAG..TAG + n).unwrap_or_default();
    let mut offload = message.first_chunk().ok_or(Reason::Runt).and_then(vnet_header::parse)?;
    let (start, end) = (TAG + vnet_header::LEN, TAG + n);
    let Some(tag) = tag else { return Ok((start, end, offload)) };
    if end < start + MACS {
        return Err(Reason::Runt);
    }
    room.copy_within(start..start + MACS, start - TAG);
    if let Some(place) = room.get_mut(start - TAG + MACS..).and_then(<[u8]>::first_chunk_mut) {
        *place = tag;
    }
    if offload.needs_csum {
        offload.csum_start = offload.csum_start.saturating_add(TAG_LEN);
    }
    Ok((start - TAG, end, offload))
}

impl Port for PacketPort {
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
        let socket = self.socket.as_fd();
        let output = &self.link.counters.output;
        writer::push(batch, list, output, |frame| {
            // The kernel looks at the length of frames only that are not to be cut.
            let Offload { gso, hdr_len, gso_size, .. } = frame.offload;
            let piece = || frame.len.min(usize::from(hdr_len) + usize::from(gso_size));
            if gso != Gso::None && !self.link.takes(frame.head, piece()) {
                return Err(Reason::TooLong);
            }
            rx.write(socket, frame, &self.link)
        })
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
        vec![Arc::clone(&self.socket) as Doorbell]
    }

    fn doorbells_version(&self) -> u64 {
        self.link.version()
    }

    fn rang(&self) {
        self.link.counters.input.notifications.add_shared(1);
    }

    fn count_doorbells(&self) {
        self.count_losses(&self.link.wanted.lock(&self.tx));
    }

    fn counters(&self) -> &Counters {
        &self.link.counters
    }
}
