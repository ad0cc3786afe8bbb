//! The cable of a chip that was reset behind its driver's back: pulled until the driver has set the
//! chip up again.
//!
//! Linux' e1000 needs the most patience. It looks at its link every other second, and not before
//! that for an interrupt; what it sees then is the cable as it is, not that it was pulled in
//! between. With the cable out it sets up its chip if frames wait to be sent, and otherwise it only
//! notes that. Once it has seen the cable in it sends again, to a chip that takes nothing. So the
//! cable is out for longer than it takes to look, and in until a doorbell rings.

use std::time::{Duration, Instant};

/// How long it is out at first, and in after that unless a doorbell rings before. Then half as long
/// again each time, for the guest may be slow, and so that nobody who looks from time to time
/// always sees the same.
const FIRST: Duration = Duration::from_millis(2500);
const LONGEST: Duration = Duration::from_secs(30);

/// How often it is pulled.
const TIMES: u32 = 12;

/// What can be seen of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// It has set up the chip.
    pub set_up: bool,
    /// Its transmit doorbells so far.
    pub doorbells: u64,
}

/// The cable, until the driver has set up the chip.
#[derive(Clone, Debug)]
pub(super) struct Flap {
    out: bool,
    until: Instant,
    /// How long it is out, and then in.
    time: Duration,
    /// How often it is pulled still.
    left: u32,
    doorbells: u64,
}

/// What becomes of the cable.
#[derive(Debug)]
pub(super) enum Cable {
    /// It is in for good: the driver has set up the chip, or does not want to.
    Stays,
    /// It is pulled, or plugged in, for now.
    Is(Flap),
}

impl Flap {
    /// It is pulled now.
    pub fn begin(now: Instant) -> Flap {
        Flap { out: true, until: now + FIRST, time: FIRST, left: TIMES, doorbells: 0 }
    }

    /// It is pulled, and not in.
    pub fn is_out(&self) -> bool {
        self.out
    }

    /// When it changes whatever the driver does.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// What comes next, if it is time for that.
    pub fn next(&self, now: Instant, seen: Seen) -> Option<Cable> {
        if seen.set_up {
            return Some(Cable::Stays);
        }
        let late = self.until <= now;
        if self.out {
            let plugged = || Flap {
                out: false,
                until: now + self.time,
                doorbells: seen.doorbells,
                ..self.clone()
            };
            return late.then(|| Cable::Is(plugged()));
        }
        if !late && seen.doorbells == self.doorbells {
            return None;
        }
        let Some(left) = self.left.checked_sub(1) else { return Some(Cable::Stays) };
        let time = (self.time * 3 / 2).min(LONGEST);
        Some(Cable::Is(Flap { out: true, until: now + time, time, left, ..self.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver as Linux' e1000, in a guest that is `slow` times as slow as it should be.
    struct Driver {
        slow: u32,
        /// Of its next look at the link.
        looks: Duration,
        /// It has frames to send, once its link is up, after so long.
        sends: Duration,
        carrier: bool,
        /// From when on frames wait in its ring.
        waits: Option<Duration>,
        doorbells: u64,
    }

    impl Driver {
        fn new(slow: u32, phase: u32, sends: u32, waits: bool) -> Self {
            let ms = |ms: u32| Duration::from_millis(u64::from(ms)) * slow;
            let waits = waits.then_some(Duration::ZERO);
            let (looks, sends) = (ms(phase), ms(sends));
            Driver { slow, looks, sends, carrier: true, waits, doorbells: 0 }
        }

        /// True if it sets up its chip.
        fn step(&mut self, at: Duration, out: bool) -> bool {
            if self.carrier {
                let when = *self.waits.get_or_insert(at + self.sends);
                self.doorbells += u64::from(when == at);
            }
            if at < self.looks {
                return false;
            }
            self.looks = at + Duration::from_secs(2) * self.slow;
            let waits = self.waits.is_some_and(|when| when <= at);
            self.carrier = !out;
            if out && !waits {
                self.waits = None;
            }
            out && waits
        }
    }

    /// How long it takes the driver to set up its chip.
    fn takes(mut driver: Driver) -> Option<Duration> {
        let begin = Instant::now();
        let mut flap = Flap::begin(begin);
        for ms in 0..400_000 {
            let at = Duration::from_millis(ms);
            let set_up = driver.step(at, flap.is_out());
            if set_up {
                return Some(at);
            }
            match flap.next(begin + at, Seen { set_up, doorbells: driver.doorbells }) {
                Some(Cable::Stays) => return None,
                Some(Cable::Is(next)) => flap = next,
                None => {}
            }
        }
        None
    }

    #[test]
    fn a_driver_that_looks_now_and_then_sets_up_its_chip_whenever_it_looks() {
        for slow in [1, 2, 3] {
            for phase in (0..2000).step_by(50) {
                let sending = takes(Driver::new(slow, phase, 0, true));
                let most = Duration::from_millis(if slow == 1 { 2000 } else { 20_000 });
                assert!(sending.is_some_and(|time| time <= most), "{slow} {phase} {sending:?}");
                for sends in [0, 1, 100, 700, 1900, 5000] {
                    let time = takes(Driver::new(slow, phase, sends, false));
                    assert!(time.is_some(), "{slow} times as slow, {phase} {sends}");
                }
            }
        }
    }

    #[test]
    fn it_is_over_when_the_chip_is_set_up_and_after_some_time() {
        let begin = Instant::now();
        let quiet = |set_up| Seen { set_up, doorbells: 7 };
        let mut flap = Flap::begin(begin);
        assert!(flap.is_out() && flap.next(begin, quiet(false)).is_none());
        assert!(matches!(flap.next(begin, quiet(true)), Some(Cable::Stays)));
        let mut pulled = 0;
        while let Some(Cable::Is(next)) = flap.next(flap.until(), quiet(false)) {
            assert_ne!(next.is_out(), flap.is_out());
            assert!(next.until() > flap.until());
            pulled += u32::from(next.is_out());
            flap = next;
        }
        assert!(!flap.is_out());
        assert_eq!(pulled, TIMES);
    }

    #[test]
    fn a_doorbell_pulls_it_at_once() {
        let begin = Instant::now();
        let seen = |doorbells| Seen { set_up: false, doorbells };
        let flap = Flap::begin(begin);
        assert!(flap.next(begin, seen(1)).is_none(), "it is out");
        let Some(Cable::Is(flap)) = flap.next(flap.until(), seen(3)) else { unreachable!() };
        assert!(!flap.is_out() && flap.next(begin, seen(3)).is_none());
        assert!(matches!(flap.next(begin, seen(4)), Some(Cable::Is(next)) if next.is_out()));
    }
}
