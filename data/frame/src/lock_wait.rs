//! How a thread waits for locks of ports, and for how long it has.
//!
//! Who finds out why a worker slept must tell that from guests' memory, which makes it sleep too.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Looks at a lock before the processor is left to others: its holder may be one of them.
const SPINS: u32 = 100;

thread_local! {
    static CLOCK: Cell<Option<fn() -> u64>> = const { Cell::new(None) };
    static REST: Cell<fn(u32)> = const { Cell::new(spin) };
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

fn spin(_: u32) {
    std::hint::spin_loop();
}

/// From now on waits of the calling thread are measured by `clock`, in its unit. In a long one it
/// calls `rest` between its looks, with how often it has done so.
pub fn measure_lock_waits(clock: fn() -> u64, rest: fn(u32)) {
    CLOCK.set(Some(clock));
    REST.set(rest);
}

/// Locks for a worker, unless `is_claimed`: somebody wants the lock, or has it, for whom workers do
/// not wait. The mutex alone would not do: who sleeps in it does not see that the next holder is
/// another one than it has begun to wait for.
#[inline]
pub fn lock_unless<'m, T>(
    mutex: &'m Mutex<T>,
    is_claimed: impl Fn() -> bool,
) -> Option<MutexGuard<'m, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => wait_unless(mutex, is_claimed),
    }
}

#[cold]
fn wait_unless<'m, T>(
    mutex: &'m Mutex<T>,
    is_claimed: impl Fn() -> bool,
) -> Option<MutexGuard<'m, T>> {
    if is_claimed() {
        return None;
    }
    lock_wait(|| {
        let rest = REST.get();
        let mut looks = 0u32;
        loop {
            match mutex.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if is_claimed() => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            match looks.checked_sub(SPINS) {
                Some(rests) => rest(rests),
                None => std::hint::spin_loop(),
            }
            looks = looks.saturating_add(1);
        }
    })
}

/// Runs `wait`, which waits for a lock that is known to be taken.
fn lock_wait<T>(wait: impl FnOnce() -> T) -> T {
    let Some(clock) = CLOCK.get() else { return wait() };
    let since = clock();
    let got = wait();
    WAITED.set(WAITED.get().saturating_add(clock().saturating_sub(since)));
    got
}

/// How much of the calling thread's time has passed in such waits since it is measured.
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
        measure_lock_waits(|| NOW.get(), spin);
        wait(20);
        NOW.set(NOW.get() + 100);
        wait(3);
        assert_eq!(lock_waited(), 23);
    }

    /// The holder lets go after some rests, which are counted on from 0 once looks are over.
    #[test]
    fn who_waits_gets_the_lock_once_it_is_free() {
        thread_local! {
            static HELD: Cell<Option<MutexGuard<'static, u32>>> = const { Cell::new(None) };
        }
        let mutex: &'static _ = Box::leak(Box::new(Mutex::new(7)));
        HELD.set(mutex.lock().ok());
        let rest = |rests| {
            if rests == 3 {
                drop(HELD.take());
            }
        };
        measure_lock_waits(|| NOW.get(), rest);
        let looks = Cell::new(0);
        let got = lock_unless(mutex, || {
            looks.set(looks.get() + 1);
            false
        });
        assert_eq!((got.map(|n| *n), looks.get()), (Some(7), SPINS + 5));
    }

    #[test]
    fn nobody_waits_for_one_who_claims_the_lock() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(lock_unless(&mutex, || true).is_none());
        // Not either if it was claimed in the midst of a long wait.
        let looks = Cell::new(0);
        let is_claimed = || looks.replace(looks.get() + 1) == 2 * SPINS;
        assert!(lock_unless(&mutex, is_claimed).is_none());
        drop(held);
        assert!(lock_unless(&mutex, || true).is_some(), "it is free");
    }
}
