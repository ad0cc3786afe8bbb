use std::time::Duration;

use super::*;
use crate::policy::Rate;

const MS: u64 = 1_000_000;

fn limiter(bits: Option<u64>, frames: Option<u64>) -> Arc<Limiter> {
    let bucket = |n| Bucket::new(Rate { per_second: n, burst: Duration::from_millis(5) }, 0);
    let counters = Arc::default();
    Arc::new(Limiter { bits: bits.map(bucket), frames: frames.map(bucket), counters, turns: None })
}

fn counts(limiter: &Limiter) -> [u64; 4] {
    let c = &limiter.counters;
    [c.offered(), c.passed.get(), c.held.get(), c.dropped.get()]
}

#[test]
fn unlimited() {
    let limits = Limits::default();
    assert!(limits.is_none());
    assert_eq!(limits.budget(5), Budget { bits: i64::MAX, frames: i64::MAX });
    assert_eq!(limits.wait(5), 0);
    limits.passed(1, 2);
    limits.held(1);
    limits.dropped(1);
}

#[test]
fn the_least_of_all() {
    let own = limiter(Some(1_000_000), Some(10_000));
    let shared = limiter(Some(400_000), None);
    let limits = Limits { own: Some(own), shared: Some(shared.clone()) };
    let other = Limits { own: None, shared: Some(shared.clone()) };
    assert_eq!(limits.budget(0), Budget { bits: 2000, frames: 50 });
    // What the other one takes from the tenant's limit is gone for this one.
    other.passed(1, 2400);
    assert_eq!(limits.budget(0), Budget { bits: -400, frames: 50 });
    // The debt, and a helping.
    assert_eq!(limits.wait(0), (400 + 200) * 2500);
    assert_eq!(limits.wait(0), other.wait(0));
    limits.passed(60, 10);
    assert_eq!(limits.wait(0), (410 + 200) * 2500);
    limits.passed(60, 0);
    assert_eq!(limits.wait(0), (70 + 5) * 100_000);
    assert_eq!(limits.budget(10 * MS).frames, 30);
    assert_eq!(counts(&shared), [121, 121, 0, 0]);
}

#[test]
fn counted_where_it_was_refused() {
    let (own, shared) = (limiter(Some(1_000_000), None), limiter(None, Some(1000)));
    let limits = Limits { own: Some(own.clone()), shared: Some(shared.clone()) };
    limits.passed(5, 100);
    assert_eq!(limits.budget(0), Budget { bits: 4900, frames: 0 });
    limits.dropped(3);
    limits.held(2);
    assert_eq!(counts(&own), [5, 5, 0, 0]);
    assert_eq!(counts(&shared), [8, 5, 2, 3]);
    limits.passed(1, 4900);
    limits.dropped(1);
    assert_eq!(counts(&own), [7, 6, 0, 1]);
    assert_eq!(counts(&shared), [10, 6, 2, 4]);
}

#[test]
fn receivers_get_helpings() {
    let own = limiter(None, Some(24_000));
    let limits = Limits { own: Some(own.clone()), shared: None };
    assert_eq!(limits.in_helpings(0).frames, 120);
    limits.passed(119, 0);
    assert_eq!(limits.in_helpings(0).frames, 1);
    limits.passed(1, 0);
    assert_eq!(limits.in_helpings(0).frames, 0);
    limits.dropped(1);
    for now in [MS / 10, MS, 2 * MS] {
        assert_eq!(limits.in_helpings(now).frames, 0);
        limits.dropped(1);
    }
    // Not for those who do not take helpings.
    assert_eq!(limits.budget(2 * MS).frames, 48);
    assert_eq!(limits.wait(2 * MS), 0);
    assert_eq!(counts(&own), [124, 120, 0, 4]);
    assert_eq!(limits.in_helpings(2_500_000).frames, 60);
    limits.passed(50, 0);
    assert_eq!(limits.in_helpings(2_500_000).frames, 10);
}

/// Flooded at any pace: a receiver gets what its rate says, in few helpings.
#[test]
fn helpings_are_exact() {
    for (rate, pace) in [
        (100, 1_000_000),
        (24_000, 1000),
        (24_000, 100_000),
        (24_000, 3_000_000),
        (10_000_000, 20_000),
    ] {
        let limits = Limits { own: Some(limiter(None, Some(rate))), shared: None };
        let (mut passed, mut helpings, mut shut) = (0, 0, true);
        for now in (0..1_000_000_000).step_by(pace) {
            let n = limits.in_helpings(now).frames.clamp(0, 256).unsigned_abs();
            limits.passed(n, 0);
            limits.dropped(256 - n);
            passed += n;
            helpings += u64::from(shut && n > 0);
            shut = n == 0;
        }
        assert!((rate..=rate + rate / 100).contains(&passed), "{passed} of {rate}");
        assert!(helpings <= 402, "{helpings}");
    }
}
