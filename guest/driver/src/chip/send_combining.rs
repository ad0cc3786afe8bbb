//! Send combining (the paper's section 3.2): while the completion interrupt of an earlier write of
//! TDT is to come, frames are deferred; that interrupt writes TDT for all of them. So there is one
//! write for each interrupt, and moderation sets the pace.
//!
//! Two bounds keep latency known, and end the waiting if the interrupt does not come: so many
//! frames, and so much time since the first of them. The time is looked at in each of the caller's
//! calls, and the bound shortens the caller's sleep.

use std::time::Duration;

use super::Options;

/// What is under way, and what waits. Time is the bus's.
#[derive(Debug)]
pub(super) struct Combine {
    on: bool,
    most: u32,
    time: Duration,
    /// The doorbell was rung, and no completion interrupt came since.
    in_flight: bool,
    deferred: u32,
    deadline: Duration,
}

impl Combine {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            on: options.combine,
            most: options.combine_frames.into(),
            time: Duration::from_micros(options.combine_us.into()),
            in_flight: false,
            deferred: 0,
            deadline: Duration::ZERO,
        }
    }

    pub(super) fn reset(&mut self) {
        (self.in_flight, self.deferred) = (false, 0);
    }

    /// `frames` more are in the ring. True: write TDT now. `now` is only asked for when waiting
    /// begins.
    #[inline]
    pub(super) fn offer(&mut self, frames: u32, now: impl FnOnce() -> Duration) -> bool {
        if !self.on {
            return true;
        }
        if !std::mem::replace(&mut self.in_flight, true) {
            return true;
        }
        if self.deferred == 0 {
            self.deadline = now().saturating_add(self.time);
        }
        self.deferred = self.deferred.saturating_add(frames);
        self.deferred >= self.most && self.take()
    }

    /// A completion interrupt came. True: write TDT now, and expect another.
    #[must_use]
    pub(super) fn complete(&mut self) -> bool {
        self.in_flight = self.take();
        self.in_flight
    }

    fn take(&mut self) -> bool {
        std::mem::take(&mut self.deferred) > 0
    }

    /// Frames wait.
    #[inline]
    pub(super) fn defers(&self) -> bool {
        self.deferred > 0
    }

    /// Until when they may.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.defers().then_some(self.deadline)
    }

    /// Their time is over. True: write TDT now.
    #[must_use]
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        now >= self.deadline && self.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> Duration = || panic!("the clock is only read when waiting begins");

    fn at(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn combine(frames: u16, us: u16) -> Combine {
        let (combine_frames, combine_us) = (frames, us);
        Combine::new(&Options { combine: true, combine_frames, combine_us, ..Options::default() })
    }

    #[test]
    fn one_write_for_each_interrupt() {
        let mut c = combine(100, 200);
        for _ in 0..10 {
            assert!(c.offer(1, NEVER), "nothing is under way");
            assert!(!c.offer(1, || at(0)));
            assert!((0..40).all(|_| !c.offer(1, NEVER)));
            assert!(c.complete(), "41 frames in one write");
            assert!(!c.offer(1, || at(1)), "which is under way itself");
            assert!(c.complete());
            assert!(!c.complete(), "nothing more came");
        }
    }

    #[test]
    fn so_many_frames_are_deferred_and_no_more() {
        let mut c = combine(3, 200);
        assert!(c.offer(1, NEVER));
        for _ in 0..5 {
            assert!(!c.offer(1, || at(0)));
            assert!(!c.offer(1, NEVER));
            assert!(c.offer(1, NEVER), "the third");
        }
        assert!(c.offer(100, || at(0)), "a burst");
    }

    #[test]
    fn so_long_and_no_longer() {
        let mut c = combine(100, 200);
        assert!(c.offer(1, NEVER));
        assert!(!c.is_due(at(10_000)), "nothing waits");
        assert!(!c.offer(1, || at(50)));
        assert!(!c.offer(1, NEVER), "the first counts");
        assert_eq!(c.deadline(), Some(at(250)));
        assert!(!c.is_due(at(249)));
        assert!(c.is_due(at(250)));
        assert!(!c.is_due(at(251)), "once");
        assert!(!c.offer(1, || at(300)), "still under way");
        c.reset();
        assert!(c.offer(1, NEVER));
    }

    #[test]
    fn off_is_off() {
        let mut c = Combine::new(&Options::default());
        assert!((0..9).all(|_| c.offer(1, NEVER)));
        assert!(!c.complete() && !c.defers());
    }
}
