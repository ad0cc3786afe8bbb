//! What needs `unsafe` code: to fork, and what a child does before it is safe. The only file of
//! this crate with `unsafe` in it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Ends the process when it is dropped, without running anything of the parent's: also if a panic
/// unwinds.
struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(0) }
    }
}

/// Runs `child` in a new process, which ends with it.
///
/// This process may have other threads. They do not exist in the child, and locks that they hold
/// are never released there; so `child` must neither allocate nor print, nor do anything but
/// arithmetic and system calls.
///
/// # Errors
/// That of `fork`.
pub fn fork(child: impl FnOnce()) -> io::Result<()> {
    // SAFETY: glibc and musl let a child of a program with threads call async-signal-safe
    // functions. The two callers, `spawner::run` and `process::run`, keep to that: rustix makes
    // bare system calls, and buffers are on the stack.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let _exit = Exit;
            child();
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Makes `line` the only descriptor of this process. It becomes standard input, output and error,
/// so that nothing can be printed to a descriptor that a stranger sent.
///
/// # Errors
/// That of `dup2` or `close_range`.
pub fn keep_only(line: OwnedFd) -> io::Result<BorrowedFd<'static>> {
    rustix::stdio::dup2_stdin(&line)?;
    rustix::stdio::dup2_stdout(&line)?;
    rustix::stdio::dup2_stderr(&line)?;
    // Closed with all others, unless it was a standard stream already.
    std::mem::forget(line);
    // SAFETY: whoever owned these descriptors in the parent does not run in this process: it ends
    // without returning (`Exit`).
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(rustix::stdio::stdin())
}

/// Children are reaped by the kernel, and the signals that end a switch do not end this process:
/// the end of its line does.
pub fn ignore_signals() {
    for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: ignoring a signal has no preconditions.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
