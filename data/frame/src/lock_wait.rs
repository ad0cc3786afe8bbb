//! How long a thread has waited for locks of ports.
//!
//! Who finds out why a worker slept must tell that from guests' memory, which makes it sleep too.

use std::cell::Cell;

thread_local! {
    static CLOCK: Cell<Option<fn() -> u64>> = const { Cell::new(None) };
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// From now on waits of the calling thread are measured by `clock`, in its unit.
pub fn measure_lock_waits(clock: fn() -> u64) {
    CLOCK.set(Some(clock));
}

/// Runs `wait`, which waits for a lock that is known to be taken.
pub fn lock_wait<T>(wait: impl FnOnce() -> T) -> T {
    let Some(clock) = CLOCK.get() else { return wait() };
    let since = clock();
    let got = wait();
    WAITED.set(WAITED.get().saturating_add(clock().saturating_sub(since)));
    got
}

/// How much of the calling thread's time has passed in [`lock_wait`] since it is measured.
pub fn lock_waited() -> u64 {
    WAITED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(5) };
    }

    #[test]
    fn waits_are_counted_once_there_is_a_clock() {
        let wait = |n| lock_wait(|| NOW.set(NOW.get() + n));
        wait(7);
        assert_eq!(lock_waited(), 0);
        measure_lock_waits(|| NOW.get());
        wait(20);
        NOW.set(NOW.get() + 100);
        wait(3);
        assert_eq!(lock_waited(), 23);
    }
}
