//! What happens when a mapped file shrinks: SIGBUS, survived.
//!
//! A peer may truncate a file we have mapped; touching the lost pages raises SIGBUS, which would end
//! the process and every other VM's network with it. [`install`] puts a handler in place that looks
//! the address up among the guarded mappings, replaces the *whole* mapping by private zeros, and marks
//! it poisoned; the interrupted copy then goes on over zeros, and the port is shut down by whoever next
//! asks [`crate::Map::poisoned`]. An address that is not ours gets the default action: a crash with a core.
//!
//! The handler only reads a fixed table of atomics and calls `mmap`, which is a plain system call
//! here, so it is async-signal-safe.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

/// Mappings that can be guarded at once in this process (each VM needs 1 to 8).
pub const SLOTS: usize = 8192;

struct Slot {
    /// Odd while the three words below belong together. The handler may look while the slot of another mapping
    /// changes hands, and must not take one's start for the other's.
    version: AtomicUsize,
    /// 0: free; 1: being set up; else the first address.
    start: AtomicUsize,
    len: AtomicUsize,
    flag: AtomicPtr<AtomicBool>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        flag: AtomicPtr::new(std::ptr::null_mut()),
    }
}; SLOTS];

/// One past the highest slot ever used: bounds the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mapping's place in the table. Must be released before the range is unmapped.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: usize,
    /// Keeps the flag alive that the handler writes.
    _flag: Arc<AtomicBool>,
}

pub(crate) fn guard(start: usize, len: usize, flag: &Arc<AtomicBool>) -> Option<Guard> {
    for (i, slot) in TABLE.iter().enumerate() {
        if slot.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.len.store(len, Ordering::Relaxed);
        slot.flag.store(Arc::as_ptr(flag).cast_mut(), Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.version.fetch_add(1, Ordering::Release);
        USED.fetch_max(i + 1, Ordering::AcqRel);
        return Some(Guard { slot: i, _flag: flag.clone() });
    }
    None
}

impl Guard {
    /// Frees the slot. The range must not be touched any more.
    pub(crate) fn release(&mut self) {
        if let Some(slot) = TABLE.get(self.slot) {
            slot.version.fetch_add(1, Ordering::Relaxed);
            // Whoever sees what comes after sees the new version too.
            fence(Ordering::Release);
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// Installs the SIGBUS handler for the whole process. Call once, before the first VM attaches.
///
/// # Errors
/// That of `sigaction`.
pub fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: `action` is initialised; `on_sigbus` has the SA_SIGINFO signature and is
    // async-signal-safe (see the module's text).
    let r = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; si_addr is set for SIGBUS.
    let addr = unsafe { (*info).si_addr() } as usize;
    if !replace(addr) {
        // SAFETY: restoring the default action and returning re-executes the access, which then
        // ends the process as if we had not been here.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// The range of the mapping that holds `addr`, and its flag.
fn find(addr: usize) -> Option<(usize, usize, *mut AtomicBool)> {
    let used = USED.load(Ordering::Acquire);
    TABLE.iter().take(used).find_map(|slot| {
        let version = slot.version.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        let len = slot.len.load(Ordering::Relaxed);
        let flag = slot.flag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A slot that changes is not that of the mapping being touched, which lives.
        let whole = version % 2 == 1 && version == slot.version.load(Ordering::Relaxed);
        (whole && start > 1 && addr >= start && addr - start < len).then_some((start, len, flag))
    })
}

/// Puts zeros in place of the mapping that holds `addr`; false if it is none of ours.
fn replace(addr: usize) -> bool {
    let Some((start, len, flag)) = find(addr) else { return false };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range belongs to a live `Mapping` (its slot is taken until just before it is
    // unmapped, and the faulting access itself borrows it); MAP_FIXED swaps its pages in one step.
    let p = unsafe { libc::mmap(start as *mut libc::c_void, len, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: `Guard` holds an `Arc` of the flag for as long as the slot is taken.
    unsafe { (*flag).store(true, Ordering::Relaxed) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot that changes hands while the handler looks at it: the old start with the new length would put zeros over
    /// whatever lies behind the old mapping.
    #[test]
    fn a_slot_is_never_seen_half_changed() {
        const LOW: usize = 0x10_0000;
        const HIGH: usize = 0x9000_0000;
        let done = AtomicBool::new(false);
        let flag = Arc::new(AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..2_000_000 {
                    for (start, len) in [(LOW, 0x1000), (HIGH, 0x7000_0000)] {
                        guard(start, len, &flag).unwrap().release();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            // Between the two: in neither.
            while !done.load(Ordering::Relaxed) {
                assert_eq!(find(LOW + 0x10_0000).map(|f| (f.0, f.1)), None);
            }
        });
    }
}
