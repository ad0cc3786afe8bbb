//! What happens when a mapped file shrinks: SIGBUS, survived.
//!
//! A peer may truncate a file that is mapped here. Touching the lost pages raises SIGBUS, which
//! would end the process and every other VM's network with it. [`install`] puts a handler in place
//! that looks the address up among the guarded mappings, replaces the *whole* mapping by private
//! zeros, and marks it poisoned. The interrupted copy then goes on over zeros, and the port is shut
//! down by whoever next asks [`crate::Map::poisoned`]. An address that is not ours gets the default
//! action: a crash with a core.
//!
//! The handler only accesses a fixed table of atomics and makes one bare system call, `mmap`, so it
//! is async-signal-safe.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};

/// Mappings that can be guarded at once in this process (each VM needs 1 to 8).
pub const SLOTS: usize = 8192;

#[derive(Debug)]
struct Slot {
    /// Odd while the two words below belong together. The handler may look while the slot of
    /// another mapping changes hands, and must not take one's start for the other's.
    version: AtomicUsize,
    /// 0: free; 1: being set up; else the first address.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The file shrank. Set by the handler.
    poisoned: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        poisoned: AtomicBool::new(false),
    }
}; SLOTS];

/// One past the highest slot ever used: bounds the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mapping's place in the table. Must be released before the range is unmapped.
#[derive(Debug)]
pub(crate) struct Guard(&'static Slot);

/// Guards `len` bytes at `start`. `None` if no slot is free.
pub(crate) fn guard(start: usize, len: usize) -> Option<Guard> {
    for (i, slot) in TABLE.iter().enumerate() {
        if slot.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.poisoned.store(false, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.version.fetch_add(1, Ordering::Release);
        USED.fetch_max(i + 1, Ordering::AcqRel);
        return Some(Guard(slot));
    }
    None
}

impl Guard {
    /// True once the file shrank.
    pub(crate) fn poisoned(&self) -> bool {
        self.0.poisoned.load(Ordering::Relaxed)
    }

    /// Frees the slot. The range must not be touched any more.
    pub(crate) fn release(&mut self) {
        self.0.version.fetch_add(1, Ordering::Relaxed);
        // Whoever sees what comes after sees the new version too.
        fence(Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// Installs the SIGBUS handler for the whole process. Call once, before the first VM attaches.
///
/// # Errors
/// That of `sigaction`.
pub fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct. `on_sigbus` has the
    // SA_SIGINFO signature and is async-signal-safe (see the module's text).
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; si_addr is set for
    // SIGBUS. Restoring the default action and returning repeats the access, which then ends the
    // process as if there were no handler.
    unsafe {
        if !replace((*info).si_addr().addr()) {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
    }
}

/// The slot of the mapping that holds `addr`, with the mapping's start and length.
fn find(addr: usize) -> Option<(&'static Slot, usize, usize)> {
    let used = USED.load(Ordering::Acquire);
    TABLE.iter().take(used).find_map(|slot| {
        let version = slot.version.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        let len = slot.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A slot that changes is not that of the mapping being touched, which lives.
        let whole = version % 2 == 1 && version == slot.version.load(Ordering::Relaxed);
        (whole && start > 1 && addr >= start && addr - start < len).then_some((slot, start, len))
    })
}

/// Puts zeros in place of the mapping that holds `addr`; false if it is none of ours.
fn replace(addr: usize) -> bool {
    let Some((slot, start, len)) = find(addr) else { return false };
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let place = std::ptr::without_provenance_mut(start);
    // SAFETY: the range belongs to a live `Mapping` (its slot is taken until just before it is
    // unmapped, and the access that faulted borrows it). MAP_FIXED swaps its pages in one step.
    let done = unsafe { rustix::mm::mmap_anonymous(place, len, prot, flags) };
    slot.poisoned.fetch_or(done.is_ok(), Ordering::Relaxed);
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot that changes hands while the handler looks at it: the old start with the new length
    /// would put zeros over whatever lies behind the old mapping.
    #[test]
    fn a_slot_is_never_seen_half_changed() {
        const LOW: usize = 0x10_0000;
        const HIGH: usize = 0x9000_0000;
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..2_000_000 {
                    for (start, len) in [(LOW, 0x1000), (HIGH, 0x7000_0000)] {
                        guard(start, len).unwrap().release();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            // Between the two: in neither.
            while !done.load(Ordering::Relaxed) {
                assert_eq!(find(LOW + 0x10_0000).map(|f| (f.1, f.2)), None);
            }
        });
    }
}
