//! How much guest memory one VM may map, so that none keeps the others out.
//!
//! Sparse files cost a hostile VMM nothing, but all VMs share the addresses of this process. A VM
//! may map what is set aside for each port, and beyond that a part of what the others have left:
//! whoever comes late gets less, but always something.

use std::sync::atomic::{AtomicU64, Ordering};

/// What every VM may map, whatever the others have: with 1,024 ports a quarter of what the process
/// may map (`ram::mapping::MOST`).
const SURE: u64 = 16 << 30;
/// What all VMs together may map beyond that. An eighth of the whole is left over: tables that are
/// exchanged are both mapped for a moment, and files of huge pages are mapped by whole ones.
const BEYOND: u64 = 40 << 40;
/// The part of it that one VM may have of what the others have left: one in so many.
const PART: u64 = 8;

/// What all VMs together have mapped beyond what is sure.
#[derive(Debug)]
pub struct Pool(AtomicU64);

pub static POOL: Pool = Pool(AtomicU64::new(0));

/// What one VM has of it; given back when dropped.
#[derive(Debug)]
pub struct Share {
    pool: &'static Pool,
    bytes: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self { pool: &POOL, bytes: 0 }
    }
}

impl Share {
    /// True if this VM may map so many bytes in all, as things are.
    pub fn may_have(&self, bytes: u64) -> bool {
        self.fits(self.pool.0.load(Ordering::Relaxed), bytes).is_some()
    }

    /// Takes what this VM needs to map so many bytes in all, in the place of what it had. False: it
    /// may not, and keeps what it had.
    #[must_use]
    pub fn take(&mut self, bytes: u64) -> bool {
        let order = Ordering::Relaxed;
        let taken = self.pool.0.try_update(order, order, |used| self.fits(used, bytes)).is_ok();
        if taken {
            self.bytes = bytes.saturating_sub(SURE);
        }
        taken
    }

    /// What would be used of the pool, of which so much is now.
    fn fits(&self, used: u64, bytes: u64) -> Option<u64> {
        let (beyond, others) = (bytes.saturating_sub(SURE), used.saturating_sub(self.bytes));
        // What it has it may keep, however many came since.
        let most = (BEYOND.saturating_sub(others) / PART).max(self.bytes);
        (beyond <= most).then_some(others + beyond)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn hostile_vms_keep_no_other_out() {
        static POOL: Pool = Pool(AtomicU64::new(0));
        let new = || Share { pool: &POOL, bytes: 0 };
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
        assert!(POOL.0.load(Ordering::Relaxed) <= BEYOND);
        assert!(early.take(256 * GIB) && early.take(255 * GIB), "nothing is taken away");
        assert!(!early.take(2048 * GIB) && early.may_have(16 * GIB));
        drop((all, early));
        assert_eq!(POOL.0.load(Ordering::Relaxed), 0);
        assert!(new().take(4096 * GIB));
    }
}
