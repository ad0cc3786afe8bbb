//! One thread's share of a run: all of it, if it is the only one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::super::sequence::Sequences;
use vmlan_transport::numbers::limit32;

/// Frames that the threads of a run have between them.
#[derive(Debug, Default)]
pub(super) struct Pool {
    left: AtomicU64,
    missing: AtomicU64,
}

impl Pool {
    pub(super) fn new(count: u64) -> Self {
        Self { left: AtomicU64::new(count), missing: AtomicU64::new(count) }
    }

    fn claim(&self, most: u32) -> u32 {
        let rest = |left: u64| Some(left.saturating_sub(most.into()));
        let before = self.left.fetch_update(Relaxed, Relaxed, rest).unwrap_or(0);
        limit32(before).min(most)
    }

    fn settle(&self, claimed: u32, moved: u32) {
        if claimed > moved {
            self.left.fetch_add((claimed - moved).into(), Relaxed);
        }
        if moved > 0 {
            self.missing.fetch_sub(moved.into(), Relaxed);
        }
    }
}

/// What a thread shares with the others.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The first of its lanes, among those of the run.
    pub(super) first: usize,
    /// Lanes of the run.
    pub(super) lanes: usize,
    /// When the run began.
    pub(super) clock: Instant,
    /// Numbers received, by all.
    pub(super) sequences: Arc<Mutex<Sequences>>,
    /// Frames still to be moved by all threads; a single thread is limited by `count`.
    pub(super) pool: Option<Arc<Pool>>,
    pub(super) count: u64,
    /// When the last frame was moved by any thread, where that matters.
    pub(super) last: Option<Arc<AtomicU64>>,
    /// Another thread has failed.
    pub(super) abort: Option<Arc<AtomicBool>>,
}

impl Share {
    pub(super) fn alone(lanes: usize, count: u64) -> Self {
        let (clock, sequences) = (Instant::now(), Arc::default());
        Self { first: 0, lanes, clock, sequences, pool: None, count, last: None, abort: None }
    }

    pub(super) fn is_first(&self) -> bool {
        self.first == 0
    }

    /// Frames that may be moved now, up to `most`; what is not moved goes back by [`Self::settle`].
    pub(super) fn claim(&self, most: u32, moved: u64) -> u32 {
        match &self.pool {
            Some(pool) => pool.claim(most),
            None if self.count == 0 => most,
            None => limit32(self.count.saturating_sub(moved)).min(most),
        }
    }

    pub(super) fn settle(&self, claimed: u32, moved: u32) {
        if let Some(pool) = &self.pool {
            pool.settle(claimed, moved);
        }
    }

    /// With a limit: has all been moved?
    pub(super) fn all_moved(&self, moved: u64) -> bool {
        self.pool.as_ref().map_or(moved >= self.count, |pool| pool.missing.load(Relaxed) == 0)
    }

    /// Frames were moved.
    pub(super) fn moved(&self, now: u64) {
        if let Some(last) = &self.last {
            last.fetch_max(now.max(1), Relaxed);
        }
    }

    /// How long all threads have been silent, after something came.
    pub(super) fn silence(&self, now: u64, first: Option<u64>, last: u64) -> Option<u64> {
        let last = match &self.last {
            Some(last) => Some(last.load(Relaxed)).filter(|last| *last > 0),
            None => first.map(|_| last),
        };
        last.map(|last| now.saturating_sub(last))
    }

    pub(super) fn aborted(&self) -> bool {
        self.abort.as_ref().is_some_and(|abort| abort.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn threads_share_a_count_to_the_last_frame() {
        let pool = Pool::new(1000);
        let moved: u64 = std::thread::scope(|threads| {
            let work = |n: u32| {
                let mut moved = 0;
                while pool.missing.load(super::Relaxed) > 0 {
                    let claimed = pool.claim(7 + n);
                    // Not all that may be moved is there each time.
                    let here = claimed.min(3);
                    pool.settle(claimed, here);
                    moved += u64::from(here);
                }
                moved
            };
            let threads: Vec<_> = (0..3).map(|n| threads.spawn(move || work(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((moved, pool.claim(1)), (1000, 0));
    }
}
