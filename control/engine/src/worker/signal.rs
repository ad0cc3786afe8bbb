//! The few system calls without a safe wrapper: a signal that only interrupts, the slice, and what
//! a thread has used.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::time::ClockId;
use vmlan_frame::lock_waited;
use vmlan_switch::Usage;

use super::run::nanoseconds;

/// Used to end a blocking call of one thread; its handler does nothing.
const INTERRUPT: libc::c_int = libc::SIGUSR1;

/// A worker that waits for a port's lock yields so often before it sleeps.
const YIELDS: u32 = 100;
/// So long it sleeps then, between two looks.
const NAP: Duration = Duration::from_micros(50);

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

/// Linux' `struct sched_attr` in its first version (sched_setattr(2)).
#[repr(C)]
#[derive(Debug, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks the kernel to run the calling thread, an ordinary one, for `ns` nanoseconds at a time
/// (Linux 6.12 and later; older kernels ignore it). Its share of the processor stays the same: who
/// asks for less at a time is given it sooner. Nothing is changed where the kernel refuses.
pub(super) fn set_slice(ns: u64) -> io::Result<()> {
    let nice = rustix::process::getpriority_process(None)?;
    let size = u32::try_from(size_of::<SchedAttr>()).unwrap_or(0);
    let attr = SchedAttr { size, nice, runtime: ns, ..SchedAttr::default() };
    // SAFETY: the kernel reads `size` bytes of a plain C struct that outlives the call.
    let r = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Nanoseconds of a clock that is not set.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    nanoseconds(Duration::try_from(now).unwrap_or_default())
}

/// Between two looks at a port's lock. Its holder, a worker too, may be kept from running, and then
/// needs a core; or it sleeps in a guest's memory, which is long.
fn rest(rests: u32) {
    if rests < YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

thread_local! {
    /// The calling thread's times as its scheduler has them (`/proc`, proc(5)).
    static SCHEDSTAT: OnceCell<File> = const { OnceCell::new() };
}

/// To be called by a thread, before it gives up opening files, that is to know its [`usage`].
pub(super) fn begin_usage() {
    vmlan_frame::measure_lock_waits(monotonic, rest);
    // Where there is none, waiting for a processor is not told from other waiting.
    if let Ok(file) = File::open("/proc/thread-self/schedstat") {
        SCHEDSTAT.with(|place| place.set(file).unwrap_or_default());
    }
}

/// Nanoseconds for which the calling thread has waited for a processor: the second number.
fn delay() -> u64 {
    SCHEDSTAT
        .with(|file| {
            let mut text = [0; 64];
            let read = file.get().and_then(|file| file.read_at(&mut text, 0).ok());
            let text = text.get(..read?).and_then(|text| str::from_utf8(text).ok())?;
            text.split(' ').nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// What the calling thread has used since it began.
pub(super) fn usage() -> Usage {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`. Where it refuses, there are zeros.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut used) };
    let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
    Usage {
        delay: delay(),
        locks: lock_waited(),
        sleeps: count(used.ru_nvcsw),
        faults: count(used.ru_minflt).saturating_add(count(used.ru_majflt)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_asked_for_and_niceness_stays() {
        let thread = std::thread::spawn(|| {
            rustix::process::setpriority_process(None, 5).unwrap();
            set_slice(100_000).unwrap();
            let mut attr = SchedAttr::default();
            // SAFETY: the kernel writes at most the size that it is told.
            let r = unsafe {
                let size = size_of::<SchedAttr>();
                libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0)
            };
            assert_eq!((r, attr.nice, attr.policy), (0, 5, 0));
            attr.runtime
        });
        // Linux tells of the slice since it takes one.
        let slice = thread.join().unwrap();
        assert!(slice == 100_000 || slice == 0, "{slice}");
    }

    #[test]
    fn sleep_and_page_faults_are_counted() {
        begin_usage();
        let before = usage();
        // More than the heap keeps for another use.
        let fresh = vec![1u8; 64 << 20];
        std::thread::sleep(Duration::from_millis(1));
        let after = usage();
        assert!(after.sleeps > before.sleeps && after.faults > before.faults && !fresh.is_empty());
        // Whoever is woken waits for a processor for a moment.
        let has_schedstat = SCHEDSTAT.with(|file| file.get().is_some());
        assert_eq!(after.delay > before.delay, has_schedstat);
    }
}
