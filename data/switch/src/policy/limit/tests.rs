use std::time::Duration;

use super::*;
use crate::policy::Rate;

const MS: u64 = 1_000_000;

fn limiter(bits: Option<u64>, frames: Option<u64>) -> Arc<Limiter> {
    let bucket = |n| Bucket::new(Rate { per_second: n, burst: Duration::from_millis(5) }, 0);
    let counters = Arc::default();
    Arc::new(Limiter { bits: bits.map(bucket), frames: frames.map(bucket), counters })
}

fn counts(limiter: &Limiter) -> [u64; 4] {
    let c = &limiter.counters;
    [c.offered.get(), c.passed.get(), c.held.get(), c.dropped.get()]
}

#[test]
fn unlimited() {
    let limits = Limits::default();
    assert!(limits.is_none());
    assert_eq!(limits.budget(5), Budget { bits: i64::MAX, frames: i64::MAX });
    assert_eq!(limits.wait(5), 0);
    limits.passed(1, 2);
    limits.returned(1, 2);
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
fn returned_as_if_nothing_had_passed() {
    let own = limiter(Some(1_000_000), Some(1000));
    let limits = Limits { own: Some(own.clone()), shared: None };
    limits.passed(4, 8000);
    limits.returned(3, 6000);
    assert_eq!(limits.budget(0), Budget { bits: 3000, frames: 4 });
    assert_eq!(counts(&own), [1, 1, 0, 0]);
    // Never more than a bucket holds.
    limits.returned(9, 6_000_000);
    assert_eq!(limits.budget(0), Budget { bits: 5000, frames: 5 });
}
