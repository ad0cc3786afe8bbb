//! A queue of an interface in memory that we share with the kernel (kernel:
//! `Documentation/networking/af_xdp.rst`).
//!
//! ```text
//!  memory: │ chunks to receive into │ chunks to send from │
//!  fill ──► kernel ──► received          to send ──► kernel ──► sent
//! ```
//!
//! A chunk to receive into is given back as soon as its frame has been copied out. So the kernel
//! always has chunks, whoever holds frames up, and an address that it made up would be no more than
//! a frame of wrong bytes: only copies leave the memory, and their bounds are checked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use vmlan_frame::{FrameView, MIN_FRAME, Reason};

use crate::sys::Shared;

/// Frames that wait while no worker looks, and those that wait to be sent.
const RECEIVE: u32 = 2048;
const SEND: u32 = 1024;

/// What the kernel keeps free in each chunk before a frame (`XDP_PACKET_HEADROOM`), and for tags.
const HEADROOM: u32 = 256;
const ETHERNET: u32 = 14 + 2 * 4;

/// Calls in a row that send what is left in the ring; each takes 32 frames, if the device does.
const KICKS: usize = 16;

/// Bytes that may wait in the device's queue: all that there are chunks for, as far as the kernel
/// lets us.
const QUEUE: usize = 4 << 20;

const ADDRESS: usize = 8; // Bytes of an entry: an address in the memory,
const DESCRIPTOR: usize = 16; // and the same with length and options (`xdp_desc`).

// Where the rings are, as `mmap` wants it (`XDP_PGOFF_*`).
const RECEIVED_AT: i64 = 0;
const SENDING_AT: i64 = 0x8000_0000;
const FILL_AT: i64 = 0x1_0000_0000;
const SENT_AT: i64 = 0x1_8000_0000;

/// Bytes of a chunk for the frames of a link with this MTU; none if they are too long.
pub(super) fn chunk(mtu: u32) -> Option<u32> {
    [2048, 4096].into_iter().find(|chunk| mtu <= chunk - HEADROOM - ETHERNET)
}

/// The longest MTU that there are chunks for.
pub(super) const LONGEST_MTU: u32 = 4096 - HEADROOM - ETHERNET;

/// A ring with one producer and one consumer; we are one of them.
#[derive(Debug)]
struct Ring {
    memory: Shared,
    /// Places of both indexes, of the entries, of the flags.
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
    size: u32,
    /// Our own index, ahead of the published one, and the other side's as it was seen last.
    ours: u32,
    theirs: u32,
}

impl Ring {
    fn map(
        socket: &OwnedFd,
        at: &XdpRingOffset,
        offset: i64,
        size: u32,
        entry: usize,
    ) -> io::Result<Self> {
        let place = |at: u64| usize::try_from(at).map_err(io::Error::other);
        let entries = place(at.desc)?;
        Ok(Self {
            memory: Shared::map(socket.as_fd(), offset, entries + size as usize * entry)?,
            producer: place(at.producer)?,
            consumer: place(at.consumer)?,
            entries,
            flags: place(at.flags.ok_or(io::ErrorKind::Unsupported)?)?,
            size,
            ours: 0,
            theirs: 0,
        })
    }

    /// The place of our next entry, of `entry` bytes.
    fn place(&self, entry: usize) -> usize {
        self.entries + (self.ours & (self.size - 1)) as usize * entry
    }

    /// As producer: appends an entry, unseen until [`Ring::publish`]; false if the ring is full.
    fn put<const N: usize>(&mut self, entry: [u8; N]) -> bool {
        if self.ours.wrapping_sub(self.theirs) >= self.size {
            self.theirs = self.memory.load(self.consumer, Ordering::Acquire);
        }
        let at = self.place(N);
        let free = self.ours.wrapping_sub(self.theirs) < self.size;
        let Some(to) = self.memory.own(at, N).filter(|_| free) else { return false };
        to.copy_from_slice(&entry);
        self.ours = self.ours.wrapping_add(1);
        true
    }

