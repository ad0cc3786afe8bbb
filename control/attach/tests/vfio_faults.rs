//! Faults under traffic: clients that go, memory that goes, descriptors that run out. Many are
//! listed in `docs/known-faults.md`.

mod common;
mod vfio;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{fds_of, memfd, open_fds, rss_kib, until};
use vfio::*;
use vmlan_frame::{Batch, Port, Sink};
use vmlan_ram::Slice;

/// Looks at each byte that is lent.
#[derive(Default)]
struct Reader(u64);

impl Sink for Reader {
    fn deliver(&mut self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            let mut bytes = [0; 2048];
            let frame = batch.frame(i);
            self.0 += frame.map_or(0, |frame| frame.copy_to(&mut bytes) as u64);
        }
    }
}

/// A worker: pulls and pushes until it is dropped.
struct Worker {
    end: Arc<AtomicBool>,
    frames: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    fn new(port: Arc<dyn Port>) -> Self {
        let (end, frames) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, seen) = (end.clone(), frames.clone());
        let thread = std::thread::spawn(move || {
            let mut batch = Batch::new();
            let bytes = [0x55; 1000];
            while !over.load(Ordering::Relaxed) {
                let done = port.pull(0, &mut batch, 64, &mut Reader::default());
                seen.fetch_add(done as u64, Ordering::Relaxed);
                let mut out = Batch::new();
                let _ = out.add(&[Slice::from_bytes(&bytes)], vmlan_frame::Offload::NONE);
                port.push(&out, &mut [0]);
                if done == 0 {
                    std::thread::yield_now();
                }
            }
        });
        Self { end, frames, thread: Some(thread) }
    }

    fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Descriptors of each ring.
const RING: u32 = 64;
/// Where buffers are for the guest.
const BUFFERS: u64 = 1 << 30;

/// A guest whose rings are in one file and whose buffers are in another, and its VMM.
struct Guest {
    rings: File,
    buffers: File,
    raw: Raw,
    tail: u32,
}

impl Guest {
    fn start(f: &Fixture) -> Self {
        let (rings, buffers) = (memfd(1 << 20), memfd(1 << 20));
        let mut raw = f.ready();
        raw.enable();
        assert_eq!(raw.map(0, 0, 1 << 20, rings.as_raw_fd()), Some(0));
        assert_eq!(raw.map(0, BUFFERS, 1 << 20, buffers.as_raw_fd()), Some(0));
        for n in 0..u64::from(RING) {
            // Legacy descriptors (SDM 3.3.3): EOP, IFCS, RS; 60 to 1500 bytes. Receive descriptors:
            // an address.
            let len = 60 + n * 20;
            let tx = [(BUFFERS + n * 4096).to_le_bytes(), (len | 0xb << 24).to_le_bytes()].concat();
            rings.write_all_at(&tx, 0x1000 + n * 16).unwrap();
            let rx = (BUFFERS + 0x8_0000 + n * 4096).to_le_bytes();
            rings.write_all_at(&rx, 0x2000 + n * 16).unwrap();
        }
        raw.set(0, 0x40);
        for (at, value) in [
            (e1000::TDBAL, 0x1000),
            (e1000::TDLEN, RING * 16),
            (0x2800, 0x2000),
            (0x2808, RING * 16),
            (0x2818, RING - 1),
            (e1000::TCTL, 0xa),
            // EN, UPE, MPE, BAM.
            (e1000::RCTL, 0x801a),
        ] {
            raw.set(at, value);
        }
        until("link", || raw.get(e1000::STATUS) & 2 != 0);
        Self { rings, buffers, raw, tail: 0 }
    }

    /// Hands over 16 frames, and all receive buffers.
    fn send(&mut self) {
        self.tail = (self.tail + 16) % RING;
        self.raw.post(e1000::TDT, self.tail);
        self.raw.post(0x2818, (self.tail + RING - 1) % RING);
    }
}

/// This process has `file` mapped: only a port does so here. The device counts as well: the files
/// here are in /dev/shm, whose inodes have numbers that memory files of the port may have too.
fn is_mapped(file: &File) -> bool {
    let file = file.metadata().unwrap();
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!(" {major:02x}:{minor:02x} {} ", file.ino());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.contains(&id))
}

#[test]
fn frames_flow() {
    let f = Fixture::new();
    let worker = Worker::new(f.door.port());
    let mut guest = Guest::start(&f);
    assert!(f.door.port().is_up() && f.detail("state") == "up");
    guest.send();
    until("frames", || worker.frames() == 16);
    until("received", || guest.raw.get(0x2810) > 0);
    assert!(f.door.port().device().unwrap().registers.iter().any(|r| r.register == "TDT"));
}

