//! A signal that only interrupts: the few system calls without a safe wrapper.
#![allow(unsafe_code)]

use std::io;

/// Used to end a blocking call of one thread; its handler does nothing.
const INTERRUPT: libc::c_int = libc::SIGUSR1;

extern "C" fn nothing(_: libc::c_int) {}

/// Installs the do-nothing handler, without `SA_RESTART`: interrupted calls return EINTR.
pub(super) fn install_interrupter() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: `action` is initialised and the handler is async-signal-safe: it does nothing.
    let r = unsafe { libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut()) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The calling thread's name, for [`interrupt_thread`].
pub(super) fn this_thread() -> u64 {
    // SAFETY: gettid has no preconditions.
    u64::try_from(unsafe { libc::gettid() }).unwrap_or(0)
}

/// Interrupts a thread of this process. A thread that has ended is left alone by the kernel: the
/// process's own id goes with it, so no stranger can be hit.
pub(super) fn interrupt_thread(thread: u64) {
    let Ok(tid) = libc::pid_t::try_from(thread) else { return };
    if tid > 0 {
        // SAFETY: tgkill takes three integers; INTERRUPT has a handler, so nothing dies.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, INTERRUPT) };
    }
}
