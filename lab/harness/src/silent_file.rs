//! A file of a FUSE daemon that falls silent: whoever waits for it waits until it ends, and no
//! signal changes that. Its own process and commands that it is about to execute, which close their
//! copy first, are answered always.

use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
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
#[derive(Debug)]
pub struct SilentFile {
    daemon: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// What peers send.
    file: Option<File>,
    /// Dirties the file.
    other: File,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    silent: AtomicBool,
    parked: AtomicUsize,
}

impl SilentFile {
    /// The daemon answers neither a close nor anything else. `None`, with a line that says so,
    /// where nobody may mount.
    #[must_use]
    pub fn new() -> Option<Self> {
        let made = Self::talking()?;
        made.shared.silent.store(true, Ordering::Release);
        Some(made)
    }

    /// The same, as long as the daemon still answers: see [`SilentFile::give_away`].
    #[must_use]
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
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes());
        let options = options.map_err(Error::other)?;
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
    ///
    /// # Panics
    /// After [`SilentFile::give_away`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("not given away").as_fd()
    }

    /// Closes our own descriptor, which is answered, and falls silent. Bytes are left to be
    /// written: who drops the last one, wherever it is queued, waits.
    ///
    /// # Panics
    /// If our own daemon does not answer us.
    pub fn give_away(&mut self) {
        self.file = None;
        self.other.write_all_at(b"dirty", 0).expect("our own daemon answers");
        self.shared.silent.store(true, Ordering::Release);
    }

    /// Ends the daemon: from now on everything fails at once. A process that has both its device
    /// and its file must do this before it ends: the kernel closes the file first, and waits.
    pub fn end(&self) {
        self.shared.stop.store(true, Ordering::Release);
        while self.daemon.as_ref().is_some_and(|daemon| !daemon.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Calls that wait for the daemon.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.shared.parked.load(Ordering::Acquire)
    }

    /// Waits until so many wait for the daemon.
    ///
    /// # Panics
    /// If they do not come within two minutes.
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
    let word = |at: usize| {
        u32::from_ne_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]])
    };
    let opcode = word(4);
    // FUSE_FORGET, FUSE_INTERRUPT, FUSE_BATCH_FORGET: nobody waits for an answer.
    if matches!(opcode, 2 | 36 | 42) {
        return;
    }
    if shared.silent.load(Ordering::Acquire) && !is_ours(word(32)) {
        shared.parked.fetch_add(1, Ordering::AcqRel);
        return;
    }
    let body = answer(opcode);
    let len = u32::try_from(OUT + body.len()).unwrap_or(0);
    let _ = dev.write(&[&len.to_ne_bytes()[..], &[0; 4], &request[8..16], &body].concat());
}

/// True for our own threads, and for children that are about to execute something: those have the
/// name of the thread that forked them still. Of a child nothing else is read: most of its files in
/// /proc may wait until it has executed that, and it waits for our answer.
fn is_ours(thread: u32) -> bool {
    let read = |path: &Path, file| std::fs::read_to_string(path.join(file)).unwrap_or_default();
    let thread = thread.to_string();
    let ours = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    ours.into_iter().any(|task| {
        let forked = || read(&task.path(), "children").split(' ').any(|child| child == thread);
        let name = |path: &Path| read(path, "comm");
        let is_named = || name(&task.path()) == name(&Path::new("/proc").join(&thread));
        task.file_name() == *thread || forked() && is_named()
    })
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
