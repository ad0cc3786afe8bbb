//! A VM of an attacker: it speaks vhost-user well enough to be let in, and keeps its memory's file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate};
use vmlan_transport::memory::Region;
use vmlan_transport::sys::EventFd;
use vmlan_transport::vhost_user::{F_PROTOCOL_FEATURES, FrontEnd, VringAddr, feature};

/// Bytes of a usual memory.
pub(super) const MEMORY: u64 = 2 << 20;
const USER: u64 = 0x7f00_0000_0000;
const RING: u64 = 0x1_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
const BUFFER: u64 = 0x4_0000;
const SIZE: u16 = 256;
/// A header of virtio-net, and a frame.
const FRAME: u32 = 12 + 60;
/// The virtqueue in which the guest sends.
const TX: u32 = 1;

pub(super) struct Guest {
    front: FrontEnd,
    file: File,
    kicks: [EventFd; 2],
    calls: [EventFd; 2],
    /// `avail.idx` of the queue to send.
    sent: AtomicU16,
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

impl Guest {
    /// Memory that it could seal, and does not.
    pub(super) fn memfd(len: u64) -> io::Result<File> {
        let file = File::from(rustix::fs::memfd_create("attack", MemfdFlags::CLOEXEC)?);
        file.set_len(len)?;
        Ok(file)
    }

    /// Connects, and offers `file` as the first two megabytes of memory.
    pub(super) fn connect(path: &Path, file: File) -> io::Result<Self> {
        let pair = || Ok::<_, io::Error>([EventFd::new()?, EventFd::new()?]);
        let mut front = FrontEnd::new(UnixStream::connect(path)?)?;
        front.features().map_err(failed)?;
        front.negotiate_protocol(0).map_err(failed)?;
        front.set_features(feature::VERSION_1 | F_PROTOCOL_FEATURES).map_err(failed)?;
        let sent = AtomicU16::new(0);
        let guest = Self { front, file, kicks: pair()?, calls: pair()?, sent };
        guest.set_memory()?;
        Ok(guest)
    }

    /// Its memory, once more.
    pub(super) fn set_memory(&self) -> io::Result<()> {
        let size = self.file.metadata()?.len().max(MEMORY);
        let region = Region { guest_phys: 0, size, user_addr: USER, offset: 0 };
        self.front.set_memory(&[region], self.file.as_raw_fd()).map_err(failed)
    }

    /// Both virtqueues. Their rings are empty, if there is memory at all.
    pub(super) fn start(&self) -> io::Result<()> {
        let front = &self.front;
        for (ring, (kick, call)) in (0..).zip(self.kicks.iter().zip(&self.calls)) {
            let at = USER + u64::from(ring) * RING;
            let addr = VringAddr { desc: at, avail: at + AVAIL, used: at + USED, log: None };
            front.set_vring_num(ring, SIZE).map_err(failed)?;
            front.set_vring_base(ring, 0).map_err(failed)?;
            front.set_vring_addr(ring, addr).map_err(failed)?;
            front.set_vring_call(ring, call.as_fd()).map_err(failed)?;
            front.set_vring_kick(ring, kick.as_fd()).map_err(failed)?;
            front.set_vring_enable(ring, true).map_err(failed)?;
        }
        self.lay_out(MEMORY)
    }

    /// Frames all over the first `size` bytes of memory, for nobody in particular.
    pub(super) fn lay_out(&self, size: u64) -> io::Result<()> {
        let step = ((size - BUFFER) / u64::from(SIZE)) & !0xfff;
        for n in 0..SIZE {
            let place = BUFFER + step.max(0x1000) * u64::from(n) % (size - BUFFER);
            let mut desc = place.to_le_bytes().to_vec();
            desc.extend(FRAME.to_le_bytes());
            desc.extend([0; 4]);
            let ring = u64::from(TX) * RING;
            self.put(ring + 16 * u64::from(n), &desc)?;
            self.put(ring + AVAIL + 4 + 2 * u64::from(n), &n.to_le_bytes())?;
        }
        Ok(())
    }

    /// Memory that is too short just now takes nothing.
    fn put(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // Files of huge pages are not written to.
        match self.file.write_all_at(bytes, at) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }

    /// All descriptors are to be sent, once more.
    pub(super) fn send_all(&self) -> io::Result<()> {
        let idx = self.sent.fetch_add(SIZE, Ordering::Relaxed).wrapping_add(SIZE);
        self.put(u64::from(TX) * RING + AVAIL + 2, &idx.to_le_bytes())?;
        self.kick();
        Ok(())
    }

    /// Waits until they were, but not for long.
    pub(super) fn is_served(&self) -> io::Result<()> {
        let (wanted, end) =
            (self.sent.load(Ordering::Relaxed), Instant::now() + super::tricks::WHILE);
        let mut idx = [0; 2];
        while Instant::now() < end {
            self.file.read_exact_at(&mut idx, u64::from(TX) * RING + USED + 2)?;
            if u16::from_le_bytes(idx) == wanted {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Rings both doorbells.
    pub(super) fn kick(&self) {
        self.kicks.iter().for_each(EventFd::signal);
    }

    pub(super) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kicks[TX as usize].as_fd()
    }

    pub(super) fn call_fd(&self) -> BorrowedFd<'_> {
        self.calls[TX as usize].as_fd()
    }

    /// Takes the doorbell of its sending queue away and gives it back.
    pub(super) fn renew_kick(&self) -> io::Result<()> {
        let other = EventFd::new()?;
        self.front.set_vring_kick(TX, other.as_fd()).map_err(failed)?;
        self.front.set_vring_kick(TX, self.kick_fd()).map_err(failed)
    }

    /// Switches its sending queue off and on.
    pub(super) fn switch(&self) -> io::Result<()> {
        self.front.set_vring_enable(TX, false).map_err(failed)?;
        self.front.set_vring_enable(TX, true).map_err(failed)
    }

    /// Gives all pages behind the rings to its memory...
    pub(super) fn fill(&self, size: u64) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::empty(), BUFFER, size - BUFFER)?)
    }

    /// ...and takes them away.
    pub(super) fn punch(&self, size: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, BUFFER, size - BUFFER)?)
    }
}
