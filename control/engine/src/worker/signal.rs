//! A signal that only interrupts: the few system calls without a safe wrapper.
#![allow(unsafe_code)]

use std::io;

/// Used to end a blocking call of one thread; its handler does nothing.
const INTERRUPT: libc::c_int = libc::SIGUSR1;

extern "C" fn nothing(_: libc::c_int) {}

/// Installs the do-nothing handler, without `SA_RESTART`: interrupted calls return EINTR.
pub(super) fn install_interrupter() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct, and the handler is
    // async-signal-safe: it does nothing.
    let r = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut())
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The calling thread's number, for [`interrupt_thread`]; never 0.
pub(super) fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Interrupts a thread of this process; 0: none. A thread that has ended is left alone by the
/// kernel: the process's own id goes with it, so no stranger can be hit.
pub(super) fn interrupt_thread(tid: i32) {
    if tid > 0 {
        // SAFETY: tgkill takes three integers; INTERRUPT has a handler, so nothing dies.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, INTERRUPT) };
    }
}
