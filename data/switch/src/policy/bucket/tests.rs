use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn rate(per_second: u64, burst_us: u64) -> Rate {
    Rate { per_second, burst: Duration::from_micros(burst_us) }
}

const UNIT: i128 = 1_000_000_000;

/// What a bucket should be, in 10^9ths of tokens, with nothing modulo anything.
struct Model {
    rate: i128,
    depth: i128,
    tokens: i128,
    latest: u64,
}

impl Model {
    fn new(bucket: &Bucket, now: u64) -> Self {
        let depth = i128::from(bucket.depth);
        let rate = i128::from(bucket.per_second());
        let tokens = depth * UNIT + rate * i128::from(now) % UNIT;
        Self { rate, depth, tokens, latest: now }
    }

    /// Whole tokens there are.
    fn look(&mut self, now: u64) -> i64 {
        let next = rate_at(self.rate, now);
        if now >= self.latest {
            self.tokens += self.rate * i128::from(now - self.latest);
        } else if self.latest - now > SKEW {
            self.tokens = self.tokens.div_euclid(UNIT) * UNIT + next;
        }
        if self.tokens.div_euclid(UNIT) > self.depth || now.saturating_sub(self.latest) >= LEAP {
            self.tokens = self.depth * UNIT + self.tokens.rem_euclid(UNIT);
        }
        if now > self.latest || self.latest - now > SKEW {
            self.latest = now;
        }
        i64::try_from(self.tokens.div_euclid(UNIT)).unwrap()
    }
}

/// The part of a token that is on its way.
fn rate_at(rate: i128, now: u64) -> i128 {
    rate * i128::from(now) % UNIT
}

/// From 64 kbit/s to 400 Gbit/s and from one frame a second to 10^9, evenly over the magnitudes.
fn rates() -> impl Strategy<Value = u64> {
    (0u32..39, any::<u64>())
        .prop_map(|(e, n)| ((1u64 << e) | (n & ((1 << e) - 1))).min(400_000_000_000))
}

proptest! {
    /// A sender that always has more, looked at whenever: what passes is what time brings, to
    /// within the burst and one helping.
    #[test]
    fn exact(
        per_second in rates(),
        burst_us in 100u64..1_000_000,
        start in any::<u64>().prop_map(|n| n >> 2),
        steps in prop::collection::vec((0u64..1000, 1u64..600_000), 200..400),
    ) {
        let rate = rate(per_second, burst_us);
        let bucket = Bucket::new(rate, start);
        // So long that a token comes, and no longer than the burst.
        let longest = (burst_us * 1000).max(SECOND / per_second);
        let (mut now, mut passed, mut largest) = (start, 0i128, 0);
        for (step, helping) in steps {
            now += longest * step / 1000;
            let tokens = bucket.tokens(now);
            if tokens > 0 {
                // As many frames as there are tokens for, and one more.
                let n = tokens.unsigned_abs() + helping;
                bucket.spend(n);
                largest = largest.max(helping);
                passed += i128::from(n);
            }
        }
        let brought = i128::from(per_second) * i128::from(now - start) / i128::from(SECOND);
        let most = brought + i128::from(bucket.depth) + i128::from(largest) + 1;
        prop_assert!(passed <= most, "{passed} > {most}");
        // All of it was spent, as the bucket was never left for longer than it takes to fill.
        prop_assert!(passed + 1 >= brought, "{passed} < {brought}");
    }

    /// Any clock: it is what a bucket should be; never fuller than full, and nobody waits for what
    /// nobody spent.
    #[test]
    fn any_clock(
        per_second in prop_oneof![rates(), Just(u64::MAX), Just(0)],
        burst_us in 0u64..2_000_000,
        start in any::<u64>(),
        steps in prop::collection::vec((clock_steps(), 0u64..1_000_000), 1..100),
        refused in any::<bool>(),
    ) {
        let bucket = Bucket::new(rate(per_second, burst_us), start);
        let mut model = Model::new(&bucket, start);
        let mut now = start;
        for (step, n) in steps {
            now = step.go(now);
            let tokens = bucket.tokens(now);
            prop_assert_eq!(tokens, model.look(now));
            prop_assert!(tokens <= bucket.depth.cast_signed());
            prop_assert_eq!(bucket.wait(now) == 0, tokens > 0);
            let helping = bucket.in_helpings(now);
            prop_assert!(helping == tokens || helping == 0 && bucket.is_shut(now));
            if refused {
                prop_assert!(bucket.refuses() || tokens > 0);
                // Shut for no longer than half the burst, even if the clock comes by once more.
                let later = now.saturating_add(bucket.half());
                prop_assert!(!bucket.is_shut(now) || !bucket.is_shut(later));
            }
            bucket.spend(n);
            model.tokens -= i128::from(n) * UNIT;
        }
    }

    /// After the wait there is a helping, and not before.
    #[test]
    fn waits(
        per_second in rates(),
        burst_us in 100u64..1_000_000,
        debt in 0u64..100_000,
        now in any::<u64>().prop_map(|n| n >> 1),
    ) {
        let bucket = Bucket::new(rate(per_second, burst_us), now);
        bucket.spend(bucket.depth + debt);
        let wait = bucket.wait(now);
        let helping = (bucket.depth / 4).min(bucket.brought(HELPING).0).max(1).cast_signed();
        prop_assert!(bucket.tokens(now + wait - 1) < helping);
        prop_assert!(wait == MAX_WAIT || bucket.tokens(now + wait) >= helping);
        // No polling: sleeps are no shorter than a quarter of the burst, half a millisecond or a
        // token, but for rounding.
        let least = (burst_us * 240).min(HELPING - HELPING / 25).min(SECOND / per_second);
        prop_assert!(debt < 2 || wait + 1 >= least, "{wait} {least}");
    }

    /// Another rate: no more than was there, neither in tokens nor in time; and to and fro brings
    /// nothing.
    #[test]
    fn with_rate(
        old in rates(),
        new in rates(),
        burst_us in 100u64..1_000_000,
        spent in 0u64..20_000_000,
        now in any::<u64>(),
    ) {
        let bucket = Bucket::new(rate(old, burst_us), now);
        bucket.spend(spent);
        let before = bucket.tokens(now);
        let other = bucket.with_rate(rate(new, burst_us), now);
        let after = other.tokens(now);
        prop_assert!(after.signum() == before.signum() || after == 0);
        prop_assert!(after.unsigned_abs() <= before.unsigned_abs());
        let time = |tokens: i64, rate: u64| {
            i128::from(tokens.unsigned_abs()) * i128::from(SECOND) / i128::from(rate)
        };
        prop_assert!(time(after, new) <= time(before, old) + i128::from(SECOND / new) + 1);
        prop_assert!(other.with_rate(bucket.rate(), now).tokens(now) <= before.max(0));
        prop_assert_eq!(bucket.with_rate(bucket.rate(), now).tokens(now), before);
    }
}

