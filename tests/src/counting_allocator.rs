//! An allocator that counts, for tests in which nothing may be allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator, counting. To be made a test's global allocator.
pub struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// Print the first allocation's backtrace when it happens while this is set.
static ARMED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static FREE: Cell<bool> = const { Cell::new(false) };
}

/// What the calling thread allocates is not counted: it plays a guest whose driver may.
pub fn spare_this_thread() {
    FREE.set(true);
}

fn count() {
    if FREE.get() {
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    if ARMED.load(Ordering::Relaxed) && ARMED.swap(false, Ordering::Relaxed) {
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
    }
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Runs `traffic` for a few rounds to warm up, and then for more: no allocation may happen in any
/// thread that is counted. A port's thread may still be seeing an earlier guest off, which
/// allocates: then the next rounds count.
///
/// # Panics
/// When one happens each time.
pub fn assert_no_allocation(what: &str, mut traffic: impl FnMut(u64)) {
    traffic(3);
    let mut fewest = u64::MAX;
    for _ in 0..3 {
        let before = COUNT.load(Ordering::SeqCst);
        ARMED.store(std::env::var_os("ALLOC_TRACE").is_some(), Ordering::SeqCst);
        traffic(40);
        ARMED.store(false, Ordering::SeqCst);
        fewest = fewest.min(COUNT.load(Ordering::SeqCst) - before);
        if fewest == 0 {
            return;
        }
    }
    panic!("{fewest} allocations while {what} (ALLOC_TRACE=1 shows where)");
}
