//! What outlives the switch: descriptors, and a few bytes with them, in a process of their own.
//!
//! The **holder** (`vmlan-holder`) is forked by the first switch that wants one, and waits for the
//! next when that dies. It has duplicates: of the sockets of VMs, of listeners, guests' memory,
//! interrupts' eventfds. It knows none of them apart, and reads none. What it holds has names, and
//! the bytes that a switch puts beside it say what it is.
//!
//! - One switch at a time: a second is refused until the first's connection and process have ended.
//! - Whoever lets go of a descriptor of a stranger's as the last may be parked. So a switch has the
//!   holder forget it first, and closes its own afterwards: [`Hold::forget`] and [`Hold::put`]
//!   return when that is done.
//! - A service manager with a store for descriptors takes its place ([`Store`]): there the holder's
//!   process would be ended with the service.
//! - A holder without a switch ends after a time. It shuts down all sockets first, so that VMMs see
//!   what has happened.
//! - What comes back ([`Hold::all`]) was written by a process that has crashed, perhaps because of
//!   what a guest sent: it is to be checked as if a guest had written it.

mod packet;
mod process;
mod store;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use vmlan_sandbox::{Confinement, Thread};

use self::packet::{Kind, MAX_PACKET, Packet, VERSION};
pub use self::store::Store;
use crate::line::{self, Fds};
use crate::{sys, wait};

/// How long a holder may take to answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a switch that has just been killed may take to end: the memory of its VMs is unmapped
/// first.
const LAST_BREATH: Duration = Duration::from_secs(10);
/// Holders that are started until one lives.
const STARTS: u32 = 3;
/// Time between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Why something is not held, or nobody holds anything.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum HoldError {
    #[error("the holder (vmlan-holder) is gone: what it held is lost once this switch ends")]
    Gone,
    #[error("the holder does not answer")]
    Silent,
    #[error(
        "another switch uses the holder at `{}`: stop it, or give this one another API",
        .0.display()
    )]
    Busy(PathBuf),
    #[error("whoever listens at `{}` is another user: remove it", .0.display())]
    Stranger(PathBuf),
    #[error(
        "the holder at `{}` is of a release that this one cannot talk to: end it",
        .0.display()
    )]
    Version(PathBuf),
    #[error("the holder has no room: {MAX} names are held", MAX = packet::MAX_NAMES)]
    Full,
    #[error("the service manager does not listen: what it holds of this port is not true any more")]
    NoManager,
    #[error("the service manager does not answer")]
    SilentManager,
    #[error("the service manager has room for {0} ports (FileDescriptorStoreMax= is twice that)")]
    FullManager(usize),
    #[error("more descriptors are to be held than a process may have open")]
    Descriptors,
    #[error("cannot make the holder's socket `{}`", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("the holder failed")]
    Io(#[from] Errno),
}

/// What was held under a name.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Held {
    pub name: String,
    pub fds: Vec<OwnedFd>,
    pub bytes: Vec<u8>,
}

impl Held {
    /// Closes it in a thread of its own: memory, and an eventfd that many watch, may take long.
    pub fn let_go(self) {
        let close = move || {
            vmlan_sandbox::enter(Thread::Pcap);
            // The last that has its sockets is their keeper.
            drop(self);
        };
        // Where no thread can be had, it is closed here.
        drop(std::thread::Builder::new().name("closes".into()).spawn(close));
    }
}

/// Who holds descriptors for the next switch.
pub trait Hold: Debug + Send + Sync {
    /// Holds duplicates of `fds` (253 at most) and `bytes` (32 KiB at most) under `name` (64 bytes
    /// at most), in place of what is held there. It is done, and what was there before is closed,
    /// when this returns.
    ///
    /// # Errors
    /// [`HoldError`]: what was held there before is held still, unless the holder has gone.
    fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError>;

