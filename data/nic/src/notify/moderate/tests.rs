//! Moderation in simulated time.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

/// Time that stands still unless it is moved, and a timer.
#[derive(Debug, Default)]
pub struct FakeClock {
    now: Cell<u64>,
    timer: Cell<Option<u64>>,
    asked: Cell<u64>,
}

impl Clock for FakeClock {
    fn now(&self) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.now.get()
    }
    fn set_timer(&self, at: u64) {
        self.timer.set(Some(at));
    }
}

impl FakeClock {
    pub fn time(&self) -> u64 {
        self.now.get()
    }

    pub fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    /// True once for each time that the timer was set and is due.
    pub fn fires(&self) -> bool {
        let due = self.timer.get().is_some_and(|at| at <= self.now.get());
        if due {
            self.timer.set(None);
        }
        due
    }

    pub fn is_quiet(&self) -> bool {
        self.timer.get().is_none()
    }
}

/// A port: counts what each of its interrupts got, and when.
#[derive(Default)]
struct Port {
    moderator: Moderator,
    clock: FakeClock,
    got: [u64; 4],
    times: Vec<u64>,
}

impl Port {
    fn new(rate: u32) -> Self {
        let port = Self::default();
        port.moderator.set_rate(rate, &port.clock);
        port
    }

    fn deliver(&mut self, who: u8) {
        self.got[usize::from(who)] += 1;
        self.times.push(self.clock.time());
    }

    fn raise(&mut self, who: u8) {
        if self.moderator.admits(who, &self.clock) {
            self.deliver(who);
        }
    }

    fn fire(&mut self) {
        let due = self.moderator.due(&self.clock);
        (0..4).filter(|who| due.contains(*who)).for_each(|who| self.deliver(who));
    }

    fn pass(&mut self, ns: u64) {
        self.clock.pass(ns);
        if self.clock.fires() {
            self.fire();
        }
    }

    /// Most deliveries in any second, each second beginning with one.
    fn most(&self) -> usize {
        let mut end = 0;
        let in_second = |(i, from): (usize, &u64)| {
            end += self.times[end..].iter().take_while(|at| **at < from + SECOND).count();
            end - i
        };
        self.times.iter().enumerate().map(in_second).max().unwrap_or(0)
    }
}

#[test]
fn without_a_limit_no_clock_is_asked_and_no_timer_set() {
    let mut port = Port::new(0);
    (0..1000).for_each(|_| port.raise(1));
    assert_eq!((port.got[1], port.clock.asked.get()), (1000, 0));
    assert!(port.clock.is_quiet() && !port.moderator.is_on());
}

#[test]
fn the_first_after_silence_is_not_delayed_and_the_next_comes_when_the_window_ends() {
    let mut port = Port::new(1000);
    for round in 1..4 {
        port.raise(0);
        assert_eq!(port.got[0], 2 * round - 1, "at once");
        port.pass(400_000);
        (0..5).for_each(|_| port.raise(0));
        port.pass(599_999);
        assert_eq!(port.got[0], 2 * round - 1, "held back");
        port.pass(1);
        assert_eq!(port.got[0], 2 * round, "once");
        port.pass(5_000_000);
        assert!(port.clock.is_quiet());
    }
    assert_eq!(port.moderator.counts(), (3, 3));
}

#[test]
fn a_flood_is_cut_to_the_rate_and_gets_all_of_it() {
    for (rate, seconds) in [(1, 20), (7, 5), (1000, 3), (8000, 2), (300_000, 1)] {
        let mut port = Port::new(rate);
        let step = SECOND / u64::from(rate) / 20;
        for _ in 0..seconds * u64::from(rate) * 20 {
            port.raise(2);
            port.pass(step);
        }
        let (most, all) = (port.most() as u64, u64::from(rate) * seconds);
        assert!(most <= u64::from(rate), "{most} in a second of {rate}");
        // Steps do not end with windows.
        assert!(port.got[2] * 100 >= all * 94, "{} of {all}", port.got[2]);
    }
}

/// The timer is late each time, and the busy one comes before it.
#[test]
fn several_share_the_rate_and_none_is_starved() {
    for late in [0, 1, 7] {
        let mut port = Port::new(1000);
        for i in 0..400_000u64 {
            port.raise(0);
            if i % 10 == 0 {
                port.raise(1);
            }
            if i % 50 == 0 {
                port.raise(3);
            }
            port.clock.pass(10_000);
            if i % (late + 1) == 0 && port.clock.fires() {
                port.fire();
            }
        }
        let [a, b, none, c] = port.got;
        assert!(none == 0 && a + b + c <= 4003 && a + b + c > 3500, "{:?}", port.got);
        assert!(b * 10 >= a * 9 && c * 10 >= a * 9, "{:?}", port.got);
    }
}

