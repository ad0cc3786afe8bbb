//! How long a thread has waited for locks of ports.
//!
//! Who finds out why a worker slept must tell that from guests' memory, which makes it sleep too.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// Runs `wait`, which waits for a lock that is known to be taken.
pub fn lock_wait<T>(wait: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let got = wait();
    let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    WAITED.set(WAITED.get().saturating_add(ns));
    got
}

/// Nanoseconds that the calling thread has spent in [`lock_wait`].
pub fn lock_waited() -> u64 {
    WAITED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_counted_for_the_thread_that_waits() {
        let before = lock_waited();
        let pause = std::time::Duration::from_millis(1);
        lock_wait(|| std::thread::sleep(pause));
        assert!(lock_waited() - before >= 1_000_000);
        assert_eq!(std::thread::spawn(lock_waited).join().unwrap(), 0);
    }
}