#[derive(Clone, Debug)]
enum Step {
    On(u64),
    Back(u64),
    To(u64),
}

impl Step {
    fn go(&self, now: u64) -> u64 {
        match self {
            Self::On(n) => now.saturating_add(*n),
            Self::Back(n) => now.saturating_sub(*n),
            Self::To(n) => *n,
        }
    }
}

fn clock_steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..10_000_000).prop_map(Step::On),
        1 => Just(Step::On(0)),
        1 => (0u64..50_000).prop_map(Step::Back),
        1 => any::<u64>().prop_map(|n| Step::Back(n >> (n % 64))),
        1 => any::<u64>().prop_map(|n| Step::On(n >> (n % 64))),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>()].prop_map(Step::To),
    ]
}

/// Every small bucket, every pattern of a few looks and spends.
#[test]
fn small_cases() {
    for per_second in 1..6 {
        for steps in 0..4u32.pow(6) {
            let bucket = Bucket::new(rate(per_second, 1_000_000), 7);
            let mut model = Model::new(&bucket, 7);
            let mut now = 7;
            for i in 0..6 {
                now += [0, 100_000_000, 333_333_333, 1_500_000_000]
                    [(steps / 4u32.pow(i) % 4) as usize];
                let tokens = bucket.tokens(now);
                assert_eq!(tokens, model.look(now));
                if tokens > 0 {
                    bucket.spend(2);
                    model.tokens -= 2 * UNIT;
                }
            }
        }
    }
}

/// Two workers spend at once: none of it is lost, and both together get what the rate says.
#[test]
fn two_threads() {
    for per_second in [64_000, 1_000_000, 10_000_000_000, 400_000_000_000u64] {
        let bucket = Bucket::new(rate(per_second, 5000), 0);
        let clock = AtomicU64::new(0);
        let helping = 12_112;
        let run = || {
            let mut passed = 0;
            loop {
                let now = clock.fetch_add(1000, Ordering::Relaxed);
                if now > SECOND / 5 {
                    return passed;
                }
                let tokens = bucket.tokens(now);
                if tokens > 0 {
                    let n = tokens.unsigned_abs() / 2 + helping;
                    bucket.spend(n);
                    passed += n;
                }
            }
        };
        let passed = std::thread::scope(|s| {
            let other = s.spawn(run);
            run() + other.join().unwrap()
        });
        let brought = per_second / 5;
        // Each may see the same tokens: one look's worth, which is owed afterwards.
        assert!(passed <= brought + 2 * bucket.depth + 2 * helping, "{passed} of {brought}");
        assert!(passed >= brought - brought / 100, "{passed} of {brought}");
        let left = bucket.tokens(SECOND / 5);
        assert!(left <= 2 * helping.cast_signed() + (per_second / 100_000).cast_signed(), "{left}");
    }
}

