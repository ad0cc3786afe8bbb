//! A service manager with a store for descriptors, as a service meets it: what it says
//! (sd_notify(3)), and what it finds when it is started again (sd_listen_fds(3)).

use std::ffi::OsString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::process::Launch;
use crate::{HarnessError, Process, Result};

/// What the test itself says to its end.
const END: &str = "END";

/// Numbers from here on are nobody else's.
const HIGH: i32 = 200;

/// A service manager. It starts nothing by itself.
pub struct ServiceManager {
    place: PathBuf,
    room: usize,
    store: Arc<Mutex<Store>>,
    thread: Option<JoinHandle<()>>,
}

/// Descriptors with their names, and all that was said.
#[derive(Default)]
struct Store {
    kept: Vec<(String, OwnedFd)>,
    said: Vec<String>,
}

impl ServiceManager {
    /// One whose socket is in `dir`, and whose store takes `room` descriptors.
    ///
    /// # Errors
    /// [`HarnessError::Io`].
    pub fn new(dir: &Path, room: usize) -> Result<Self> {
        let place = dir.join("notify");
        let socket =
            UnixDatagram::bind(&place).map_err(HarnessError::io("listen for a service"))?;
        let store = Arc::<Mutex<Store>>::default();
        let shared = Arc::clone(&store);
        let thread = std::thread::spawn(move || while hear(&socket, &shared, room) {});
        Ok(Self { place, room, store, thread: Some(thread) })
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its socket, `NOTIFY_SOCKET` of services.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Second descriptors of all that it keeps.
    ///
    /// # Panics
    /// If there are too many.
    pub fn kept(&self) -> Vec<(String, OwnedFd)> {
        let copy = |(name, fd): &(String, OwnedFd)| (name.clone(), fd.try_clone().expect("a copy"));
        self.store().kept.iter().map(copy).collect()
    }

    /// Keeps something of which no service has spoken.
    pub fn keep(&self, name: &str, fd: OwnedFd) {
        self.store().kept.push((name.into(), fd));
    }

    /// All that was said to it.
    pub fn said(&self) -> Vec<String> {
        self.store().said.clone()
    }

    /// Lets all go, as when its service is stopped.
    pub fn let_go(&self) {
        self.store().kept.clear();
    }

    /// Starts a service with all that it keeps.
    ///
    /// # Errors
    /// As [`Launch::spawn`].
    pub fn start(&self, name: &str, log: &Path, argv: &[String]) -> Result<Process> {
        let kept = self.kept();
        let failed = |e: rustix::io::Errno| HarnessError::io("give a descriptor")(e.into());
        let (mut moves, mut names, mut high) = (String::new(), Vec::new(), Vec::new());
        for (number, (name, fd)) in (3..).zip(kept) {
            let fd = fcntl_dupfd_cloexec(&fd, HIGH).map_err(failed)?;
            fcntl_setfd(&fd, FdFlags::empty()).map_err(failed)?;
            moves += &format!(" {number}<&{fd} {fd}<&-", fd = fd.as_raw_fd());
            names.push(name);
            high.push(fd);
        }
        let script = format!(
            "exec{moves}; LISTEN_FDS={} LISTEN_FDNAMES={} LISTEN_PID=$$ exec \"$@\"",
            names.len(),
            names.join(":")
        );
        let room = OsString::from(self.room.to_string());
        let launch = Launch::new(name, "bash").args(["-c", &script, "service"]).args(argv);
        let launch = launch.env("NOTIFY_SOCKET", Some(self.place.as_os_str()));
        launch.env("FDSTORE", Some(&room)).spawn(log)
    }
}

/// Does what a service asks for; false at the end.
fn hear(socket: &UnixDatagram, store: &Mutex<Store>, room: usize) -> bool {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let Ok(got) = rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, flags) else {
        return false;
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let text = String::from_utf8_lossy(&text[..got.bytes]).into_owned();
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
    if text.lines().any(|line| line == "FDSTORE=1") {
        let left = room.saturating_sub(store.kept.len());
        store.kept.extend(fds.drain(..).take(left).map(|fd| (name.to_owned(), fd)));
    }
    if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
        store.kept.retain(|(other, _)| other != name);
    }
    // Of a BARRIER=1 the descriptor's end is the answer.
    drop(fds);
    let end = text == END;
    store.said.push(text);
    !end
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        let socket = UnixDatagram::unbound();
        if socket.is_ok_and(|socket| socket.send_to(END.as_bytes(), &self.place).is_ok()) {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}
