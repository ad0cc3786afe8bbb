//! Doorbells that ring for nothing.
//!
//! A guest can ring without end, and each ring that ends a worker's sleep costs it a look at all
//! its ports. So a port that rings for nothing too often is not listened to for a while: its worker
//! looks at it now and then.

use std::time::Duration;

/// How often a worker looks at ports that it does not listen to.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// One idle ring in so many nanoseconds is always free.
const EACH: u64 = 4_000_000;
/// So many at once beyond that. Half of them must be made up for before the port is listened to
/// again.
const BURST: u64 = 128;

/// The idle rings of one port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleRings {
    /// Nanoseconds that are to pass until nothing is owed, as of `at`.
    owed: u64,
    at: u64,
    /// The port is not listened to.
    muted: bool,
}

impl IdleRings {
    /// One more, at `now`.
    pub(super) fn count(&mut self, now: u64) {
        self.owed = (self.left(now) + EACH).min(EACH * (BURST + 1));
        self.at = now;
    }

    fn left(&self, now: u64) -> u64 {
        self.owed.saturating_sub(now.saturating_sub(self.at))
    }

    pub(super) fn is_muted(&self) -> bool {
        self.muted
    }

    /// True if the port is to be muted from now on, or is to be listened to again: see
    /// [`IdleRings::is_muted`].
    pub(super) fn changes(&mut self, now: u64) -> bool {
        let limit = if self.muted { BURST / 2 } else { BURST };
        let mute = self.left(now) > limit * EACH;
        std::mem::replace(&mut self.muted, mute) != mute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Rings that are heard in 10 s of one in each `pause` nanoseconds, all idle.
    fn heard(pause: u64) -> u64 {
        let (mut rings, mut heard) = (IdleRings::default(), 0);
        for n in 0..10 * SECOND / pause {
            rings.changes(n * pause);
            if !rings.is_muted() {
                heard += 1;
                rings.count(n * pause);
            }
        }
        heard
    }

    #[test]
    fn a_flood_is_heard_now_and_then() {
        // 128 at once, and 250 a second.
        assert!((2500..=2700).contains(&heard(10_000)), "{}", heard(10_000));
        assert_eq!(heard(EACH), 2500, "one that rings seldom is always heard");
    }

    #[test]
    fn whoever_has_stopped_is_listened_to_again() {
        let mut rings = IdleRings::default();
        (0..10_000).for_each(|_| rings.count(0));
        assert!(rings.changes(0) && rings.is_muted());
        assert!(!rings.changes(SECOND / 5) && rings.is_muted());
        assert!(rings.changes(SECOND / 2) && !rings.is_muted());
    }
}
