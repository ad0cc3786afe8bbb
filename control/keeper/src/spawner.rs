//! The process that forks keepers, and how it is asked to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::line::{self, Fds};
use crate::packet::Head;
use crate::{process, sys, wait};

/// Our end of the spawner's line. It ends when this is closed: with this process.
static SPAWNER: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// How long a new keeper may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forks the spawner, unless there is one. To be called before this process has a second thread,
/// memory worth keeping, or descriptors.
///
/// # Errors
/// That of `socketpair` or `fork`.
pub fn start() -> io::Result<()> {
    let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    if spawner.is_none() {
        *spawner = Some(fork()?);
    }
    Ok(())
}

/// A new keeper: our end of its line.
///
/// # Errors
/// There is none to be had.
pub fn spawn() -> io::Result<OwnedFd> {
    let (ours, theirs) = line::pair()?;
    // Held until the keeper is there: requests would otherwise fill the spawner's line.
    let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = match &*spawner {
        Some(line) => ask(line.as_fd(), theirs.as_fd()),
        None => Err(Errno::PIPE),
    };
    match asked {
        // It was killed, or never started.
        Err(Errno::PIPE | Errno::CONNRESET) => {
            let line = spawner.insert(fork()?);
            ask(line.as_fd(), theirs.as_fd())?;
        }
        asked => asked?,
    }
    drop(theirs);
    let mut head = [0; crate::packet::HEAD];
    wait::readable(ours.as_fd(), Instant::now() + PATIENCE, || false)?;
    let got = line::recv(ours.as_fd(), &mut head, &mut Fds::new(), RecvFlags::DONTWAIT)?;
    let (head, _) = head.get(..got.bytes).and_then(Head::decode).ok_or(Errno::PIPE)?;
    head.outcome()?;
    Ok(ours)
}

fn ask(spawner: BorrowedFd<'_>, line: BorrowedFd<'_>) -> Result<(), Errno> {
    line::send(spawner, &[0], &[line], SendFlags::DONTWAIT)
}

fn fork() -> io::Result<OwnedFd> {
    let (ours, theirs) = line::pair()?;
    sys::fork(|| run(theirs))?;
    Ok(ours)
}

/// The spawner's own process.
fn run(line: OwnedFd) {
    let Ok(line) = sys::keep_only(line) else { return };
    sys::ignore_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"vmlan-spawner");
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_no_new_privs(true);
    let mut fds = Fds::new();
    while let Ok(got) = line::recv(line, &mut [0; 1], &mut fds, RecvFlags::empty()) {
        if got.bytes == 0 {
            return;
        }
        let Some(keeper) = fds.drain().next() else { continue };
        let mut given = Some(keeper);
        let forked = sys::fork(|| given.take().into_iter().for_each(process::run));
        if let (Err(e), Some(keeper)) = (forked, &given) {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
            let _ = line::send(
                keeper.as_fd(),
                &Head::of(Err(errno)).encode(),
                &[],
                SendFlags::DONTWAIT,
            );
        }
    }
}
