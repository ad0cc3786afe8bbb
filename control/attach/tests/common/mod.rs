//! One fixture for all tests: a port, and a front end that says whatever a test wants.
#![allow(dead_code)] // Each test file uses a part of it.

pub mod mirror;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use vmlan_attach::vhost_user::{Config, VhostUser, attach};
use vmlan_transport::memory::Ram;
use vmlan_transport::sys::{EventFd, sealed_memfd, send_with_fds};

pub const NEED_REPLY: u32 = 1 << 3;
pub const F_PROTOCOL: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;
pub const PROTOCOL_ALL: u64 = 0x1_b01f;

/// A port on a socket of its own.
pub struct Fixture {
    pub dir: TempDir,
    pub door: VhostUser,
    pub changes: Arc<AtomicU64>,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config =
            Config { path: dir.path().join("vm.sock"), queues: 2, ..Config::default() };
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

    /// A front end that has connected and said nothing.
    pub fn connect(&self) -> Raw {
        Raw::new(UnixStream::connect(self.path()).unwrap())
    }

    /// A front end that has negotiated features.
    pub fn ready(&self) -> Raw {
        let mut raw = self.connect();
        raw.negotiate();
        raw
    }

    pub fn faults(&self) -> u64 {
        self.door.port().counters().faults.get()
    }

    pub fn detail(&self, key: &str) -> String {
        let list = self.door.details();
        list.into_iter().find(|(k, _)| *k == key).map(|(_, v)| v).unwrap_or_default()
    }

    pub fn is_up(&self) -> bool {
        self.door.port().is_up()
    }

    /// The port still serves an honest front end.
    pub fn assert_alive(&self) {
        until("the port is free again", || self.detail("state").contains("waiting"));
        let mut raw = self.ready();
        assert_eq!(raw.get(40, &[]).unwrap(), 0, "GET_STATUS");
    }
}

/// How long a test waits before it gives up: a safety net, however slow or busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for a condition.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A front end that says whatever it is told to.
pub struct Raw {
    pub sock: UnixStream,
}

pub fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn halves(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn message(number: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = halves(&[number, flags, u32::try_from(body.len()).unwrap()]);
    bytes.extend(body);
    bytes
}

impl Raw {
    pub fn new(sock: UnixStream) -> Self {
        sock.set_read_timeout(Some(PATIENCE)).unwrap();
        sock.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { sock }
    }

    pub fn negotiate(&mut self) {
        let features = self.get(1, &[]).unwrap();
        assert_ne!(features & F_PROTOCOL, 0);
        assert_eq!(self.get(15, &[]).unwrap(), PROTOCOL_ALL);
        self.send(16, 1, &words(&[PROTOCOL_ALL]), &[]);
        assert_eq!(self.ask(2, &words(&[VERSION_1 | F_PROTOCOL]), &[]), Some(0));
    }

    /// Bytes as they are; an error if the peer has hung up.
    pub fn bytes(&self, bytes: &[u8], fds: &[RawFd]) -> std::io::Result<()> {
        let sent = send_with_fds(self.sock.as_fd(), bytes, fds)?;
        assert_eq!(sent, bytes.len());
        Ok(())
    }

    pub fn send(&self, number: u32, flags: u32, body: &[u8], fds: &[RawFd]) {
        let _ = self.bytes(&message(number, flags, body), fds);
    }

    /// The next reply: its number and body. `None`: hung up.
    pub fn reply(&mut self) -> Option<(u32, Vec<u8>)> {
        let mut header = [0; 12];
        self.sock.read_exact(&mut header).ok()?;
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), 5, "a reply of version 1");
        let mut body = vec![0; word(8) as usize];
        self.sock.read_exact(&mut body).ok()?;
        Some((word(0), body))
    }

    fn value(&mut self, number: u32) -> Option<u64> {
        let (n, body) = self.reply()?;
        assert_eq!(n, number);
        Some(u64::from_ne_bytes(body.try_into().unwrap()))
    }

    /// A request with an answer of its own.
    pub fn get(&mut self, number: u32, body: &[u8]) -> Option<u64> {
        self.send(number, 1, body, &[]);
        self.value(number)
    }

    /// A request whose success is asked for: `Some(0)` done, `Some(1)` refused, `None` hung up.
    pub fn ask(&mut self, number: u32, body: &[u8], fds: &[RawFd]) -> Option<u64> {
        self.send(number, 1 | NEED_REPLY, body, fds);
        self.value(number)
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

    pub fn add_region(&mut self, region: [u64; 4], fd: RawFd) -> Option<u64> {
        let [a, b, c, d] = region;
        self.ask(37, &words(&[0, a, b, c, d]), &[fd])
    }

    pub fn set_num(&mut self, ring: u32, num: u32) -> Option<u64> {
        self.ask(8, &halves(&[ring, num]), &[])
    }

    pub fn set_addr(&mut self, ring: u32, desc: u64, used: u64, avail: u64) -> Option<u64> {
        let mut body = halves(&[ring, 0]);
        body.extend(words(&[desc, used, avail, 0]));
        self.ask(9, &body, &[])
    }

    pub fn kick(&mut self, ring: u32, fd: RawFd) -> Option<u64> {
        self.ask(12, &words(&[ring.into()]), &[fd])
    }

    pub fn call(&mut self, ring: u32, fd: RawFd) -> Option<u64> {
        self.ask(13, &words(&[ring.into()]), &[fd])
    }

    pub fn enable(&mut self, ring: u32, on: bool) -> Option<u64> {
        self.ask(18, &halves(&[ring, on.into()]), &[])
    }

    /// GET_VRING_BASE
    pub fn base(&mut self, ring: u32) -> Option<u32> {
        self.send(11, 1, &halves(&[ring, 0]), &[]);
        let (n, body) = self.reply()?;
        assert_eq!((n, &body[..4]), (11, &ring.to_ne_bytes()[..]));
        Some(u32::from_ne_bytes(body[4..].try_into().unwrap()))
    }
}

