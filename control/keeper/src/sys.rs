//! What needs `unsafe` code: to fork, and what a child does before it is safe. The only file of
//! this crate with `unsafe` in it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

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
/// arithmetic and system calls. (A holder's may: its parent has one thread, see `Holder::find`.)
pub fn fork(child: impl FnOnce()) -> io::Result<()> {
    // SAFETY: glibc and musl let a child of a program with threads call async-signal-safe
    // functions. The callers in `spawner` and `starter` keep to that: rustix makes bare system
    // calls, buffers are on the stack, and what confines the child was made before.
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

/// Makes `line` the standard input of this process, which keeps its standard output and error, and
/// no other descriptor.
///
/// # Errors
/// That of `dup2` or `close_range`.
pub fn keep_with_errors(line: OwnedFd) -> io::Result<BorrowedFd<'static>> {
    rustix::stdio::dup2_stdin(&line)?;
    // Closed with all others, unless it was a standard stream already.
    std::mem::forget(line);
    // SAFETY: as in `keep_only`.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(rustix::stdio::stdin())
}

/// Most arguments of a program.
const WORDS: usize = 7;

/// This process becomes the program at `path`, if it can.
pub fn become_program(path: &CStr, words: &[&CStr]) {
    let mut arguments = [std::ptr::null(); WORDS + 1];
    for (to, word) in arguments.iter_mut().take(WORDS).zip(words) {
        *to = word.as_ptr();
    }
    // SAFETY: a path, and a list of strings that ends with a null pointer, all of which outlive the
    // call.
    unsafe { libc::execv(path.as_ptr(), arguments.as_ptr()) };
}

/// Children are reaped by the kernel, and the signals that end a switch do not end this process:
/// the end of its line does.
pub fn ignore_signals() {
    for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: ignoring a signal has no preconditions.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// CPU time that this process has used. By the C library: rustix looks for the vDSO first, by calls
/// that a keeper need not be allowed.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes to it.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let part = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), part)
}
