//! What a kernel's driver and its interrupt handler do: frames from the rings to the queues above,
//! and the other way round.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::frame::{self, Template, Udp};
use super::inbox::FrameQueue;
use vmlan_driver::nic::Nic;
use vmlan_transport::Mac;
use vmlan_transport::numbers::narrow32;
use vmlan_transport::sys::EventFd;

/// Frames that wait for smoltcp: more than fit the windows of our connections.
const BACKLOG: usize = 1024;
const HEAD: usize = 64; // Bytes of a frame that tell where it belongs.

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    /// Datagrams, or fragments, for the application's socket.
    pub(super) arrived: AtomicU64,
    /// Of these, the ones its queue had no room for.
    pub(super) dropped: AtomicU64,
}

/// The values of [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) arrived: u64,
    pub(super) dropped: u64,
}

impl Counters {
    pub(super) fn now(&self) -> Counted {
        Counted {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
            arrived: self.arrived.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }
}

/// The device, and what its interrupt handler needs.
pub(super) struct LockedNic<N: Nic> {
    pub(super) device: N,
    batches: Vec<N::Batch>,
    head: [u8; HEAD],
}

/// The device behind its lock, and the queues above it.
pub(super) struct Driver<N: Nic> {
    nic: Mutex<LockedNic<N>>,
    /// Frames for smoltcp.
    pub(super) backlog: FrameQueue,
    /// The socket queue: datagrams to `port` go past smoltcp.
    pub(super) socket: FrameQueue,
    port: Option<u16>,
    mac: Mac,
    ip: [u8; 4],
    pub(super) counters: Counters,
    /// The application waits for transmit slots.
    pub(super) blocked: AtomicBool,
    /// If receive work has its own thread: whether that thread sleeps, and what wakes it.
    pub(super) second: Option<Sleeper>,
}

/// A thread that sleeps on the device's interrupts and on a descriptor of its own.
#[derive(Debug)]
pub(super) struct Sleeper {
    /// Changes only under the driver's lock.
    pub(super) asleep: AtomicBool,
    pub(super) kick: EventFd,
}

impl<N: Nic> Driver<N> {
    /// Datagrams to `port`, at most `socket_queue` of them, go past smoltcp.
    pub(super) fn new(
        device: N,
        (mac, ip): (Mac, Ipv4Addr),
        port: Option<u16>,
        (socket_queue, mtu): (u16, u16),
        second: Option<Sleeper>,
    ) -> Self {
        // The CRC, or a VLAN tag, does not make a frame too long.
        let bytes = usize::from(mtu) + frame::ETHERNET + 8;
        let batches = (0..device.lanes()).map(|lane| device.batch(lane)).collect();
        let socket_slots = if port.is_some() { socket_queue.into() } else { 1 };
        Self {
            nic: Mutex::new(LockedNic { device, batches, head: [0; HEAD] }),
            backlog: FrameQueue::new(BACKLOG, bytes),
            socket: FrameQueue::new(socket_slots, bytes),
            port,
            mac,
            ip: ip.octets(),
            counters: Counters::default(),
            blocked: AtomicBool::new(false),
            second,
        }
    }

    /// The driver's lock. A thread that failed while it held it must not make others fail too.
    pub(super) fn nic(&self) -> MutexGuard<'_, LockedNic<N>> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is there anything for the threads above?
    pub(super) fn has_frames(&self) -> bool {
        self.backlog.len() + self.socket.len() > 0
    }

    /// The interrupt handler's work: up to `most` frames of each lane from the rings to the queues;
    /// how many it took.
    pub(super) fn receive(&self, most: usize) -> usize {
        let nic = &mut *self.nic();
        let mut total = 0;
        for lane in 0..nic.batches.len() {
            if !nic.device.ready(lane) {
                continue;
            }
            let batch = &mut nic.batches[lane];
            let count = nic.device.poll(lane, batch, most);
            for at in 0..count {
                self.sort(&nic.device, (lane, &nic.batches[lane], at), &mut nic.head);
            }
            nic.device.release(lane, &mut nic.batches[lane]);
            total += count;
        }
        if total > 0 {
            self.counters.received.fetch_add(total as u64, Relaxed);
        }
        total
    }

    /// Puts one frame where it belongs.
    #[inline]
    fn sort(&self, device: &N, (lane, batch, at): (usize, &N::Batch, usize), head: &mut [u8]) {
        let len = device.read(lane, batch, at, head);
        let head = &head[..len];
        let Some(to) = head.get(..6) else { return };
        if to != self.mac.0 && to[0] & 1 == 0 {
            return;
        }
        let pending = device.checksum_pending(lane, batch, at);
        let fill = |bytes: &mut [u8]| {
            let len = device.read(lane, batch, at, bytes);
            if pending {
                frame::complete_checksum(&mut bytes[..len]);
            }
            len
        };
        if self.is_for_socket(head) {
            self.counters.arrived.fetch_add(1, Relaxed);
            if !self.socket.put(fill) {
                self.counters.dropped.fetch_add(1, Relaxed);
            }
        } else {
            // A full backlog is a lost packet like any other.
            self.backlog.put(fill);
        }
    }

    #[inline]
    fn is_for_socket(&self, head: &[u8]) -> bool {
        let (Some(port), Some(udp)) = (self.port, Udp::parse(head)) else { return false };
        let ours = head.get(30..34) == Some(&self.ip);
        ours && (udp.offset > 0 || udp.to_port(head) == port)
    }

    /// Sends up to `most` datagrams from number `number` on, with one flush for each `burst`;
    /// returns how many had slots.
    pub(super) fn send(&self, template: &mut Template, number: u64, most: u32, burst: u32) -> u32 {
        let device = &mut self.nic().device;
        let frames = template.count();
        let interrupts = self.interrupts(device);
        let mut sent = 0;
        while sent < most {
            if usize::from(device.free_slots(0)) < frames && usize::from(device.reap(0)) < frames {
                device.count_full(0);
                break;
            }
            for frame in template.stamp(number + u64::from(sent)) {
                transmit(device, frame);
            }
            sent += 1;
            if sent % burst == 0 {
                device.flush(0);
            }
        }
        device.flush(0);
        self.pass_on(device, interrupts);
        self.counters.sent.fetch_add(u64::from(sent) * frames as u64, Relaxed);
        sent
    }

    /// Interrupts so far, for [`Self::pass_on`].
    pub(super) fn interrupts(&self, device: &N) -> u64 {
        if self.second.is_some() { device.stats().interrupts } else { 0 }
    }

    /// A doorbell may take the interrupt that the sleeping thread waits for: then that thread is
    /// told.
    pub(super) fn pass_on(&self, device: &N, before: u64) {
        let Some(second) = self.second.as_ref().filter(|s| s.asleep.load(Relaxed)) else { return };
        if device.stats().interrupts != before {
            second.kick.signal();
        }
    }
}

/// Puts a frame into the next slot; false when there is none.
#[inline]
pub(super) fn transmit<N: Nic>(device: &mut N, frame: &[u8]) -> bool {
    let Some(slot) = device.next(0) else { return false };
    device.write(0, slot, 0, frame);
    device.send(0, slot, narrow32(frame.len() as u64));
    true
}
