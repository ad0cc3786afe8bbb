//! A virtio-net NIC behind vhost-user: connect, negotiate, wait, stop, and go on after the back end
//! died.

mod connect;
mod dirty_log;
mod part;
mod start;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::virtio::queues::{NetHeader, Queue, RxQueue, Shape, TxQueue};
use crate::virtio::virtqueue::either::Ring;
use crate::virtio::virtqueue::{Audit, RingOptions};
use crate::wait::{Interest, Prepared, Wake};
use vmlan_transport::address::VhostUser as Address;
use vmlan_transport::memory::{Pool, Ram};
use vmlan_transport::socket::{self, SocketError};
use vmlan_transport::sys;
use vmlan_transport::vhost_user::{FrontEnd, Inflight, ProtocolError};
use vmlan_transport::vhost_user::{MAX_PAIRS, feature};

pub mod queues;
pub mod virtqueue;

pub use dirty_log::DirtyLog;

/// Bytes a buffer needs when the device may deliver 64 KiB segments into a single one (5.1.6.3.1).
const GSO_BUFFER: usize = 65_600;

/// What can go wrong with a NIC.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum VirtioError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The back end hung up, or said nothing, while features were agreed on: a port serves one
    /// front end at a time.
    #[error(
        "{path}: the back end hangs up or says nothing: does the port have another front end, or \
         is it no vhost-user port (see `vmlan port list`)?"
    )]
    TurnedAway { path: PathBuf, source: ProtocolError },
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
    #[error("cannot talk to the back end")]
    Protocol(#[from] ProtocolError),
    #[error("{wanted} queue pairs are wanted, the back end has {offered}: use queues={offered}")]
    Queues { wanted: u16, offered: u64 },
    #[error("the back end came back without virtio features {missing:#x}")]
    FeaturesLost { missing: u64 },
    /// The back end is gone; [`VirtioNet::reconnect`] may help.
    #[error("not connected to a back end")]
    NotConnected,
}

/// A transmit and a receive queue.
#[derive(Debug)]
pub struct Pair {
    /// Guest to network.
    pub tx: TxQueue,
    /// Network to guest.
    pub rx: RxQueue,
}

impl Pair {
    fn calls(&self) -> [BorrowedFd<'_>; 2] {
        [self.rx.queue.call.as_fd(), self.tx.queue.call.as_fd()]
    }
}

/// A virtio-net NIC, seen by VMM and guest at once.
#[derive(Debug)]
pub struct VirtioNet {
    /// The queue pairs. They are independent of each other: [`Self::split`] gives each thread some
    /// of them.
    pub pairs: Vec<Pair>,
    address: Address,
    ram: Arc<Ram>,
    front: Option<FrontEnd>,
    listener: Option<UnixListener>,
    inflight: Option<Inflight>,
    features: u64,
    reconnects: u64,
    part: Option<part::Part>,
}

impl VirtioNet {
    /// Reaches the back end of `address` (trying for `patience`), negotiates, hands over the RAM
    /// and starts the rings.
    ///
    /// # Errors
    /// See [`VirtioError`]; nothing is left behind then.
    pub fn connect(address: &Address, patience: Duration) -> Result<Self, VirtioError> {
        let mut address = address.clone();
        address.queues = address.queues.clamp(1, MAX_PAIRS);
        let listener = if address.listen { Some(socket::bind(&address.path)?) } else { None };
        let (front, features) = connect::open(&address, listener.as_ref(), None, patience)?;
        let (ram, pairs) = build(&address, features)
            .map_err(|source| VirtioError::System { what: "make the guest's RAM", source })?;
        let mut nic = Self {
            pairs,
            address,
            ram,
            front: Some(front),
            listener,
            inflight: None,
            features,
            reconnects: 0,
            part: None,
        };
        nic.start()?;
        Ok(nic)
    }

