//! A hostile VM: it speaks vhost-user well enough to be let in, over memory that it can take away
//! and rings in which it writes what it likes. Its memory is a file on tmpfs, which nobody can
//! seal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use vmlan_transport::memory::Region;
use vmlan_transport::sys::EventFd;
use vmlan_transport::vhost_user::{F_PROTOCOL_FEATURES, FrontEnd, VringAddr, protocol};

use crate::numbered::{frame, mac};

const MEMORY: u64 = 1 << 20;
const USER: u64 = 0x7f00_0000_0000;
const RING: u64 = 0x1_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
const BUFFERS: u64 = 0x4_0000;
const SIZE: u16 = 256;
const VERSION_1: u64 = 1 << 32;
/// Header and frame.
const FRAME: u32 = 1524;
const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;
/// The transmit ring's number.
const TX: u32 = 1;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Shrinks its memory to nothing while its frames are read and frames are delivered to it.
    Truncate,
    /// `avail.idx` runs ahead by more than the ring's size.
    Jump,
    /// A circle of empty descriptors: more than a frame may have. The frame is refused, the ring
    /// goes on.
    Loop,
    /// A circle of full ones: the same.
    Pieces,
    /// A descriptor index beyond the table.
    Index,
    /// A buffer outside its memory.
    Outside,
    /// A transmit buffer that is to be written.
    Writable,
}

/// One connection of a hostile VM.
#[derive(Debug)]
pub struct Attacker {
    front: FrontEnd,
    file: File,
    kicks: [EventFd; 2],
    _calls: [EventFd; 2],
    id: u8,
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

impl Attacker {
    /// Connects as guest `id`, with good rings: transmit empty, receive full of buffers.
    pub fn connect(path: &Path, id: u8) -> io::Result<Self> {
        let file = tempfile::tempfile_in("/dev/shm")?;
        file.set_len(MEMORY)?;
        let pair = || Ok::<_, io::Error>([EventFd::new()?, EventFd::new()?]);
        let front = FrontEnd::new(UnixStream::connect(path)?)?;
        let mut vm = Self { front, file, kicks: pair()?, _calls: pair()?, id };
        vm.fill_receive_ring()?;
        vm.negotiate().map_err(failed)?;
        Ok(vm)
    }

    fn negotiate(&mut self) -> Result<(), vmlan_transport::vhost_user::ProtocolError> {
        let front = &mut self.front;
        front.features()?;
        front.negotiate_protocol(protocol::REPLY_ACK)?;
        front.set_owner()?;
        front.set_features(VERSION_1 | F_PROTOCOL_FEATURES)?;
        let region = Region { guest_phys: 0, size: MEMORY, user_addr: USER, offset: 0 };
        front.set_memory(&[region], self.file.as_raw_fd())?;
        for ring in 0..2 {
            let at = USER + u64::from(ring) * RING;
            let addr = VringAddr { desc: at, avail: at + AVAIL, used: at + USED, log: None };
            front.set_vring_num(ring, SIZE)?;
            front.set_vring_base(ring, 0)?;
            front.set_vring_addr(ring, addr)?;
            front.set_vring_call(ring, self._calls[ring as usize].as_fd())?;
            front.set_vring_kick(ring, self.kicks[ring as usize].as_fd())?;
        }
        (0..2).try_for_each(|ring| front.set_vring_enable(ring, true))
    }

    fn desc(&self, ring: u64, n: u16, addr: u64, len: u32, flags: u16) -> io::Result<()> {
        let mut bytes = addr.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        // `next` is 0.
        bytes.extend([0; 2]);
        self.file.write_all_at(&bytes, ring * RING + 16 * u64::from(n))
    }

    fn avail(&self, ring: u64, idx: u16, head: u16) -> io::Result<()> {
        let at = ring * RING + AVAIL;
        for n in 0..u64::from(SIZE) {
            self.file.write_all_at(&head.to_le_bytes(), at + 4 + 2 * n)?;
        }
        self.file.write_all_at(&idx.to_le_bytes(), at + 2)
    }

    fn fill_receive_ring(&self) -> io::Result<()> {
        for n in 0..SIZE {
            self.desc(0, n, BUFFERS + 2048 * u64::from(n), FRAME, F_WRITE)?;
            self.file.write_all_at(&n.to_le_bytes(), AVAIL + 4 + 2 * u64::from(n))?;
        }
        self.file.write_all_at(&SIZE.to_le_bytes(), AVAIL + 2)
    }

    /// Does it, and rings the doorbells. The front end's socket stays open.
    pub fn attack(&self, attack: Attack) -> io::Result<()> {
        // A good broadcast frame behind a header of zeros, for those that send.
        let mut buffer = vec![0; 12];
        buffer.extend(frame([0xff; 6], mac(self.id, 0), 0, 1512));
        self.file.write_all_at(&buffer, BUFFERS + 0x8_0000)?;
        let buffer = BUFFERS + 0x8_0000;
        let tx = u64::from(TX);
        let (addr, flags, head, idx) = match attack {
            Attack::Truncate => (buffer, 0, 0, SIZE),
            Attack::Jump => (buffer, 0, 0, 1000),
            Attack::Loop | Attack::Pieces => (buffer, F_NEXT, 0, 1),
            Attack::Index => (buffer, 0, SIZE + 7, 1),
            Attack::Outside => (1 << 40, 0, 0, 1),
            Attack::Writable => (buffer, F_WRITE, 0, 1),
        };
        let len = if attack == Attack::Loop { 0 } else { FRAME };
        self.desc(tx, 0, addr, len, flags)?;
        self.avail(tx, idx, head)?;
        self.kicks.iter().for_each(EventFd::signal);
        if attack == Attack::Truncate {
            self.file.set_len(0)?;
            self.kicks.iter().for_each(EventFd::signal);
        }
        Ok(())
    }
}
