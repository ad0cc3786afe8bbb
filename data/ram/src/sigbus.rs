//! What happens when a mapped file shrinks: SIGBUS, survived.
//!
//! A peer may truncate a file that is mapped here. Touching the lost pages raises SIGBUS, which
//! would end the process and every other VM's network with it. [`install`] puts a handler in place
//! that looks the address up among the guarded mappings, replaces the *whole* mapping by zeros, and
//! marks it poisoned. The interrupted copy then goes on over zeros, and the port is shut down by
//! whoever next asks [`crate::Map::poisoned`]. An address that is not ours gets the default action:
//! a crash with a core.
//!
//! The zeros must be there when memory is short. So they are a sparse file of ours, mapped shared:
//! that is not charged against the commit limit (`vm.overcommit_memory=2`) and puts one mapping in
//! the place of one. Each slot of the table has a range of the file to itself, or what is written
//! to one poisoned mapping could be read in another. Should the file give no page, the mapping is
//! touched in vain a second time; then the page in question is replaced by the first page of the
//! slot's range, which was allocated when the mapping was made.
//!
//! Should `mmap` fail, the access goes on without its memory (`fixup.rs`): no peer can end the
//! process.
//!
//! The handler only accesses a fixed table of atomics and makes one bare system call, `mmap`, so it
//! is async-signal-safe.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::fixup::go_on;

/// Mappings that can be guarded at once in this process (each VM needs 1 to 8). Who may have how
/// many is decided in `attach/address_space.rs`.
pub const SLOTS: usize = 16_384;

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
    /// Zeros are in its place.
    replaced: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        poisoned: AtomicBool::new(false),
        replaced: AtomicBool::new(false),
    }
}; SLOTS];

/// Bytes of [`ZEROS`] that each slot has to itself: at least as many as a mapping can have.
const SPAN: u64 = crate::mapping::MOST;

const PAGE: usize = 4096; // Bytes of a page that any mapping but one of huge pages can be split at.

/// The file that takes the place of those that shrank. Sparse: [`SPAN`] bytes for each slot.
static ZEROS: OnceLock<OwnedFd> = OnceLock::new();

fn zeros() -> io::Result<&'static OwnedFd> {
    if let Some(file) = ZEROS.get() {
        return Ok(file);
    }
    let file = rustix::fs::memfd_create("vmlan-zeros", MemfdFlags::CLOEXEC)?;
    without_file_limit(|| rustix::fs::ftruncate(&file, SPAN * SLOTS as u64))?;
    Ok(ZEROS.get_or_init(|| file))
}

/// Makes a file as long as the hard limit of file sizes allows, whatever the soft one is: it is
/// sparse, and takes none of the space that the limit is about. Beyond the limit the system would
/// end the process by a signal.
fn without_file_limit(make: impl FnOnce() -> rustix::io::Result<()>) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Fsize);
    if limit.maximum.is_some_and(|most| most < SPAN * SLOTS as u64) {
        return Err(io::Error::other(
            "files may not be large enough here for a sparse one of 2^60 bytes, which takes the \
             place of guest memory that vanishes: lift the limit (ulimit -f unlimited, \
             LimitFSIZE=infinity)",
        ));
    }
    setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit })?;
    let made = make();
    setrlimit(Resource::Fsize, limit)?;
    Ok(made?)
}

/// One past the highest slot ever used: bounds the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mapping's place in the table. Must be released before the range is unmapped.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: &'static Slot,
    index: usize,
}

/// Guards `len` bytes at `start`. `None` if no slot is free.
pub(crate) fn guard(start: usize, len: usize) -> Option<Guard> {
    for (i, slot) in TABLE.iter().enumerate() {
        if slot.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.poisoned.store(false, Ordering::Relaxed);
        slot.replaced.store(false, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.version.fetch_add(1, Ordering::Release);
        USED.fetch_max(i + 1, Ordering::AcqRel);
        return Some(Guard { slot, index: i });
    }
    None
}

impl Guard {
    /// Allocates the page that the handler falls back on.
    ///
    /// # Errors
    /// If there is no memory for it: the mapping must not be used.
    pub(crate) fn allocate_page(&self) -> io::Result<()> {
        let mode = FallocateFlags::empty();
        Ok(rustix::fs::fallocate(zeros()?, mode, place_of(self.index), PAGE as u64)?)
    }

    /// True once the file shrank.
    pub(crate) fn poisoned(&self) -> bool {
        self.slot.poisoned.load(Ordering::Relaxed)
    }

    /// Frees the slot. The range must not be touched any more.
    pub(crate) fn release(&mut self) {
        self.slot.version.fetch_add(1, Ordering::Relaxed);
        // Whoever sees what comes after sees the new version too.
        fence(Ordering::Release);
        // What was written to the zeros is not for the slot's next mapping to see. If it cannot be
        // removed, there is no next one: 1 looks as if the slot were being set up.
        let clean = !self.poisoned() || punch(self.index).is_ok();
        self.slot.start.store(usize::from(!clean), Ordering::Release);
    }
}

/// Where the slot's range of [`ZEROS`] begins.
fn place_of(index: usize) -> u64 {
    index as u64 * SPAN
}

/// Gives the memory of a slot's range of [`ZEROS`] back.
fn punch(index: usize) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(zeros()?, mode, place_of(index), SPAN)?)
}

