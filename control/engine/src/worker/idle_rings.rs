//! Doorbells that ring for nothing.
//!
//! A guest can ring without end, and each ring that ends a worker's sleep costs it a look at all
//! its ports. So a port that rings for nothing too often is not listened to for a while: its worker
//! looks at it now and then.
//!
//! A ring was for nothing if no frame from or to its port has passed since the one before, whatever
//! others do. Each frame from the port makes up for some. So an honest guest that rings late, when
//! its frames were found without that, is not mistaken for such a port, or not for long.

use std::time::Duration;

/// How often a worker looks at ports that it does not listen to.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// One idle ring in so many nanoseconds is always free: of one port, or of all those together that
/// are far behind.
const EACH: u64 = 4_000_000;
/// So many at once beyond that. Half of them must be made up for before the port is listened to
/// again.
const BURST: u64 = 128;
/// The rings that a frame from the port makes up for.
const PAYS: u64 = 4;

/// Frames from a port and to it, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The idle rings of one port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleRings {
    /// Nanoseconds that are to pass until nothing is owed, as of `at`.
    owed: u64,
    at: u64,
    /// When last looked at.
    traffic: Traffic,
    /// Some has passed since it rang.
    moved: bool,
    /// The port is not listened to.
    muted: bool,
}

impl IdleRings {
    /// It has rung, by `now`. Its worker has so many ports that are far behind.
    pub(super) fn rang(&mut self, traffic: Traffic, behind: u64, now: u64) {
        self.pay(traffic, behind, now);
        if !std::mem::take(&mut self.moved) {
            let behind = if self.is_far_behind(now) { behind.max(1) } else { 1 };
            self.owed = (self.owed + EACH * behind).min(EACH * (BURST + behind));
        }
    }

    /// Frames that have passed make up for rings.
    pub(super) fn pay(&mut self, traffic: Traffic, behind: u64, now: u64) {
        let frames = traffic.from.wrapping_sub(self.traffic.from);
        let paid = frames.saturating_mul(PAYS * EACH * behind.max(1));
        self.owed = self.left(now).saturating_sub(paid);
        self.moved |= traffic != self.traffic;
        (self.at, self.traffic) = (now, traffic);
    }

    fn left(&self, now: u64) -> u64 {
        self.owed.saturating_sub(now.saturating_sub(self.at))
    }

    /// True if it owes anything.
    pub(super) fn owes(&self, now: u64) -> bool {
        self.left(now) > 0
    }

    /// True if it owes so much that it would not be listened to again.
    pub(super) fn is_far_behind(&self, now: u64) -> bool {
        self.left(now) > BURST / 2 * EACH
    }

    pub(super) fn is_muted(&self) -> bool {
        self.muted
    }

    /// True if the port is to be muted from now on, or is to be listened to again: see
    /// [`IdleRings::is_muted`].
    pub(super) fn changes(&mut self, now: u64) -> bool {
        let mute = if self.muted { self.is_far_behind(now) } else { self.left(now) > BURST * EACH };
        std::mem::replace(&mut self.muted, mute) != mute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Rings that are heard in 10 s of so many ports that ring once in each `pause` nanoseconds.
    /// `traffic`: what has passed by each ring of a port.
    fn heard(ports: usize, pause: u64, traffic: fn(u64) -> Traffic) -> u64 {
        let (mut all, mut heard) = (vec![IdleRings::default(); ports], 0);
        for n in 0..10 * SECOND / pause {
            let now = n * pause;
            for port in 0..ports {
                let behind = all.iter().filter(|rings| rings.is_far_behind(now)).count() as u64;
                let rings = &mut all[port];
                rings.pay(traffic(n), behind, now);
                rings.changes(now);
                if !rings.is_muted() {
                    heard += 1;
                    rings.rang(traffic(n), behind, now);
                }
            }
        }
        heard
    }

    fn silence(_: u64) -> Traffic {
        Traffic::default()
    }

    #[test]
    fn a_flood_is_heard_now_and_then() {
        // 128 at once, and 250 a second.
        let flood = heard(1, 10_000, silence);
        assert!((2500..=2700).contains(&flood), "{flood}");
        assert_eq!(heard(1, EACH, silence), 2500, "one that rings seldom is always heard");
    }

    /// They share what one of them could have, but for what each has at once.
    #[test]
    fn many_floods_are_not_heard_more_often_than_one() {
        for ports in [5, 20, 64] {
            let floods = heard(ports, 100_000, silence);
            let most = 128 * ports as u64 + 2500 * 5 / 4;
            assert!(floods <= most, "{ports} ports: {floods}, {most} at most");
        }
    }

    #[test]
    fn who_sends_or_receives_is_always_heard() {
        let all = 10 * SECOND / 10_000;
        assert_eq!(heard(1, 10_000, |n| Traffic { from: n / 4, to: 0 }), all, "late rings");
        assert_eq!(heard(1, 10_000, |n| Traffic { from: 0, to: n }), all, "rings for buffers");
        let many = heard(20, 100_000, |n| Traffic { from: n / 4, to: 0 });
        assert_eq!(many, 20 * all / 10);
    }

    /// Neighbours that ring without end do not make its own rings count for more.
    #[test]
    fn who_is_not_behind_has_all_its_rings_beside_floods() {
        let mut rings = IdleRings::default();
        (0..64).for_each(|_| rings.rang(Traffic::default(), 20, 0));
        assert!(!rings.changes(0) && !rings.is_muted());
    }

    #[test]
    fn whoever_has_stopped_is_listened_to_again() {
        let mut rings = IdleRings::default();
        (0..10_000).for_each(|_| rings.rang(Traffic::default(), 1, 0));
        assert!(rings.changes(0) && rings.is_muted());
        assert!(!rings.changes(SECOND / 5) && rings.is_muted());
        assert!(rings.changes(SECOND / 2) && !rings.is_muted());
    }

    /// Its first frames are found by a look now and then, and are enough.
    #[test]
    fn whoever_sends_is_listened_to_again() {
        let mut rings = IdleRings::default();
        (0..10_000).for_each(|_| rings.rang(Traffic::default(), 20, 0));
        assert!(rings.changes(0) && rings.is_muted());
        rings.pay(Traffic { from: 2, to: 0 }, 20, 0);
        assert!(rings.changes(0) && !rings.is_muted());
    }
}
