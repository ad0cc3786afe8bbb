//! One fixture for the vfio-user tests: a port, and a client that says whatever a test wants.
#![allow(dead_code)] // Each test file uses a part of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tempfile::TempDir;
use vmlan_attach::vfio_user::{Config, Doorbell, VfioUser, attach};
use vmlan_frame::Mac;
use vmlan_transport::sys::{recv_with_fds, send_with_fds};

use super::common::{PATIENCE, until};

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const REGION_INFO: u16 = 5;
pub const IO_FDS: u16 = 6;
pub const IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const READ: u16 = 9;
pub const WRITE: u16 = 10;
pub const RESET: u16 = 13;
pub const WRITE_MULTI: u16 = 15;

pub const NO_REPLY: u32 = 0x10;
pub const INTX: u32 = 0;
pub const MSI: u32 = 1;
pub const MSIX: u32 = 2;
pub const NONE: u32 = 1;
pub const BOOL: u32 = 2;
pub const EVENTFD: u32 = 4;
pub const MASK: u32 = 8;
pub const UNMASK: u32 = 0x10;
pub const TRIGGER: u32 = 0x20;

/// Registers of the 82540EM that the tests touch.
pub mod e1000 {
    pub const STATUS: u64 = 0x8;
    pub const ICR: u64 = 0xc0;
    pub const ICS: u64 = 0xc8;
    pub const IMS: u64 = 0xd0;
    pub const IMC: u64 = 0xd8;
    pub const TCTL: u64 = 0x400;
    pub const RCTL: u64 = 0x100;
    pub const TDBAL: u64 = 0x3800;
    pub const TDBAH: u64 = 0x3804;
    pub const TDLEN: u64 = 0x3808;
    pub const TDH: u64 = 0x3810;
    pub const TDT: u64 = 0x3818;
}

pub fn halves(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// A message, its size right.
pub fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = id.to_ne_bytes().to_vec();
    bytes.extend(command.to_ne_bytes());
    bytes.extend(halves(&[16 + u32::try_from(body.len()).unwrap(), flags, 0]));
    bytes.extend(body);
    bytes
}

pub fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = words(&[offset]);
    body.extend(halves(&[region, count]));
    body.extend(data);
    body
}

pub fn dma_map(offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut body = halves(&[32, 3]);
    body.extend(words(&[offset, address, size]));
    body
}

pub fn dma_unmap(flags: u32, address: u64, size: u64) -> Vec<u8> {
    let mut body = halves(&[24, flags]);
    body.extend(words(&[address, size]));
    body
}

/// A port on a socket of its own.
pub struct Fixture {
    pub dir: TempDir,
    pub door: VfioUser,
    pub changes: Arc<AtomicU64>,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn mapped() -> Self {
        Self::with(|config| config.doorbell = Doorbell::Mapped)
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path().join("vm.sock"), Mac::new(MAC));
        change(&mut config);
        let changes = Arc::new(AtomicU64::new(0));
        let seen = changes.clone();
        let changed = Arc::new(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        Self { dir, door: attach(config, changed).unwrap(), changes }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("vm.sock")
    }

    pub fn wait_free(&self) {
        until("the port is free", || self.detail("state").contains("waiting"));
    }

    /// A client that has connected and said nothing.
    pub fn connect(&self) -> Raw {
        Raw::new(UnixStream::connect(self.path()).unwrap())
    }

    /// A client that has negotiated, once the one before has gone. That may be on its way out
    /// still.
    pub fn ready(&self) -> Raw {
        let end = Instant::now() + PATIENCE;
        loop {
            self.wait_free();
            let mut raw = self.connect();
            if raw.negotiate() == Some(0) {
                return raw;
            }
            assert!(Instant::now() < end, "turned away again and again");
        }
    }

    /// The port again, after it was closed.
    pub fn renew(&mut self) {
        let config = Config::new(self.path(), Mac::new(MAC));
        self.door = attach(config, Arc::new(|| {})).unwrap();
    }

    pub fn faults(&self) -> u64 {
        self.door.port().counters().faults.get()
    }

    pub fn detail(&self, key: &str) -> String {
        let list = self.door.details();
        list.into_iter().find(|(k, _)| *k == key).map(|(_, v)| v).unwrap_or_default()
    }

    /// The port still serves an honest client.
    pub fn assert_alive(&self) {
        let mut raw = self.ready();
        assert_eq!(raw.config16(0), 0x8086, "Intel");
    }
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub id: u16,
    pub command: u16,
    /// 0, or the error number.
    pub error: u32,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Reply {
    pub fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    pub fn long(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body[at..at + 8].try_into().unwrap())
    }
}

/// A client that says whatever it is told to.
pub struct Raw {
    pub sock: UnixStream,
    next: u16,
}

impl Raw {
    pub fn new(sock: UnixStream) -> Self {
        sock.set_read_timeout(Some(PATIENCE)).unwrap();
        sock.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { sock, next: 1 }
    }