    /// Holds nothing under `name` any more. What was there is closed when this returns.
    ///
    /// # Errors
    /// [`HoldError`]: `Gone` or `Silent`.
    fn forget(&self, name: &str) -> Result<(), HoldError>;

    /// All that is held.
    ///
    /// # Errors
    /// [`HoldError`].
    fn all(&self) -> Result<Vec<Held>, HoldError>;

    /// Holds nothing any more: no other switch goes on.
    fn end(&self);

    /// True if it has gone, with all that it held.
    fn has_gone(&self) -> bool {
        false
    }
}

/// A holder, as a switch sees it. Threads share it.
#[derive(Debug)]
pub struct Holder {
    /// Its socket.
    path: PathBuf,
    /// `None`: it has gone.
    line: Mutex<Option<OwnedFd>>,
}

impl Holder {
    /// The holder whose socket is at `path`. If there is none, it is started: to be called before
    /// this process has a second thread. It holds things for `hold_for` after this process has
    /// ended. With `confined` it loses every right that it does not need.
    ///
    /// # Errors
    /// [`HoldError`]. Of a switch that has just been killed the end is waited for.
    pub fn find(path: &Path, hold_for: Duration, confined: bool) -> Result<Self, HoldError> {
        let end = Instant::now() + LAST_BREATH;
        let mut starts = 0..STARTS;
        loop {
            let met = match connect(path) {
                Ok(line) => {
                    let line = Mutex::new(Some(line));
                    Self { path: path.into(), line }.hello(hold_for)
                }
                Err(Errno::NOENT | Errno::CONNREFUSED) if starts.next().is_some() => {
                    start(path, confined)?;
                    continue;
                }
                Err(errno) => {
                    return Err(HoldError::Socket { path: path.into(), source: errno.into() });
                }
            };
            match met {
                // It was just ending.
                Err(HoldError::Busy(_) | HoldError::Gone) if Instant::now() < end => {
                    std::thread::sleep(LOOK);
                }
                met => return met,
            }
        }
    }

    fn hello(self, hold_for: Duration) -> Result<Self, HoldError> {
        let path = &self.path;
        if let Some(line) = &*self.lock() {
            let uid = rustix::net::sockopt::socket_peercred(line)?.uid;
            if uid != rustix::process::geteuid() {
                return Err(HoldError::Stranger(path.into()));
            }
        }
        let process = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let number = u32::try_from(hold_for.as_secs()).unwrap_or(u32::MAX);
        let bytes = &[VERSION];
        let hello = Packet { bytes, fds: 1, ..Packet::plain(Kind::Hello, number) };
        match self.ask(&hello, &[process.as_fd()]) {
            Err(HoldError::Io(Errno::BUSY)) => Err(HoldError::Busy(path.into())),
            Err(HoldError::Io(Errno::ACCESS)) => Err(HoldError::Stranger(path.into())),
            Err(HoldError::Io(Errno::PROTONOSUPPORT)) => Err(HoldError::Version(path.into())),
            met => met.map(|_| self),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<OwnedFd>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &Packet<'_>, fds: &[BorrowedFd<'_>]) -> Result<Held, HoldError> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes)?;
        let mut line = self.lock();
        let answer = match &*line {
            Some(line) => converse(line.as_fd(), &bytes, fds),
            None => Err(HoldError::Gone),
        };
        // An answer that comes late would be taken for that of another question.
        if matches!(answer, Err(HoldError::Gone | HoldError::Silent))
            && let Some(line) = line.take()
        {
            // Nobody will say any more what changes: once it is awake, none of it is true.
            let mut bytes = Vec::new();
            let all = Packet { name: packet::ALL, ..Packet::plain(Kind::Forget, 0) };
            all.encode(&mut bytes)?;
            let _ = line::send(line.as_fd(), &bytes, &[], SendFlags::DONTWAIT);
        }
        answer
    }
}