    /// Reaches a back end again after it went away, with the same RAM and the same rings: it goes
    /// on from the used index of each, so frames may be lost but no descriptor is. Tries until
    /// `patience` is over.
    ///
    /// # Errors
    /// See [`VirtioError`]; the NIC can try again.
    pub fn reconnect(&mut self, patience: Duration) -> Result<(), VirtioError> {
        if self.part.is_some() {
            return self.rejoin(patience);
        }
        self.front = None;
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let result = self.reconnect_once(left);
            match result {
                // The back end may die again while it starts; that is worth another try.
                Err(VirtioError::Protocol(ProtocolError::Socket { .. }))
                    if Instant::now() < end =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                done => return done,
            }
        }
    }

    fn reconnect_once(&mut self, patience: Duration) -> Result<(), VirtioError> {
        let promised = Some(self.features);
        let (front, _) = connect::open(&self.address, self.listener.as_ref(), promised, patience)?;
        self.front = Some(front);
        if let Err(error) = self.start() {
            self.front = None;
            return Err(error);
        }
        self.reconnects += 1;
        Ok(())
    }

    /// The virtio features in force.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Is one of these virtio features in force?
    pub fn has(&self, features: u64) -> bool {
        self.features & features != 0
    }

    /// How often the NIC went on with a new back end.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// The control connection, for tests that use it themselves.
    ///
    /// # Errors
    /// [`VirtioError::NotConnected`].
    pub fn front_end(&self) -> Result<&FrontEnd, VirtioError> {
        self.front.as_ref().ok_or(VirtioError::NotConnected)
    }

    /// The guest's RAM.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Sleeps until something of `interest` is there, the back end goes away, or `timeout` is over.
    /// States the wishes, looks again, and only then sleeps; takes the wishes back afterwards.
    pub fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<Wake, VirtioError> {
        if let Prepared::Now(wake) = self.prepare_wait(interest) {
            self.disarm();
            return Ok(wake);
        }
        let ready = self.sleep(timeout);
        let wake = self.finish_wait(*ready.as_ref().unwrap_or(&0));
        ready.map(|_| wake)
    }

    fn sleep(&self, timeout: Duration) -> Result<u64, VirtioError> {
        let mut all = self.descriptors();
        let Some(first) = all.next() else { return Ok(0) };
        let mut fds: [BorrowedFd<'_>; 2 * MAX_PAIRS as usize + 1] = [first; _];
        let mut used = 1;
        for (to, fd) in fds[1..].iter_mut().zip(all) {
            *to = fd;
            used += 1;
        }
        sys::poll_readable(&fds[..used], Some(timeout))
            .map_err(|source| VirtioError::System { what: "wait for an interrupt", source })
    }

    /// States the wishes of `interest` and looks again; [`Self::finish_wait`] is to follow.
    pub fn prepare_wait(&mut self, interest: Interest) -> Prepared {
        self.prepare_wait_for(|_| interest)
    }

    /// As [`Self::prepare_wait`], of each pair for what `interest` says of its number.
    pub fn prepare_wait_for(&mut self, interest: impl Fn(usize) -> Interest) -> Prepared {
        let mut ready = false;
        for (n, pair) in self.pairs.iter_mut().enumerate() {
            let interest = interest(n);
            ready |= interest.rx && pair.rx.queue.ring.arm(1);
            ready |= interest.tx && {
                let half = pair.tx.outstanding() / 2;
                pair.tx.queue.ring.arm(half)
            };
        }
        match (ready, self.link()) {
            (true, _) => Prepared::Now(Wake::Ready),
            (false, None) => Prepared::Now(Wake::Disconnected),
            (false, Some(_)) => Prepared::Sleep(Duration::MAX),
        }
    }

    /// What to sleep on: the socket, then each pair's two interrupts. Without a back end there is
    /// nothing.
    pub fn watched(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors().collect()
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let link = self.link().into_iter();
        link.flat_map(|link| std::iter::once(link).chain(self.pairs.iter().flat_map(Pair::calls)))
    }

    fn disarm(&mut self) {
        for pair in &mut self.pairs {
            pair.rx.queue.ring.disarm();
            pair.tx.queue.ring.disarm();
        }
    }

    /// Takes the interrupts and the wishes back, after a sleep that ended because the descriptors
    /// of `bits` could be read.
    pub fn finish_wait(&mut self, bits: u64) -> Wake {
        self.disarm();
        for (n, pair) in self.pairs.iter_mut().enumerate() {
            if bits >> (2 * n + 1) & 1 == 1 {
                pair.rx.queue.take_interrupts();
            }
            if bits >> (2 * n + 2) & 1 == 1 {
                pair.tx.queue.take_interrupts();
            }
        }
        // The back end never speaks first on this socket, so "readable" is its end. Frames it left
        // behind come first.
        match bits {
            0 => Wake::Timeout,
            1 => Wake::Disconnected,
            _ => Wake::Ready,
        }
    }

    /// Has the back end closed its socket?
    pub fn is_connected(&self) -> bool {
        let Some(link) = self.link() else { return false };
        sys::poll_readable(&[link], Some(Duration::ZERO)).is_ok_and(|bits| bits == 0)
    }

    /// Where every slot of every ring is, in the order of the rings (receive 0, transmit 0, receive
    /// 1, ...).
    pub fn audit(&self) -> Vec<Audit> {
        let rings = |pair: &Pair| [pair.rx.queue.ring.audit(), pair.tx.queue.ring.audit()];
        self.pairs.iter().flat_map(rings).collect()
    }
}

