//! Interrupt moderation, once for all NICs: how long an interrupt is held back, and what comes of
//! it.
//!
//! It is a hold-off. The first interrupt after silence is delivered at once, and opens a
//! [`Window`]; what comes within it is held back, and delivered when it ends, once, however much
//! came. Real chips delay the first one instead, which costs a lone frame its latency and saves no
//! interrupt.
//!
//! # No interrupt is lost
//!
//! Whatever is held back has a timer set, at or before the end of its window ([`Alarm`]). A window
//! is kept as the time it opened, and its length is read again each time: one that was shortened
//! ends sooner, at the next look. A timer that fires early finds the interrupt still held and is
//! set again; one that fires late, or for nothing, is harmless. Without a limit no clock is asked
//! and no timer is set.
//!
//! A NIC with registers of its own for this has a window for each, and lets the longest count
//! ([`crate::e1000`]). One with nothing but the host's limit and several interrupts (virtio: one
//! for each ring) has a [`Moderator`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmlan_frame::Counter;

use crate::chip::state::{Fields, Stateful};

const SECOND: u64 = 1_000_000_000; // Nanoseconds in a second.
const SOON: u64 = SECOND / 10; // No chip that has just been restored waits longer.

/// Time, which is the host's.
pub trait Clock {
    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;
    /// Asks for a call at `at` or soon after; replaces an earlier wish.
    fn set_timer(&self, at: u64);
}

/// The host's own limit: the shortest time between two interrupts, whatever the guest asks for.
/// Changed while it is in use.
#[derive(Debug, Default)]
pub struct Floor(AtomicU64);

impl Floor {
    /// At most `rate_max` interrupts per second; 0: no limit.
    pub fn new(rate_max: u32) -> Self {
        let floor = Self::default();
        floor.set(rate_max);
        floor
    }

    /// As [`Floor::new`], from now on.
    pub fn set(&self, rate_max: u32) {
        let ns = if rate_max == 0 { 0 } else { SECOND.div_ceil(rate_max.into()) };
        self.0.store(ns, Ordering::Relaxed);
    }

    /// Nanoseconds between two interrupts; 0: no limit.
    #[inline]
    pub fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time after a delivery in which nothing of its kind is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    since: Option<u64>,
}

impl Window {
    /// When it ends if it is `len` long; a time that has passed: it is closed. One that opened in
    /// the future (a clock set back) would never end: it is closed.
    #[inline]
    pub fn end(self, len: u64, now: u64) -> u64 {
        match self.since {
            Some(since) if since <= now => since.saturating_add(len),
            _ => 0,
        }
    }

    /// A delivery.
    pub fn open(&mut self, now: u64) {
        self.since = Some(now);
    }

    /// The next is delivered at once.
    pub fn close(&mut self) {
        self.since = None;
    }
}

impl Stateful for Window {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { since } = self;
        io.option(since, Fields::u64);
    }
}

/// What the host's timer is set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarm {
    at: Option<u64>,
}

impl Alarm {
    /// Something waits until `at`. True: the timer must be set to that, for it is not, or to later.
    #[must_use]
    pub fn wants(&mut self, at: u64) -> bool {
        let wanted = self.at.is_none_or(|set| at < set);
        if wanted {
            self.at = Some(at);
        }
        wanted
    }

    /// The timer has fired, or its time no longer matters.
    pub fn clear(&mut self) {
        self.at = None;
    }
}

impl Alarm {
    /// A chip goes on from a state: what its host's timer is to be set to. `waits`: for it. One
    /// that was not set, or that is far away, is due early: that is harmless.
    #[must_use]
    pub fn resume(&mut self, waits: bool, now: impl FnOnce() -> u64) -> Option<u64> {
        if waits || self.at.is_some() {
            let now = now();
            self.at = Some(self.at.map_or(now, |at| at.min(now.saturating_add(SOON))));
        }
        self.at
    }
}

impl Stateful for Alarm {
    fn fields(&mut self, io: &mut Fields<'_>) {
        let Self { at } = self;
        io.option(at, Fields::u64);
    }
}

/// Interrupts that one [`Moderator`] can tell apart.
pub const SOURCES: usize = 256;

/// Some of a [`Moderator`]'s interrupts, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set([u64; SOURCES / 64]);

impl Set {
    fn word(&mut self, who: u8) -> Option<(&mut u64, u64)> {
        self.0.get_mut(usize::from(who >> 6)).map(|word| (word, 1 << (who & 63)))
    }

