//! How much guest memory one VM may map, so that none keeps the others out.
//!
//! Sparse files cost a hostile VMM nothing, but all VMs share the addresses of this process, and
//! its table of what is guarded against files that shrink. A VM may have what is set aside for each
//! port, and beyond that a part of what the others have left: whoever comes late gets less, but
//! always something.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that all VMs share.
#[derive(Debug)]
struct Pool {
    /// What every VM may have, whatever the others have.
    sure: u64,
    /// What all VMs together may have beyond that.
    beyond: u64,
    /// What they have of it.
    used: AtomicU64,
}

impl Pool {
    const fn new(sure: u64, beyond: u64) -> Self {
        Self { sure, beyond, used: AtomicU64::new(0) }
    }
}

/// Bytes. With 1,024 ports a quarter of what the process may map (`ram::mapping::MOST`) is sure. An
/// eighth of the whole is left over: tables that are exchanged are both mapped for a moment, and
/// files of huge pages are mapped by whole ones.
static BYTES: Pool = Pool::new(16 << 30, 40 << 40);

/// Regions. With 1,024 ports half of the table (`ram::sigbus::SLOTS`) is sure. A quarter is left
/// over: for dirty logs, inflight files, and tables that are exchanged.
static REGIONS: Pool = Pool::new(8, 4096);

/// The part of what the others have left that one VM may have: one in so many.
const PART: u64 = 8;

/// What one VM has of a pool; given back when dropped.
#[derive(Debug)]
struct Part {
    pool: &'static Pool,
    all: u64,
}

impl Part {
    const fn new(pool: &'static Pool) -> Self {
        Self { pool, all: 0 }
    }

    fn may_have(&self, all: u64) -> bool {
        self.fits(self.pool.used.load(Ordering::Relaxed), all).is_some()
    }

    fn take(&mut self, all: u64) -> bool {
        let order = Ordering::Relaxed;
        let taken = self.pool.used.try_update(order, order, |used| self.fits(used, all)).is_ok();
        if taken {
            self.all = all;
        }
        taken
    }

    /// What would be used of the pool, of which so much is now.
    fn fits(&self, used: u64, all: u64) -> Option<u64> {
        let beyond = |all: u64| all.saturating_sub(self.pool.sure);
        let others = used.saturating_sub(beyond(self.all));
        // What it has it may keep, however many came since.
        let most = (self.pool.beyond.saturating_sub(others) / PART).max(beyond(self.all));
        (beyond(all) <= most).then_some(others + beyond(all))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.take(0);
    }
}

/// What one VM has; given back when dropped.
#[derive(Debug)]
pub struct Share {
    bytes: Part,
    regions: Part,
}

impl Default for Share {
    fn default() -> Self {
        Self { bytes: Part::new(&BYTES), regions: Part::new(&REGIONS) }
    }
}

impl Share {
    /// True if this VM may map so many bytes in all, in so many regions, as things are.
    pub fn may_have(&self, bytes: u64, regions: u64) -> bool {
        self.bytes.may_have(bytes) && self.regions.may_have(regions)
    }

    /// Takes what this VM needs to map so much in all, in the place of what it had. False: it may
    /// not, and keeps what it had.
    #[must_use]
    pub fn take(&mut self, bytes: u64, regions: u64) -> bool {
        let had = self.regions.all;
        // None of them is given back before both are certain.
        if !self.regions.take(regions.max(had)) {
            return false;
        }
        let taken = self.bytes.take(bytes);
        // Less than it has is never refused.
        let _ = self.regions.take(if taken { regions } else { had });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn hostile_vms_keep_no_other_out() {
        static POOL: Pool = Pool::new(BYTES.sure, BYTES.beyond);
        let new = || Part::new(&POOL);
        let mut early = new();
        assert!(early.take(256 * GIB));
        // Each takes as much as it gets, piece by piece.
        let greedy = || {
            let mut share = new();
            let most = (0..13)
                .rev()
                .map(|bit| GIB << bit)
                .fold(0, |sum, more| if share.take(sum + more) { sum + more } else { sum });
            (share, most / GIB)
        };
        let all: Vec<_> = (0..1000).map(|_| greedy()).collect();
        assert_eq!((all[0].1, all[8].1, all[20].1), (5106, 1765, 368));
        assert!(all.iter().all(|(_, most)| *most >= 16), "what is sure");
        assert!(POOL.used.load(Ordering::Relaxed) <= POOL.beyond);
        assert!(early.take(256 * GIB) && early.take(255 * GIB), "nothing is taken away");
        assert!(!early.take(2048 * GIB) && early.may_have(16 * GIB));
        drop((all, early));
        assert_eq!(POOL.used.load(Ordering::Relaxed), 0);
        assert!(new().take(4096 * GIB));
    }

    /// Each maps as many regions of a page as it may.
    #[test]
    fn many_small_regions_keep_no_other_vm_out() {
        static POOL: Pool = Pool::new(REGIONS.sure, REGIONS.beyond);
        let share = || Share { bytes: Part::new(&BYTES), regions: Part::new(&POOL) };
        let mut early = share();
        assert!(early.take(GIB, 20));
        let greedy = |mut share: Share| {
            let regions = (1..=64).take_while(|n| share.take(4096 * n, *n)).count();
            (share, regions)
        };
        let all: Vec<_> = (0..1000).map(|_| greedy(share())).collect();
        assert_eq!((all[0].1, all[70].1, all[999].1), (64, 36, 8));
        let slots = all.iter().map(|(_, regions)| *regions).sum::<usize>();
        assert!(slots <= vmlan_ram::sigbus::SLOTS * 3 / 4, "{slots}");
        assert!(!early.may_have(GIB, 21) && early.take(GIB, 20), "nothing is taken away");
        // Who may not have the bytes keeps its regions.
        assert!(!early.take(1 << 60, 10) && early.regions.all == 20);
        drop((all, early));
        assert_eq!(POOL.used.load(Ordering::Relaxed), 0);
    }
}
