//! What is free to all ports together.
//!
//! A bound for each port is none for many. But what is there for all of them, divided by their
//! number, is little for one that is alone in using it. So it is divided by the active ones: those
//! that use more than half of what there is for each if all are active. All others together cannot
//! use more than half of it either.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Who has used so much beyond half of its part is active.
const ACTIVE: Duration = Duration::from_millis(5);
/// Most that is remembered of that.
const MOST: Duration = Duration::from_millis(10);

/// What is free, as a part of the time that passes.
#[derive(Debug)]
pub struct Pool {
    /// One part in so many is free to one member.
    one: u32,
    /// All together have so many times as much.
    times: u32,
    members: AtomicU32,
    active: AtomicU32,
}

impl Pool {
    pub const fn new(one: u32, times: u32) -> Self {
        Self { one, times, members: AtomicU32::new(0), active: AtomicU32::new(0) }
    }

    /// Another member, which has used nothing yet.
    pub fn join(&self) -> Member<'_> {
        self.members.fetch_add(1, Ordering::Relaxed);
        Member { pool: self, lately: Duration::ZERO, active: false }
    }

    /// What each of `n` has of this time.
    fn part(&self, time: Duration, n: u32) -> Duration {
        time * self.times / (self.one * n.max(self.times))
    }
}

/// One of those that share a pool.
#[derive(Debug)]
pub struct Member<'p> {
    pool: &'p Pool,
    /// Used beyond half of the least part.
    lately: Duration,
    active: bool,
}

impl Member<'_> {
    /// Notes that so much was used in the time that has passed, beside what was `earned`.
    pub fn note(&mut self, passed: Duration, used: Duration, earned: Duration) {
        let paid = earned + passed / self.decay();
        self.lately = (self.lately + used).saturating_sub(paid).min(MOST);
        count(&self.pool.active, &mut self.active, self.lately > ACTIVE);
    }

    /// What is free to it of this time.
    pub fn free(&self, time: Duration) -> Duration {
        self.pool.part(time, self.active())
    }

    /// How many are active, at least 1.
    pub fn active(&self) -> u32 {
        self.pool.active.load(Ordering::Relaxed).max(1)
    }

    /// When it is not active any more, if it uses nothing, and next to nothing to notice.
    pub fn ends(&self) -> Option<Duration> {
        self.active.then(|| self.lately.saturating_sub(ACTIVE / 2) * self.decay())
    }

    /// One part in so many of the time is half of the least part.
    fn decay(&self) -> u32 {
        let members = self.pool.members.load(Ordering::Relaxed);
        2 * self.pool.one * members.max(self.pool.times) / self.pool.times
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        count(&self.pool.active, &mut self.active, false);
        self.pool.members.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Pool {
    /// Members, and how many of them are active.
    pub fn counts(&self) -> (u32, u32) {
        (self.members.load(Ordering::Relaxed), self.active.load(Ordering::Relaxed))
    }

    /// A member that is active.
    pub fn busy_member(&self) -> Member<'_> {
        let mut member = self.join();
        member.note(Duration::ZERO, MOST, Duration::ZERO);
        member
    }
}

/// Whoever is `counted` in `number` is to be counted there, or is not.
pub fn count(number: &AtomicU32, counted: &mut bool, now: bool) {
    match (*counted, now) {
        (false, true) => number.fetch_add(1, Ordering::Relaxed),
        (true, false) => number.fetch_sub(1, Ordering::Relaxed),
        _ => return,
    };
    *counted = now;
}
