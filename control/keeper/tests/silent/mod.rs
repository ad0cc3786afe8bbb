//! A file of a FUSE daemon that falls silent: whoever waits for it waits until it ends, and no
//! signal changes that. The test itself and commands that it is about to execute, which close their
//! copy first, are answered always.

#![allow(dead_code)] // Each test file uses a part of it.

use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags};

/// Bytes of `struct fuse_in_header` and `struct fuse_out_header`.
const IN: usize = 40;
const OUT: usize = 16;

/// The open file and its daemon. Dropping it ends the daemon, which wakes whoever is parked.
pub struct SilentFile {
    daemon: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// What peers send.
    file: Option<File>,
    /// Dirties the file.
    other: File,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    silent: AtomicBool,
    parked: AtomicUsize,
}

impl SilentFile {
    /// The daemon answers neither a close nor anything else. `None`, with a line that says so,
    /// where nobody may mount.
    pub fn new() -> Option<Self> {
        let made = Self::talking()?;
        made.shared.silent.store(true, Ordering::Release);
        Some(made)
    }

    /// The same, as long as the daemon still answers: see [`SilentFile::give_away`].
    pub fn talking() -> Option<Self> {
        let made = Self::make();
        if let Err(e) = &made {
            println!("skipped: no FUSE file is to be had: {e}");
        }
        made.ok()
    }

    fn make() -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let dev = rustix::fs::open("/dev/fuse", flags, rustix::fs::Mode::empty())?;
        let place = tempfile::NamedTempFile::new()?;
        let options = format!("fd={},rootmode=100644,user_id=0,group_id=0\0", dev.as_raw_fd());
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        rustix::mount::mount("silent", place.path(), "fuse", MountFlags::empty(), options)?;
        let shared = Arc::new(Shared::default());
        let (mut dev, serving) = (File::from(dev), Arc::clone(&shared));
        let daemon = Some(std::thread::spawn(move || {
            while !serving.stop.load(Ordering::Acquire) {
                serve(&mut dev, &serving);
            }
        }));
        let open = || File::options().read(true).write(true).open(place.path());
        let opened = open().and_then(|file| Ok((file, open()?)));
        rustix::mount::unmount(place.path(), UnmountFlags::DETACH)?;
        match opened {
            Ok((file, other)) => Ok(Self { daemon, shared, file: Some(file), other }),
            Err(e) => Err(Error::other(format!("the daemon's own fault: {e}"))),
        }
    }

    /// To send to somebody.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().unwrap().as_fd()
    }

    /// Closes our own descriptor, which is answered, and falls silent. Bytes are left to be
    /// written: who drops the last one, wherever it is queued, waits.
    pub fn give_away(&mut self) {
        self.file = None;
        self.other.write_all_at(b"dirty", 0).unwrap();
        self.shared.silent.store(true, Ordering::Release);
    }

    /// Calls that wait for the daemon.
    pub fn parked(&self) -> usize {
        self.shared.parked.load(Ordering::Acquire)
    }

    /// Waits until so many wait for the daemon.
    pub fn wait_parked(&self, calls: usize) {
        for _ in 0..12_000 {
            if self.parked() >= calls {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} calls wait for the daemon, not {calls}", self.parked());
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        // Its device is closed, and with that everything fails, our own closes included.
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.daemon.take().map(JoinHandle::join);
    }
}

fn serve(dev: &mut File, shared: &Shared) {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let ready = rustix::event::poll(&mut [PollFd::new(dev, PollFlags::IN)], Some(&time));
    let mut request = vec![0; 1 << 20];
    if !matches!((ready, dev.read(&mut request)), (Ok(1..), Ok(IN..))) {
        return;
    }
    let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
    // FUSE_FORGET, FUSE_INTERRUPT, FUSE_BATCH_FORGET: nobody waits for an answer.
    if matches!(opcode, 2 | 36 | 42) {
        return;
    }
    let from = u32::from_ne_bytes(request[32..36].try_into().unwrap());
    if shared.silent.load(Ordering::Acquire) && !is_ours(from) {
        shared.parked.fetch_add(1, Ordering::AcqRel);
        return;
    }
    let body = answer(opcode);
    let len = u32::try_from(OUT + body.len()).unwrap();
    let _ = dev.write(&[&len.to_ne_bytes()[..], &[0; 4], &request[8..16], &body].concat());
}

/// True for our own threads, and for children before they have executed anything: they have the
/// name of the thread that forked them.
fn is_ours(thread: u32) -> bool {
    let name = |path: &std::path::Path| std::fs::read(path.join("comm")).ok();
    let Some(found) = name(format!("/proc/{thread}").as_ref()) else { return false };
    let ours = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    ours.filter_map(|task| name(&task.path())).any(|ours| ours == found)
}

fn answer(opcode: u32) -> Vec<u8> {
    let put = |len, words: &[(usize, u32)]| {
        let mut body = vec![0; len];
        for &(at, word) in words {
            body[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        body
    };
    match opcode {
        // FUSE_INIT: version 7.31, FUSE_WRITEBACK_CACHE.
        26 => put(64, &[(0, 7), (4, 31), (12, 1 << 16), (20, 4096)]),
        // FUSE_GETATTR, FUSE_SETATTR: valid for long; inode, mode, links.
        3 | 4 => put(104, &[(0, 1 << 20), (16, 1), (76, 0o100_644), (80, 1)]),
        // FUSE_OPEN.
        14 => put(16, &[]),
        // FUSE_WRITE: five bytes.
        16 => put(8, &[(0, 5)]),
        _ => Vec::new(),
    }
}