/// A year at 400 Gbit/s is more bits than 2^63, and ten are more than 2^66: nobody notices.
#[test]
fn years() {
    let bucket = Bucket::new(rate(400_000_000_000, 5000), 0);
    let hour = LEAP - 1;
    let mut now = 0;
    for _ in 0..10 * 366 * 24 {
        now += hour;
        assert_eq!(bucket.tokens(now), 2_000_000_000);
        bucket.spend(2_000_000_001);
        assert_eq!(bucket.tokens(now), -1);
        assert_eq!(bucket.tokens(now + 1000), 399_999);
    }
}

#[test]
fn sane_after_any_leap() {
    for (from, to) in [
        (0, u64::MAX),
        (u64::MAX, 0),
        (1 << 40, 5),
        (5, 1 << 62),
        (1 << 63, (1 << 63) - SECOND - 1),
    ] {
        let bucket = Bucket::new(rate(1_000_000, 5000), from);
        bucket.spend(5000 + 12_112);
        let owed = bucket.tokens(from);
        let there = bucket.tokens(to);
        assert!(there == owed || there == 5000, "{there}");
        // Ten milliseconds of the new clock pay the debt, forwards from wherever it stands.
        let later = to.saturating_add(12_500_000);
        assert!(to == u64::MAX || bucket.tokens(later) > 0);
    }
}

/// Every history of five looks at a bucket, by clocks of all kinds: what there is is what the model
/// says, which knows no wrapping and no rounding.
#[test]
fn every_short_history() {
    const EIGHTH: u64 = SECOND / 8;
    // Halves and thirds of tokens; stands still; leaps; goes back a little, and more.
    let clocks: [fn(u64) -> u64; 7] = [
        |now| now,
        |now| now + EIGHTH,
        |now| now + SECOND / 3 + 1,
        |now| now + 2 * SECOND,
        |now| now.saturating_add(LEAP),
        |now| now.saturating_sub(SKEW / 2),
        |now| now.saturating_sub(3 * SKEW),
    ];
    let spent = [0, 1, 5];
    let acts = clocks.len() * spent.len();
    for (per_second, burst_us) in [(1, 0), (3, 500_000), (7, 2_000_000)] {
        for history in 0..acts.pow(4) {
            let mut now = 10 * SECOND;
            let bucket = Bucket::new(rate(per_second, burst_us), now);
            let mut model = Model::new(&bucket, now);
            let mut rest = history;
            for _ in 0..4 {
                now = clocks[rest % clocks.len()](now);
                let n = spent[rest / clocks.len() % spent.len()];
                rest /= acts;
                let tokens = bucket.tokens(now);
                assert_eq!(tokens, model.look(now), "{per_second} {burst_us} {history}");
                bucket.spend(n);
                model.tokens -= i128::from(n) * UNIT;
            }
            assert_eq!(bucket.tokens(now), model.look(now));
        }
    }
}

/// Every history of seven looks by a clock that goes on: whoever takes all that there is, and one
/// helping more than that each time, gets in any time no more than the rate, the burst and one
/// helping.
#[test]
fn nobody_ever_gets_more_than_time_has_brought() {
    let steps = [0, 1, SECOND / 7, SECOND / 2, SECOND, 3 * SECOND];
    for (per_second, burst_us, helping) in [(1, 0, 1), (2, 1_000_000, 3), (5, 300_000, 2)] {
        for history in 0..steps.len().pow(7) {
            let (mut now, mut passed, mut rest) = (3 * SECOND, 0, history);
            let bucket = Bucket::new(rate(per_second, burst_us), now);
            let mut looks = [(now, 0); 7];
            for look in 0..7 {
                now += steps[rest % steps.len()];
                rest /= steps.len();
                looks[look] = (now, passed);
                let tokens = bucket.tokens(now);
                if tokens > 0 {
                    let n = tokens.unsigned_abs() - 1 + helping;
                    bucket.spend(n);
                    passed += n;
                }
                for (since, before) in &looks[..=look] {
                    // What is left of a token when the time begins may become a whole one.
                    let most = (now - since) * per_second / SECOND + bucket.depth + helping;
                    assert!(passed - before <= most, "{history}: {passed} - {before} > {most}");
                }
            }
        }
    }
}