    pub fn negotiate(&mut self) -> Option<u32> {
        let mut body = vec![0, 0, 1, 0];
        body.extend(br#"{"capabilities":{"max_msg_fds":8,"write_multiple":true}}"#);
        body.push(0);
        self.ask(VERSION, &body, &[])
    }

    /// Bytes as they are; an error if the peer has hung up.
    pub fn bytes(&self, bytes: &[u8], fds: &[RawFd]) -> std::io::Result<()> {
        let sent = send_with_fds(self.sock.as_fd(), bytes, fds)?;
        (&self.sock).write_all(&bytes[sent..])
    }

    pub fn send(&mut self, command: u16, flags: u32, body: &[u8], fds: &[RawFd]) -> u16 {
        self.next = self.next.wrapping_add(1);
        let _ = self.bytes(&message(self.next, command, flags, body), fds);
        self.next
    }

    /// The next reply. `None`: hung up.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut header = [0; 16];
        let (got, fds) = recv_with_fds(self.sock.as_fd(), &mut header).ok()?;
        if got == 0 {
            return None;
        }
        self.sock.read_exact(&mut header[got..]).ok()?;
        let half = |at: usize| u16::from_ne_bytes(header[at..at + 2].try_into().unwrap());
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let failed = word(8) & 0x20 != 0;
        assert_eq!(word(8) & !0x20, 1, "a reply");
        assert_eq!(failed, word(12) != 0);
        let mut body = vec![0; word(4) as usize - 16];
        assert!(!failed || body.is_empty(), "an error is a header alone");
        self.sock.read_exact(&mut body).ok()?;
        Some(Reply { id: half(0), command: half(2), error: word(12), body, fds })
    }

    /// A command and its reply.
    pub fn call(&mut self, command: u16, body: &[u8], fds: &[RawFd]) -> Option<Reply> {
        let id = self.send(command, 0, body, fds);
        let reply = self.reply()?;
        assert_eq!((reply.id, reply.command), (id, command));
        Some(reply)
    }

    /// A command's error number; `None`: hung up.
    pub fn ask(&mut self, command: u16, body: &[u8], fds: &[RawFd]) -> Option<u32> {
        self.call(command, body, fds).map(|reply| reply.error)
    }

    pub fn map(&mut self, offset: u64, address: u64, size: u64, fd: RawFd) -> Option<u32> {
        self.ask(DMA_MAP, &dma_map(offset, address, size), &[fd])
    }

    pub fn unmap(&mut self, address: u64, size: u64) -> Option<u32> {
        self.ask(DMA_UNMAP, &dma_unmap(0, address, size), &[])
    }

    pub fn set_irqs(&mut self, flags: u32, index: u32, count: u32, fds: &[RawFd]) -> Option<u32> {
        self.ask(SET_IRQS, &halves(&[20, flags, index, 0, count]), fds)
    }

    /// For vectors of MSI-X.
    pub fn set_vectors(
        &mut self,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[RawFd],
    ) -> Option<u32> {
        self.ask(SET_IRQS, &halves(&[20, flags, MSIX, start, count]), fds)
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Option<Vec<u8>> {
        let reply = self.call(READ, &access(region, offset, count, &[]), &[])?;
        assert_eq!(reply.error, 0, "region {region} offset {offset:#x} count {count}");
        assert_eq!(reply.body[..16], access(region, offset, count, &[]));
        Some(reply.body[16..].to_vec())
    }

    pub fn get(&mut self, register: u64) -> u32 {
        u32::from_le_bytes(self.read(0, register, 4).unwrap().try_into().unwrap())
    }

    pub fn set(&mut self, register: u64, value: u32) {
        let body = access(0, register, 4, &value.to_le_bytes());
        let reply = self.call(WRITE, &body, &[]).unwrap();
        assert_eq!((reply.error, &reply.body[..]), (0, &body[..16]));
    }

    /// A posted write.
    pub fn post(&mut self, register: u64, value: u32) {
        self.send(WRITE, NO_REPLY, &access(0, register, 4, &value.to_le_bytes()), &[]);
    }

    pub fn config16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(7, offset, 2).unwrap().try_into().unwrap())
    }

    /// Memory and bus master on: without, the NIC does nothing.
    pub fn enable(&mut self) {
        let body = access(7, 4, 2, &[6, 0]);
        assert_eq!(self.ask(WRITE, &body, &[]), Some(0));
    }

    /// True once the peer hangs up.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.sock.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Interrupts that came since the last look.
pub fn count(eventfd: &File) -> u64 {
    let mut bytes = [0; 8];
    match (&*eventfd).read_exact(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}

pub fn eventfd() -> File {
    let fd = vmlan_transport::sys::EventFd::new().unwrap();
    File::from(fd.as_fd().try_clone_to_owned().unwrap())
}

pub fn raw(file: &File) -> RawFd {
    file.as_raw_fd()
}