#[test]
fn memory_unmapped_in_mid_frame_is_gone_when_the_answer_comes() {
    let f = Fixture::new();
    let worker = Worker::new(f.door.port());
    let mut guest = Guest::start(&f);
    for _ in 0..300 {
        guest.send();
        assert_eq!(guest.raw.unmap(BUFFERS, 1 << 20), Some(0));
        assert!(!is_mapped(&guest.buffers), "the answer has come");
        // Whoever has a mapping of it now would be stopped by this.
        guest.send();
        let fd = guest.buffers.as_raw_fd();
        assert_eq!(guest.raw.map(0, BUFFERS, 1 << 20, fd), Some(0));
        assert!(is_mapped(&guest.buffers));
    }
    let before = worker.frames();
    guest.send();
    until("frames flow still, or the driver would reset", || {
        guest.send();
        worker.frames() > before
    });
    // Under the rings themselves.
    for _ in 0..50 {
        guest.send();
        assert_eq!(guest.raw.unmap(0, 1 << 20), Some(0));
        assert!(!is_mapped(&guest.rings));
        guest.send();
        let fd = guest.rings.as_raw_fd();
        assert_eq!(guest.raw.map(0, 0, 1 << 20, fd), Some(0));
    }
    assert_eq!(f.faults(), 0);
}

#[test]
fn clients_that_die_under_traffic_leave_nothing_behind() {
    let f = Fixture::mapped();
    let worker = Worker::new(f.door.port());
    let (mut fds, mut rss) = (0, 0);
    for round in 0..200 {
        let mut guest = Guest::start(&f);
        guest.send();
        let line = eventfd();
        assert_eq!(guest.raw.set_irqs(EVENTFD | TRIGGER, INTX, 1, &[raw(&line)]), Some(0));
        guest.raw.set(e1000::IMS, 0xff);
        guest.send();
        let Guest { rings, buffers, raw, .. } = guest;
        drop(raw);
        f.wait_free();
        until("its memory is given back", || !is_mapped(&rings) && !is_mapped(&buffers));
        assert_eq!((fds_of(&rings), fds_of(&buffers)), (1, 1));
        drop((line, rings, buffers));
        if round == 50 {
            (fds, rss) = (open_fds(), rss_kib());
        }
    }
    // Other tests of this process come and go.
    until("descriptors are flat", || open_fds() <= fds + 40);
    assert!(rss_kib() < rss + 8192, "{} KiB, {rss} before", rss_kib());
    assert!(worker.frames() > 0);
}

#[test]
fn a_file_truncated_under_traffic_costs_its_own_port_only() {
    vmlan_ram::sigbus::install().unwrap();
    let (f, other) = (Fixture::new(), Fixture::new());
    let (worker, neighbour) = (Worker::new(f.door.port()), Worker::new(other.door.port()));
    let mut well = Guest::start(&other);
    for truncate_rings in [true, false] {
        let mut guest = Guest::start(&f);
        guest.send();
        until("frames", || worker.frames() > 0);
        let file = if truncate_rings { &guest.rings } else { &guest.buffers };
        file.set_len(0).unwrap();
        until("the connection is ended", || {
            guest.send();
            f.detail("state").contains("waiting")
        });
        assert!(guest.raw.is_closed());
        let before = neighbour.frames();
        well.send();
        until("the neighbour's frames", || neighbour.frames() >= before + 16);
    }
    assert_eq!((f.faults(), other.faults()), (2, 0));
    f.assert_alive();
}

#[test]
fn a_guest_may_point_its_rings_anywhere() {
    let f = Fixture::mapped();
    let worker = Worker::new(f.door.port());
    let mut guest = Guest::start(&f);
    for (at, value) in [
        (e1000::TDBAL, 0xffff_fff0u32),
        (e1000::TDBAH, 0xffff_ffff),
        (e1000::TDLEN, 0xffff_ffff),
        (e1000::TDT, 0xffff_ffff),
        (e1000::TDH, 0xffff_ffff),
        (0x2800, 0xffff_fff0),
        (0x2808, 0x80),
        (0x2818, 0xffff),
        (e1000::TDLEN, 0),
    ] {
        guest.raw.set(at, value);
        guest.send();
        assert_eq!(guest.raw.config16(0), 0x8086);
    }
    drop(guest);
    drop(worker);
    f.assert_alive();
}