#[test]
fn a_limit_that_is_changed_holds_at_once() {
    let mut port = Port::new(1);
    port.raise(0);
    port.raise(0);
    port.pass(1_000_000);
    port.moderator.set_rate(100, &port.clock);
    port.pass(8_999_999);
    assert_eq!(port.got[0], 1, "a hundredth of a second after the first");
    port.pass(1);
    assert_eq!(port.got[0], 2);
    port.moderator.set_rate(1, &port.clock);
    port.pass(20_000_000);
    port.raise(1);
    assert_eq!(port.got[1], 0);
    port.moderator.set_rate(0, &port.clock);
    port.pass(0);
    assert_eq!(port.got[1], 1, "none is left behind");
    port.raise(1);
    assert_eq!(port.got[1], 2);
    assert!(port.clock.is_quiet());
}

#[test]
fn one_that_is_taken_out_counts_for_the_limit() {
    let mut port = Port::new(1000);
    port.raise(0);
    port.raise(1);
    port.raise(2);
    assert!(port.moderator.take(1) && !port.moderator.take(1) && !port.moderator.take(3));
    port.pass(1_999_999);
    assert_eq!(port.got, [1, 0, 0, 0]);
    port.pass(1);
    assert_eq!(port.got, [1, 0, 1, 0]);
}

#[test]
fn a_clock_that_is_set_back_closes_the_window() {
    let mut port = Port::new(1);
    port.pass(SECOND);
    port.raise(0);
    port.clock.now.set(5);
    port.raise(0);
    assert_eq!(port.got[0], 2);
}

#[test]
fn all_sources_have_a_number_of_their_own() {
    let mut set = Set::default();
    for who in 0..=u8::MAX {
        assert!(!set.contains(who));
        set.insert(who);
        assert!(set.contains(who) && set.len() == u32::from(who) + 1);
    }
    assert!((0..=u8::MAX).all(|who| set.remove(who) && !set.remove(who)) && set.is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Raise(u8),
    Pass(u64),
    /// The timer's thread looks, whether or not it is due.
    Look,
    Rate(u32),
    Take(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..4).prop_map(Step::Raise),
        4 => (0u64..3_000_000).prop_map(Step::Pass),
        1 => Just(Step::Look),
        1 => prop_oneof![Just(0u32), 1u32..2000, Just(1_000_000)].prop_map(Step::Rate),
        1 => (0u8..4).prop_map(Step::Take),
    ]
}

proptest! {
    #[test]
    fn nothing_is_lost_and_what_is_held_has_a_timer(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut port = Port::new(500);
        // Raised since it was last delivered.
        let mut waits = [false; 4];
        for step in steps {
            let before = port.got;
            match step {
                Step::Raise(who) => {
                    waits[usize::from(who)] = true;
                    port.raise(who);
                }
                Step::Pass(ns) => port.pass(ns),
                Step::Look => port.fire(),
                Step::Rate(rate) => port.moderator.set_rate(rate, &port.clock),
                Step::Take(who) => {
                    let taken = port.moderator.take(who);
                    // Unless the limit had gone meanwhile, and it was delivered past the gate.
                    prop_assert!(taken || !waits[usize::from(who)]);
                    waits[usize::from(who)] = false;
                }
            }
            for (wait, (before, now)) in waits.iter_mut().zip(before.iter().zip(port.got)) {
                *wait &= now == *before;
            }
            prop_assert!(!waits.contains(&true) || !port.clock.is_quiet(), "{waits:?}");
        }
        for _ in 0..8 {
            port.pass(100 * SECOND);
        }
        for (who, wait) in waits.iter().enumerate() {
            let left = port.moderator.gate().held.contains(u8::try_from(who).unwrap());
            prop_assert!(!left, "{who} {wait}");
        }
        let (held, late) = port.moderator.counts();
        prop_assert_eq!(held, late);
    }

    #[test]
    fn no_second_has_more_than_the_limit_and_a_round(
        rate in 1u32..3000,
        steps in prop::collection::vec((0u8..4, 0u64..500_000), 1..400),
    ) {
        let mut port = Port::new(rate);
        for (who, ns) in steps {
            port.raise(who);
            port.pass(ns);
        }
        prop_assert!(port.most() <= rate as usize + 3);
    }
}