/// Installs the SIGBUS handler for the whole process. Call once, before the first VM attaches.
///
/// # Errors
/// That of `sigaction`, or that there is no memory for a file of zeros.
pub fn install() -> io::Result<()> {
    zeros()?;
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

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and context to an SA_SIGINFO handler; si_addr is
    // set for SIGBUS. Restoring the default action and returning repeats the access, which then
    // ends the process as if there were no handler.
    unsafe {
        let found = find((*info).si_addr().addr());
        let survived = found.is_some_and(|f| f.replace((*info).si_addr().addr()) || go_on(context));
        if !survived {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
    }
}

/// A guarded mapping, as the handler finds it.
#[derive(Clone, Copy, Debug)]
struct Found {
    slot: &'static Slot,
    index: usize,
    start: usize,
    len: usize,
}

/// The mapping that holds `addr`.
fn find(addr: usize) -> Option<Found> {
    let used = USED.load(Ordering::Acquire);
    TABLE.iter().take(used).enumerate().find_map(|(index, slot)| {
        let version = slot.version.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        let len = slot.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A slot that changes is not that of the mapping being touched, which lives.
        let whole = version % 2 == 1 && version == slot.version.load(Ordering::Relaxed);
        let holds = whole && start > 1 && addr >= start && addr - start < len;
        holds.then_some(Found { slot, index, start, len })
    })
}

impl Found {
    /// Puts zeros in place of the mapping, which was touched at `addr`. False: that failed. It is
    /// poisoned in any case.
    fn replace(self, addr: usize) -> bool {
        self.slot.poisoned.store(true, Ordering::Release);
        let Some(zeros) = ZEROS.get() else { return false };
        // Touched in vain again: the file of zeros had no page. Those in the place of a mapping are
        // never huge, so a single one can be exchanged.
        let (start, len) = if self.slot.replaced.load(Ordering::Acquire) {
            (addr & !(PAGE - 1), PAGE)
        } else {
            (self.start, self.len)
        };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let (at, offset) = (std::ptr::without_provenance_mut(start), place_of(self.index));
        // SAFETY: the range belongs to a live `Mapping` (its slot is taken until just before it is
        // unmapped, and the access that faulted borrows it). MAP_FIXED swaps its pages in one step.
        let done = unsafe { rustix::mm::mmap(at, len, prot, flags, zeros, offset) };
        self.slot.replaced.fetch_or(done.is_ok(), Ordering::Release);
        done.is_ok()
    }
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
                assert_eq!(find(LOW + 0x10_0000).map(|f| (f.start, f.len)), None);
            }
        });
    }
    /// The file of zeros has no page to give either: all pages that are touched then are the one
    /// that was allocated beforehand, and the next mapping in the slot sees none of it.
    #[test]
    fn without_memory_for_zeros_a_page_that_exists_takes_their_place() {
        use crate::{Map, Mapping, Region};
        use std::os::fd::AsFd;
        use std::sync::Arc;
        let memory = || {
            let file = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, 4 * PAGE as u64).unwrap();
            let mapping = Arc::new(Mapping::new(file.as_fd(), 0, 4 * PAGE as u64).unwrap());
            let region = Region::new(0, 4 * PAGE as u64, 0, 0, mapping).unwrap();
            Map::new(vec![region], None).unwrap()
        };
        let map = memory();
        let start = map.slice(0, 1).unwrap().as_raw().0.addr();
        let index = find(start).unwrap().index;
        for at in [start, start + PAGE + 7, start + 3 * PAGE] {
            assert!(find(at).unwrap().replace(at));
        }
        assert!(map.poisoned());
        map.slice_mut(PAGE as u64, 2).unwrap().write(0, &[5; 2]);
        let read = |at| map.slice(at, 2).unwrap().read_array::<2>();
        assert_eq!(read(3 * PAGE as u64), Some([5; 2]), "the same page");
        assert_eq!(read(2 * PAGE as u64), Some([0; 2]), "a page that could be had");
        let mut file = [1; 2];
        drop(map);
        rustix::io::pread(zeros().unwrap(), &mut file, place_of(index)).unwrap();
        assert_eq!(file, [0; 2], "nothing is left of it");
    }
}
