//! Leases that outlive the switch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlan_config::gateway::Lease;
use vmlan_keeper::hold::{Held, Hold};

use crate::ports::held_json;

/// What is held beside the file: what is in it.
const LEASES: &[u8] = b"vmlan leases 1";

/// How often all of them are written, at most: a VM can have its lease changed without end.
const PERIOD: Duration = Duration::from_secs(1);

/// Who has a gateway's leases, under what name.
pub(super) struct KeptLeases {
    hold: Arc<dyn Hold>,
    name: String,
    /// Somebody was told that they cannot be held.
    warned: bool,
    /// They have changed, and are to be written then.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl KeptLeases {
    /// Those of `port`.
    pub(super) fn new(hold: Arc<dyn Hold>, port: &str) -> Self {
        Self { hold, name: name(port), warned: false, due: None, written: None }
    }

    /// They have changed.
    pub(super) fn changed(&mut self, now: Instant) {
        let next = self.written.map_or(now, |written| now.max(written + PERIOD));
        self.due.get_or_insert(next);
    }

    /// Has them held, if it is time to. Says when it will be if it is not yet.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        leases: impl FnOnce() -> Vec<Lease>,
    ) -> Option<Duration> {
        let due = self.due?;
        if due > now {
            return Some(due - now);
        }
        (self.due, self.written) = (None, Some(now));
        self.put(&leases());
        None
    }

    /// Has those held at once that are not yet.
    pub(super) fn flush(&mut self, leases: impl FnOnce() -> Vec<Lease>) {
        if self.due.take().is_some() {
            self.put(&leases());
        }
    }

    /// Has these held, in place of what was.
    fn put(&mut self, leases: &[Lease]) {
        let done = held_json::put(&*self.hold, &self.name, LEASES, &leases);
        if let Err(why) = done {
            // What was held before is not true any more.
            self.forget();
            if !std::mem::replace(&mut self.warned, true) {
                log::warn!("{}: are not held for the next switch: {why}", self.name);
            }
        }
    }

    /// None are held.
    pub(super) fn forget(&self) {
        let _ = self.hold.forget(&self.name);
    }
}

/// What the holder calls the leases of `port`.
pub(super) fn name(port: &str) -> String {
    format!("leases of port {port}")
}

/// The leases that the last switch has left; none if they cannot be read. They are to be checked as
/// if a gateway had told them.
pub(super) fn read(held: Held) -> Vec<Lease> {
    held_json::read(held, LEASES).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::Ordering;

    use vmlan_keeper::hold::HoldError;

    use super::*;

    fn lease(last: u8) -> Lease {
        Lease {
            ip: [10, 77, 0, last].into(),
            mac: format!("52:54:00:00:00:{last:02x}"),
            port: "vm1".into(),
            hostname: Some("guest".into()),
            expires: 1 << 40,
        }
    }

    /// Counts what is held.
    #[derive(Debug, Default)]
    struct Counting(std::sync::atomic::AtomicUsize);

    impl Hold for Counting {
        fn put(&self, _: &str, fds: &[BorrowedFd<'_>], _: &[u8]) -> Result<(), HoldError> {
            assert_eq!(fds.len(), 1);
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn forget(&self, _: &str) -> Result<(), HoldError> {
            Ok(())
        }

        fn all(&self) -> Result<Vec<Held>, HoldError> {
            Ok(Vec::new())
        }

        fn end(&self) {}
    }

    #[test]
    fn changes_without_end_are_written_once_a_second() {
        let hold = Arc::new(Counting::default());
        let puts = || hold.0.load(Ordering::Relaxed);
        let mut kept = KeptLeases::new(hold.clone(), "net");
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(kept.keep(at(0), || panic!("nothing has changed")), None);
        for ms in 0..3_500 {
            kept.changed(at(ms));
            let wait = kept.keep(at(ms), || vec![lease(2)]);
            // The first at once; else it says when.
            let left = (1_000 - ms % 1_000) % 1_000;
            assert_eq!(wait, (left > 0).then(|| Duration::from_millis(left)), "{ms}");
        }
        assert_eq!(puts(), 4);
        assert_eq!(kept.keep(at(4_000), || vec![lease(2)]), None);
        assert_eq!(kept.keep(at(9_000), || panic!("nothing has changed")), None);
        assert_eq!(puts(), 5);
        kept.changed(at(4_001));
        kept.flush(|| vec![lease(2)]);
        assert_eq!(puts(), 6, "the last one is not left out");
    }
}