impl Hold for Holder {
    fn put(&self, name: &str, fds: &[BorrowedFd<'_>], bytes: &[u8]) -> Result<(), HoldError> {
        let count = u16::try_from(fds.len()).map_err(|_| Errno::TOOBIG)?;
        let name = name.as_bytes();
        let request = Packet { kind: Kind::Put, number: 0, fds: count, name, bytes };
        self.ask(&request, fds).map(drop)
    }

    fn forget(&self, name: &str) -> Result<(), HoldError> {
        let request = Packet { name: name.as_bytes(), ..Packet::plain(Kind::Forget, 0) };
        self.ask(&request, &[]).map(drop)
    }

    fn all(&self) -> Result<Vec<Held>, HoldError> {
        let mut all = Vec::new();
        for place in 0.. {
            match self.ask(&Packet::plain(Kind::Get, place), &[]) {
                Ok(held) => all.push(held),
                Err(HoldError::Io(Errno::NOENT)) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    fn end(&self) {
        // Before it ends: the next switch makes a socket there at once.
        let _ = std::fs::remove_file(&self.path);
        let _ = self.ask(&Packet::plain(Kind::End, 0), &[]);
    }

    fn has_gone(&self) -> bool {
        let line = self.lock();
        line.as_ref().is_none_or(|line| wait::is_at_end(line.as_fd()))
    }
}

/// Sends a request, and waits for its answer.
fn converse(
    line: BorrowedFd<'_>,
    request: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<Held, HoldError> {
    let sent = line::send(line, request, fds, SendFlags::empty());
    // Who refused us has said why, and hung up.
    if let Err(errno @ (Errno::TOOMANYREFS | Errno::TOOBIG | Errno::MSGSIZE)) = sent {
        return Err(errno.into());
    }
    if wait::readable(line, Instant::now() + PATIENCE, || false).is_err() {
        return Err(HoldError::Silent);
    }
    let (mut packet, mut fds) = (vec![0; MAX_PACKET], Fds::new());
    let got = line::recv_now(line, &mut packet, &mut fds).map_err(|_| HoldError::Gone)?;
    if got.bytes == 0 {
        return Err(HoldError::Gone);
    }
    let answer = packet.get(..got.bytes).and_then(Packet::decode).ok_or(Errno::PROTO)?;
    match answer.kind {
        Kind::Done if fds.count() != usize::from(answer.fds) => Err(HoldError::Descriptors),
        Kind::Done => Ok(Held {
            name: String::from_utf8_lossy(answer.name).into_owned(),
            fds: fds.drain().collect(),
            bytes: answer.bytes.to_vec(),
        }),
        _ => Err(match Errno::from_raw_os_error(answer.number.cast_signed()) {
            Errno::NOSPC => HoldError::Full,
            Errno::MFILE => HoldError::Descriptors,
            other => HoldError::Io(other),
        }),
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let kind = SocketType::SEQPACKET;
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let sock = socket()?;
    rustix::net::connect(&sock, &SocketAddrUnix::new(path)?)?;
    Ok(sock)
}

/// Forks a holder, whose socket is at `path` when this returns. A socket that is there already is
/// that of a holder that has ended.
fn start(path: &Path, confined: bool) -> Result<(), HoldError> {
    let listener = listen(path)
        .map_err(|errno| HoldError::Socket { path: path.into(), source: errno.into() })?;
    let mut given = Some((listener, confined.then(Confinement::new)));
    let forked = sys::fork(|| {
        if let Some((listener, confinement)) = given.take() {
            process::run(listener, confinement);
        }
    });
    forked.map_err(|source| HoldError::Socket { path: path.into(), source })
}

/// Nobody can connect before the permissions are those of its owner.
fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    match rustix::fs::unlink(path) {
        Err(Errno::NOENT) => {}
        other => other?,
    }
    let sock = socket()?;
    rustix::net::bind(&sock, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&sock, 8)?;
    Ok(sock)
}