    /// As producer: shows the other side what was put.
    fn publish(&self) {
        self.memory.store(self.producer, self.ours, Ordering::Release);
    }

    /// As producer: entries that the other side has not taken.
    fn pending(&mut self) -> u32 {
        self.theirs = self.memory.load(self.consumer, Ordering::Acquire);
        self.ours.wrapping_sub(self.theirs)
    }

    /// As consumer: the next entry, if there is one.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.ours == self.theirs {
            self.theirs = self.memory.load(self.producer, Ordering::Acquire);
        }
        let mut entry = [0; N];
        (self.ours != self.theirs && self.memory.read(self.place(N), &mut entry)).then(|| {
            self.ours = self.ours.wrapping_add(1);
            entry
        })
    }

    /// As consumer: gives taken entries back.
    fn release(&self) {
        self.memory.store(self.consumer, self.ours, Ordering::Release);
    }

    /// The kernel sleeps until it is called.
    fn wants_call(&self) -> bool {
        self.memory.load(self.flags, Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The side that receives: under the port's transmit-side lock.
#[derive(Debug)]
pub(super) struct Receiving {
    socket: Arc<OwnedFd>,
    memory: Shared,
    chunk: u32,
    received: Ring,
    fill: Ring,
    any: bool,
}

/// The side that sends: under the port's receive-side lock.
#[derive(Debug)]
pub(super) struct Sending {
    socket: Arc<OwnedFd>,
    memory: Shared,
    chunk: u32,
    /// Where `memory` begins in what the kernel knows.
    base: u64,
    free: Vec<u32>,
    sending: Ring,
    sent: Ring,
    /// Calls that are of use: with zero copy the device goes on by itself.
    kicks: usize,
}

/// How frames get into our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copying {
    /// By the device, if it can.
    IfNeeded,
    Never,
    Always,
}

/// Opens queue `queue` of interface `index`.
pub(super) fn open(
    index: u32,
    queue: u32,
    chunk: u32,
    copying: Copying,
) -> io::Result<(Receiving, Sending)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    let memory = Shared::zeros(((RECEIVE + SEND) * chunk) as usize)?;
    let umem = XdpUmemReg {
        addr: memory.address() as u64,
        len: u64::from(RECEIVE + SEND) * u64::from(chunk),
        chunk_size: chunk,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_socket_send_buffer_size(&socket, QUEUE)?;
    sockopt::set_xdp_umem_reg(&socket, umem)?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, RECEIVE)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, SEND)?;
    sockopt::set_xdp_rx_ring_size(&socket, RECEIVE)?;
    sockopt::set_xdp_tx_ring_size(&socket, SEND)?;
    let at = sockopt::xdp_mmap_offsets(&socket)?;
    let ring = |at, offset, size, entry| Ring::map(&socket, at, offset, size, entry);
    let mut fill = ring(&at.fr, FILL_AT, RECEIVE, ADDRESS)?;
    let received = ring(&at.rx, RECEIVED_AT, RECEIVE, DESCRIPTOR)?;
    let sending = ring(&at.tx, SENDING_AT, SEND, DESCRIPTOR)?;
    let sent = ring(&at.cr, SENT_AT, SEND, ADDRESS)?;
    for n in 0..RECEIVE {
        fill.put((u64::from(n) * u64::from(chunk)).to_ne_bytes());
    }
    fill.publish();
    let wakeup = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let flags = match copying {
        Copying::IfNeeded => wakeup,
        Copying::Never => wakeup | SocketAddrXdpFlags::XDP_ZEROCOPY,
        Copying::Always => wakeup | SocketAddrXdpFlags::XDP_COPY,
    };
    rustix::net::bind(&socket, &SocketAddrXdp::new(flags, index, queue))?;
    let (socket, base) = (Arc::new(socket), RECEIVE * chunk);
    let halves = memory.split(base as usize).ok_or(io::ErrorKind::InvalidInput)?;
    let receiving =
        Receiving { socket: socket.clone(), memory: halves.0, chunk, received, fill, any: false };
    let free = (0..SEND).collect();
    let (memory, base) = (halves.1, base.into());
    let kicks = if receiving.is_zero_copy() { 1 } else { KICKS };
    Ok((receiving, Sending { socket, memory, chunk, base, free, sending, sent, kicks }))
}