    fn insert(&mut self, who: u8) {
        if let Some((word, bit)) = self.word(who) {
            *word |= bit;
        }
    }

    fn remove(&mut self, who: u8) -> bool {
        self.word(who).is_some_and(|(word, bit)| std::mem::replace(word, *word & !bit) & bit != 0)
    }

    /// How many.
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// None.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// True if `who` is one of them.
    pub fn contains(mut self, who: u8) -> bool {
        self.remove(who)
    }
}

#[derive(Debug, Default)]
struct Gate {
    held: Set,
    window: Window,
    /// Interrupts that the window is for: it is as many floors long.
    round: u64,
    alarm: Alarm,
}

impl Gate {
    fn end(&self, floor: u64, now: u64) -> u64 {
        self.window.end(floor.saturating_mul(self.round), now)
    }

    fn deliver(&mut self, count: u32, now: u64) {
        self.window.open(now);
        self.round = count.into();
    }

    fn wake(&mut self, at: u64, clock: &impl Clock) {
        if self.alarm.wants(at) {
            clock.set_timer(at);
        }
    }
}

/// The limit of a port that has several interrupts: it holds for all of them together, both
/// directions and all queues.
///
/// When a window ends, all that were held are delivered, and the next window is as many floors
/// long: so each has its turn, and over time the limit holds. A port with `n` busy interrupts and a
/// limit of `r` gives each of them `r / n` a second.
///
/// Every decision is taken under one lock, which nothing waits under; the write that follows is
/// made without it.
#[derive(Debug, Default)]
pub struct Moderator {
    floor: Floor,
    gate: Mutex<Gate>,
    held: Counter,
    late: Counter,
}

impl Moderator {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The interrupt `who` is due. True: deliver it now. False: it is noted, and [`Moderator::due`]
    /// will name it.
    #[inline]
    #[must_use]
    pub fn admits(&self, who: u8, clock: &impl Clock) -> bool {
        self.floor.ns() == 0 || self.judge(who, clock)
    }

    fn judge(&self, who: u8, clock: &impl Clock) -> bool {
        let mut gate = self.gate();
        let now = clock.now();
        // Read again: whoever takes the limit away finds what is noted before, and we find it gone
        // after.
        let end = gate.end(self.floor.ns(), now);
        let was_held = gate.held.remove(who);
        // Others wait, and are about to be delivered by the timer, which is due. An interrupt that
        // came just before it would open the next window, again and again. So it joins them.
        if end <= now && gate.held.is_empty() {
            gate.deliver(1, now);
            self.late.add_shared(was_held.into());
            return true;
        }
        gate.held.insert(who);
        if !was_held {
            self.held.add_shared(1);
        }
        gate.wake(end, clock);
        false
    }

    /// The timer has fired, early or late: those that are to be delivered now.
    #[must_use]
    pub fn due(&self, clock: &impl Clock) -> Set {
        let mut gate = self.gate();
        gate.alarm.clear();
        let count = gate.held.len();
        if count == 0 {
            return Set::default();
        }
        let now = clock.now();
        let end = gate.end(self.floor.ns(), now);
        if end > now {
            gate.wake(end, clock);
            return Set::default();
        }
        gate.deliver(count, now);
        self.late.add_shared(count.into());
        std::mem::take(&mut gate.held)
    }

    /// Takes `who` back: it is to be delivered now whatever the limit says, or never again. True if
    /// it was held. It counts for the limit as if it had waited.
    #[must_use]
    pub fn take(&self, who: u8) -> bool {
        let mut gate = self.gate();
        let held = gate.held.remove(who);
        if held {
            gate.round = gate.round.saturating_add(1);
            self.late.add_shared(1);
        }
        held
    }

    /// From now on at most `rate_max` interrupts a second; 0: no limit. What is held back is due as
    /// the new limit says.
    pub fn set_rate(&self, rate_max: u32, clock: &impl Clock) {
        let mut gate = self.gate();
        self.floor.set(rate_max);
        if !gate.held.is_empty() {
            let end = gate.end(self.floor.ns(), clock.now());
            gate.alarm.clear();
            gate.wake(end, clock);
        }
    }

    /// There is a limit.
    pub fn is_on(&self) -> bool {
        self.floor.ns() > 0
    }

    /// Interrupts that were held back, and those of them that have been delivered.
    pub fn counts(&self) -> (u64, u64) {
        (self.held.get(), self.late.get())
    }
}

#[cfg(test)]
pub(crate) mod tests;