/// 100,000 watches on `file`: each is served by whoever writes to it, which takes milliseconds.
/// They end with what is returned.
pub fn crowd(file: impl AsFd) -> Vec<OwnedFd> {
    set_fd_limit(4096);
    let fds: Vec<_> = (0..400).map(|_| file.as_fd().try_clone_to_owned().unwrap()).collect();
    let watch = |_| {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for fd in &fds {
            epoll::add(&watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        watch
    };
    let watches: Vec<_> = (0..250).map(watch).collect();
    watches.into_iter().chain(fds).collect()
}

/// How many descriptors this process may have from now on, unless its hard limit is lower. Returns
/// how many it might have before.
pub fn set_fd_limit(most: u64) -> u64 {
    let old = getrlimit(Resource::Nofile);
    let current = Some(old.maximum.unwrap_or(most).min(most));
    setrlimit(Resource::Nofile, Rlimit { current, ..old }).unwrap();
    old.current.unwrap_or(u64::MAX)
}

/// True if waking the crowd on `call` takes long enough here that a port must have had enough of
/// it: the product looks at writes of more than 0.5 ms. On a very fast machine there is nothing to
/// see.
pub fn is_slow(call: &EventFd) -> bool {
    let time = || {
        let begin = vmlan_transport::sys::process_cpu();
        call.signal();
        let _ = call.take();
        vmlan_transport::sys::process_cpu() - begin
    };
    // Others of this process may run meanwhile.
    told((0..5).all(|_| time() > Duration::from_millis(1)))
}

/// Says so if a crowd costs too little here for a test.
pub fn told(is_slow: bool) -> bool {
    if !is_slow {
        println!("skipped: a crowd on a descriptor costs too little here");
    }
    is_slow
}

/// The log of this process, from the first call on.
pub fn log_lines() -> Vec<String> {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONCE: Once = Once::new();
    struct Collect;
    impl log::Log for Collect {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            LINES.lock().unwrap().push(record.args().to_string());
        }
        fn flush(&self) {}
    }
    ONCE.call_once(|| {
        log::set_logger(&Collect).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.lock().unwrap().clone()
}

/// True if somebody failed to accept at `path` more often since `begin` than one who pauses for
/// half a second after each failure can. The first five failures are logged each.
pub fn accepts_without_pause(path: &std::path::Path, begin: Instant) -> bool {
    let path = path.display().to_string();
    let of_port = |line: &String| line.contains(&path) && line.contains("cannot accept");
    let failures = log_lines().iter().filter(|line| of_port(line)).count();
    let possible = begin.elapsed().as_millis() / 500 + 1;
    assert!(failures > 0, "it was never tried");
    failures as u128 > possible
}

/// Fills an eventfd's counter, and makes writes to it wait; the open file is shared with the
/// switch, so nobody can forbid it.
pub fn make_blocking(eventfd: impl AsFd) {
    use std::io::Write;
    let mut file = File::from(eventfd.as_fd().try_clone_to_owned().unwrap());
    let _ = file.read(&mut [0; 8]);
    file.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    clear_nonblocking(&file);
}

pub fn clear_nonblocking(file: impl AsFd) {
    rustix::fs::fcntl_setfl(file, OFlags::RDWR).unwrap();
}

/// A guest without a VMM: RAM, and where its rings are in it.
pub struct Guest {
    pub ram: Arc<Ram>,
    pub kick: EventFd,
    pub call: EventFd,
}

/// Descriptors of each ring.
pub const NUM: u32 = 64;
const NUM16: u16 = 64;
/// Bytes that a ring takes here, all its parts on pages of their own.
const RING: usize = 3 * 4096;

impl Guest {
    pub fn new() -> Self {
        let ram = Ram::new(1 << 20, 1 << 20).unwrap();
        Self { ram, kick: EventFd::new().unwrap(), call: EventFd::new().unwrap() }
    }

    pub fn kick_fd(&self) -> RawFd {
        self.kick.as_fd().as_raw_fd()
    }

    pub fn call_fd(&self) -> RawFd {
        self.call.as_fd().as_raw_fd()
    }

    pub fn give_memory(&self, raw: &mut Raw) {
        for r in self.ram.regions() {
            let region = [r.guest_phys, r.size, r.user_addr, r.offset];
            assert_eq!(raw.add_region(region, self.ram.raw_fd()), Some(0));
        }
    }

    /// Offset of ring `i`'s descriptor table; the avail ring is a page on, the used ring two.
    pub fn ring_at(&self, ring: u32) -> usize {
        ring as usize * RING
    }

    /// User addresses of a ring: table, used, avail.
    pub fn ring_addr(&self, ring: u32) -> [u64; 3] {
        let at = self.ring_at(ring);
        [at, at + 8192, at + 4096].map(|o| self.ram.user_addr(o))
    }

    pub fn start_ring(&self, raw: &mut Raw, ring: u32) {
        let [desc, used, avail] = self.ring_addr(ring);
        assert_eq!(raw.set_num(ring, NUM), Some(0));
        assert_eq!(raw.ask(10, &halves(&[ring, 0]), &[]), Some(0));
        assert_eq!(raw.set_addr(ring, desc, used, avail), Some(0));
        assert_eq!(raw.call(ring, self.call_fd()), Some(0));
        assert_eq!(raw.kick(ring, self.kick_fd()), Some(0));
        assert_eq!(raw.enable(ring, true), Some(0));
    }

    /// Memory given, one pair of rings started and enabled.
    pub fn start(&self, raw: &mut Raw) {
        self.give_memory(raw);
        self.start_ring(raw, 0);
        self.start_ring(raw, 1);
    }

    /// Posts one buffer of `len` bytes at guest address `gpa` as number `n` of a ring.
    pub fn post(&self, ring: u32, n: u16, gpa: u64, len: u32, writable: bool) {
        let at = self.ring_at(ring);
        let slot = usize::from(n % NUM16);
        let mut desc = gpa.to_le_bytes().to_vec();
        desc.extend(len.to_le_bytes());
        desc.extend(if writable { 2u16 } else { 0 }.to_le_bytes());
        desc.extend([0; 2]);
        self.ram.write(at + 16 * slot, &desc);
        self.ram.write(at + 4096 + 4 + 2 * slot, &(n % NUM16).to_le_bytes());
        self.ram.write(at + 4096 + 2, &(n + 1).to_le_bytes());
    }

    pub fn used_idx(&self, ring: u32) -> u16 {
        let mut idx = [0; 2];
        self.ram.read(self.ring_at(ring) + 8192 + 2, &mut idx);
        u16::from_le_bytes(idx)
    }
}

/// A memfd that can be truncated.
pub fn memfd(len: u64) -> File {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(len).unwrap();
    file
}

pub fn sealed(len: u64) -> File {
    sealed_memfd(len).unwrap()
}

/// Open descriptors of this process.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Descriptors of this process that are open on `file`.
pub fn fds_of(file: &File) -> usize {
    use std::os::unix::fs::MetadataExt;
    let id = |m: std::fs::Metadata| (m.dev(), m.ino());
    let wanted = id(file.metadata().unwrap());
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|e| std::fs::metadata(e.path()).is_ok_and(|m| id(m) == wanted)).count()
}

/// Resident memory of this process, in KiB.
pub fn rss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The regular descriptors of a message, by number.
pub fn raw_fds(fds: &[OwnedFd]) -> Vec<RawFd> {
    fds.iter().map(AsRawFd::as_raw_fd).collect()
}
