//! The process that starts programs of a switch's own, and opens a file that the switch may open no
//! more once somebody has replaced it: it is forked before the switch gives up the right to, and
//! never has anything of a stranger's.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::line::{self, Fds};
use crate::{sys, wait};

/// How long a file may take to be opened.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the starter is asked for, as a byte on its line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Program = 0,
    File = 1,
}

/// Our end of the starter's line. The starter ends when this is closed: with this process.
static STARTER: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The program, wherever its file has gone meanwhile.
const PROGRAM: &CStr = c"/proc/self/exe";

/// Forks the starter, unless there is one, for [`start_program`]. `words` are the arguments that
/// the program is started with, the first being its name, and `file` is that of [`open_file`]. To
/// be called before this process has a second thread, memory worth keeping, or descriptors.
///
/// # Errors
/// That of `socketpair` or `fork`.
pub fn start_starter(words: &'static [&'static CStr], file: &'static CStr) -> io::Result<()> {
    let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    if starter.is_none() {
        let (ours, theirs) = line::pair()?;
        sys::fork(|| run(theirs, words, file))?;
        *starter = Some(ours);
    }
    Ok(())
}

/// Starts the program that [`start_starter`] named. Its standard input is the far end of the line
/// that is returned, a UNIX socket that keeps packets apart.
///
/// # Errors
/// Nobody can start it: there is no starter, or it was killed.
pub fn start_program() -> io::Result<OwnedFd> {
    ask(Wanted::Program)
}

/// The file that [`start_starter`] named, as it is now, to read.
///
/// # Errors
/// Nobody can open it, or not in time.
pub fn open_file() -> io::Result<OwnedFd> {
    let line = ask(Wanted::File)?;
    wait::readable(line.as_fd(), Instant::now() + PATIENCE, || false)?;
    let mut fds = Fds::new();
    line::recv_now(line.as_fd(), &mut [0; 1], &mut fds)?;
    Ok(fds.drain().next().ok_or(Errno::ACCESS)?)
}

fn ask(wanted: Wanted) -> io::Result<OwnedFd> {
    let (ours, theirs) = line::pair()?;
    let starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    let starter = starter.as_ref().ok_or(Errno::CHILD)?;
    line::send(starter.as_fd(), &[wanted as u8], &[theirs.as_fd()], SendFlags::DONTWAIT)?;
    Ok(ours)
}

/// The starter's own process.
fn run(line: OwnedFd, words: &[&CStr], file: &CStr) {
    let Ok(line) = sys::keep_with_errors(line) else { return };
    sys::ignore_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"vmlan-starter");
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_no_new_privs(true);
    let (mut fds, mut wanted) = (Fds::new(), [0; 1]);
    while let Ok(got) = line::recv(line, &mut wanted, &mut fds, RecvFlags::empty()) {
        if got.bytes == 0 {
            return;
        }
        let Some(program) = fds.drain().next() else { continue };
        // If it cannot be forked or started its line ends, which is how its death is seen, too. A
        // file may be one that hangs whoever opens it.
        let _ = sys::fork(|| {
            if wanted == [Wanted::File as u8] {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
                if let Ok(open) = rustix::fs::open(file, flags, Mode::empty()) {
                    let _ = line::send(program.as_fd(), &[0], &[open.as_fd()], SendFlags::empty());
                }
            } else if rustix::stdio::dup2_stdin(&program).is_ok() {
                sys::become_program(PROGRAM, words);
            }
        });
    }
}