impl Receiving {
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// True if the device itself writes to our memory.
    pub(super) fn is_zero_copy(&self) -> bool {
        let options = sockopt::xdp_options(&self.socket);
        options.is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Frames that found no room since the queue was opened.
    pub(super) fn lost(&self) -> u64 {
        let counted = sockopt::xdp_statistics(&self.socket);
        counted.map_or(0, |n| n.rx_dropped.wrapping_add(n.rx_ring_full.unwrap_or(0)))
    }

    /// Copies the oldest frame to `room`; returns its length, or why it is lost. None if there is
    /// no frame.
    pub(super) fn take(&mut self, room: &mut [u8]) -> Option<Result<usize, Reason>> {
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, ..] = self.received.take::<DESCRIPTOR>()?;
        let address = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        let copied = room.get_mut(..len).is_some_and(|to| self.memory.read(at, to));
        // Its size is a power of two.
        let chunk = address & !u64::from(self.chunk - 1);
        self.any |= self.fill.put(chunk.to_ne_bytes());
        Some(if copied { Ok(len) } else { Err(Reason::DeviceError) })
    }

    /// Gives the chunks of all frames taken back to the kernel.
    pub(super) fn give_back(&mut self) {
        if std::mem::take(&mut self.any) {
            self.fill.publish();
            self.received.release();
        }
        if self.fill.wants_call() {
            // It says what the calls to send say.
            let _ = rustix::net::recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }
}

impl Sending {
    /// Copies a frame to be sent by [`Sending::send`].
    pub(super) fn add(&mut self, frame: &FrameView<'_, '_>) -> Result<(), Reason> {
        if frame.len < MIN_FRAME {
            return Err(Reason::Runt);
        }
        if frame.len > self.chunk as usize {
            return Err(Reason::TooLong);
        }
        if self.free.is_empty() {
            self.reap();
        }
        let chunk = self.free.pop().ok_or(Reason::ReceiverFull)?;
        let at = chunk * self.chunk;
        let to = self.memory.own(at as usize, self.chunk as usize).unwrap_or_default();
        let len = frame.copy_to(to);
        let mut descriptor = [0; DESCRIPTOR];
        let address = (self.base + u64::from(at)).to_ne_bytes();
        let len = u32::try_from(len).unwrap_or_default().to_ne_bytes();
        let fields = address.into_iter().chain(len);
        descriptor.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        // As many entries as there are chunks.
        if self.sending.put(descriptor) { Ok(()) } else { Err(Reason::ReceiverFull) }
    }

    /// Takes back the chunks that were sent.
    fn reap(&mut self) {
        while let Some(address) = self.sent.take::<ADDRESS>() {
            let at = u64::from_ne_bytes(address).wrapping_sub(self.base);
            let chunk = u32::try_from(at / u64::from(self.chunk)).unwrap_or(SEND);
            // One that the kernel made up, or sent twice, is nobody's.
            if chunk < SEND && self.free.len() < SEND as usize {
                self.free.push(chunk);
            }
        }
        self.sent.release();
    }

    /// Has the kernel send what was added. True if some waits for another call, since the device's
    /// queue is full.
    ///
    /// # Errors
    /// If it does not: the link is down, or the device is gone. What was added waits.
    pub(super) fn send(&mut self) -> io::Result<bool> {
        self.sending.publish();
        let mut left = self.sending.pending();
        for _ in 0..self.kicks {
            if left == 0 || !self.sending.wants_call() {
                return Ok(false);
            }
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                // It has sent some, or the device's queue is full.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => {}
                Err(Errno::NOBUFS) => self.reap(),
                Err(e) => return Err(e.into()),
            }
            let before = std::mem::replace(&mut left, self.sending.pending());
            if left == before {
                break;
            }
        }
        Ok(left > 0 && self.sending.wants_call())
    }
}