impl Drop for VirtioNet {
    fn drop(&mut self) {
        self.park();
        if self.listener.is_some() {
            let _ = std::fs::remove_file(&self.address.path);
        }
    }
}

fn ring_options(address: &Address, features: u64) -> RingOptions {
    let has = |bits| features & bits != 0;
    // A legacy device without ANY_LAYOUT wants the header in a descriptor of its own (5.1.6.6).
    let split = !has(feature::VERSION_1 | feature::ANY_LAYOUT);
    RingOptions {
        size: address.ring_size,
        segments: if split { address.segments.max(2) } else { address.segments },
        indirect: has(feature::INDIRECT),
        event_idx: has(feature::EVENT_IDX),
        in_order: has(feature::IN_ORDER),
        packed: has(feature::RING_PACKED),
    }
}

fn shape(address: &Address, features: u64) -> Shape {
    let has = |bits| features & bits != 0;
    let long = has(feature::VERSION_1 | feature::MRG_RXBUF);
    let large =
        has(feature::GUEST_TSO4 | feature::GUEST_TSO6 | feature::GUEST_USO4 | feature::GUEST_USO6);
    let header = if long { NetHeader::LEN } else { NetHeader::LEN - 2 };
    let mut buffer = address.buffer;
    if !has(feature::MRG_RXBUF) {
        let frame = usize::from(address.mtu.unwrap_or(0)) + 18;
        buffer = buffer.max(if large { GSO_BUFFER } else { frame + header });
    }
    Shape { buffer, header }
}

fn build(address: &Address, features: u64) -> io::Result<(Arc<Ram>, Vec<Pair>)> {
    let options = ring_options(address, features);
    let shape = shape(address, features);
    let rings = 2 * usize::from(address.queues);
    let low = rings * options.ram_bytes();
    let high = rings * (usize::from(options.slots()) * shape.stride() + 64);
    let ram = Ram::new(low, high)?;
    let mut low = Pool::new(0, ram.buffers());
    let mut high = Pool::new(ram.buffers(), ram.size());
    let mut queue = || {
        let mut ring = Ring::new(&ram, &mut low, options);
        ring.disarm();
        Queue::new(&ram, ring, &mut high, shape)
    };
    let mut pairs = Vec::new();
    for _ in 0..address.queues {
        let mergeable = features & feature::MRG_RXBUF != 0;
        let rx = RxQueue::new(queue()?, shape.buffer, mergeable);
        pairs.push(Pair { tx: TxQueue::new(queue()?), rx });
    }
    Ok((ram, pairs))
}
