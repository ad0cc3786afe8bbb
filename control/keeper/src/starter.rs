//! The process that starts programs of a switch's own: it is forked before the switch gives up the
//! right to, and never has anything of a stranger's.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::line::{self, Fds};
use crate::sys;

/// Our end of the starter's line. The starter ends when this is closed: with this process.
static STARTER: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The program, wherever its file has gone meanwhile.
const PROGRAM: &CStr = c"/proc/self/exe";

/// Forks the starter, unless there is one, for [`start_program`]. `words` are the arguments that
/// the program is started with, the first being its name. To be called before this process has a
/// second thread, memory worth keeping, or descriptors.
///
/// # Errors
/// That of `socketpair` or `fork`.
pub fn start_starter(words: &'static [&'static CStr]) -> io::Result<()> {
    let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    if starter.is_none() {
        let (ours, theirs) = line::pair()?;
        sys::fork(|| run(theirs, words))?;
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
    let (ours, theirs) = line::pair()?;
    let starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    let starter = starter.as_ref().ok_or(Errno::CHILD)?;
    line::send(starter.as_fd(), &[0], &[theirs.as_fd()], SendFlags::DONTWAIT)?;
    Ok(ours)
}

/// The starter's own process.
fn run(line: OwnedFd, words: &[&CStr]) {
    let Ok(line) = sys::keep_with_errors(line) else { return };
    sys::ignore_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"vmlan-starter");
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_no_new_privs(true);
    let mut fds = Fds::new();
    while let Ok(got) = line::recv(line, &mut [0; 1], &mut fds, RecvFlags::empty()) {
        if got.bytes == 0 {
            return;
        }
        let Some(program) = fds.drain().next() else { continue };
        // If it cannot be forked or started its line ends, which is how its death is seen, too.
        let _ = sys::fork(|| {
            if rustix::stdio::dup2_stdin(&program).is_ok() {
                sys::become_program(PROGRAM, words);
            }
        });
    }
}
