//! How often workers are told that ports have changed.
//!
//! Each has to wake up then and look at all its doorbells. A VMM can have its port change all the
//! time, and a tenant has several, so a bound for each port is none: this one is for all together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::run::nanoseconds;

/// From one telling to the next, at least.
const PAUSE: Duration = Duration::from_millis(1);

/// What ports have asked for. Whoever comes too early waits, which is for its own thread to do, and
/// is done when it was told in somebody else's name. Nobody relies on another one that is to tell
/// but has not yet: that thread may have the lowest weight.
#[derive(Debug, Default)]
pub(super) struct Tellings {
    /// How many have asked.
    asked: AtomicU64,
    /// In the name of how many of them workers have been told.
    told: AtomicU64,
    /// When they may be told again, in nanoseconds.
    due: AtomicU64,
}

impl Tellings {
    /// When this returns workers have been told, by `tell` or that of another call, since it began.
    pub(super) fn ask(&self, now: impl Fn() -> u64, wait: impl Fn(Duration), tell: impl Fn()) {
        let turn = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        while self.told.load(Ordering::Acquire) < turn {
            let (now, due) = (now(), self.due.load(Ordering::Relaxed));
            let next = now.saturating_add(nanoseconds(PAUSE));
            if due > now {
                wait(Duration::from_nanos(due - now));
            } else if self
                .due
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                let asked = self.asked.load(Ordering::Acquire);
                tell();
                self.told.fetch_max(asked, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A microsecond.
    const US: u64 = 1000;

    /// Time, and when workers were told.
    #[derive(Default)]
    struct World {
        tellings: Tellings,
        now: Cell<u64>,
        told: Cell<Vec<u64>>,
    }

    impl World {
        fn pass(&self, time: u64) {
            self.now.set(self.now.get() + time);
        }

        fn tell(&self) {
            let mut told = self.told.take();
            told.push(self.now.get() / US);
            self.told.set(told);
        }

        /// Somebody asks: `meanwhile` is done once during each wait.
        fn ask(&self, meanwhile: &dyn Fn()) {
            let wait = |time: Duration| {
                self.pass(nanoseconds(time));
                meanwhile();
            };
            self.tellings.ask(|| self.now.get(), wait, || self.tell());
        }
    }

    #[test]
    fn the_first_change_is_told_at_once_and_the_next_after_a_pause() {
        let world = World::default();
        for pause in [5_000, 1_000, 200, 999, 0] {
            world.pass(pause * US);
            world.ask(&|| {});
        }
        assert_eq!(world.told.take(), [5_000, 6_000, 7_000, 8_000, 9_000]);
    }

    #[test]
    fn one_telling_is_for_all_who_have_asked() {
        let world = World::default();
        world.ask(&|| {});
        // Four ask within the pause, the last of whom wakes up first.
        let ask = |then: &dyn Fn()| world.ask(then);
        ask(&|| ask(&|| ask(&|| ask(&|| {}))));
        assert_eq!(world.told.take(), [0, 1_000]);
        world.pass(400 * US);
        ask(&|| {});
        assert_eq!(world.told.take(), [2_000], "one who comes later is none of them");
    }

    /// It may be kept from running as long as others like.
    #[test]
    fn nobody_waits_for_one_who_is_about_to_tell() {
        let world = World::default();
        let held = || {
            world.ask(&|| {});
            world.tell();
        };
        world.tellings.ask(|| world.now.get(), |_| unreachable!(), held);
        assert_eq!(world.told.take(), [1_000, 1_000]);
        // What it tells at last was asked for before the others came: it stands for nobody else.
        world.ask(&|| {});
        assert_eq!(world.told.take(), [2_000]);
    }
}
