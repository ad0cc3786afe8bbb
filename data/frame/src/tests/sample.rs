//! How many frames are chosen, and which.
use std::sync::Arc;

use proptest::prelude::*;

use crate::{Sample, Sampler, Sampling};

struct Nobody;

impl Sampler for Nobody {
    fn sample(&self, _: &Sample<'_>) {}
}

fn sampling(rate: u32, seed: u64) -> Sampling {
    Sampling::new(rate, seed, Arc::new(Nobody))
}

/// Numbers of the frames chosen among `frames`, which pass in batches of the lengths that `batch`
/// gives.
fn chosen(s: &Sampling, frames: usize, mut batch: impl FnMut(usize) -> usize) -> Vec<u64> {
    let (mut chosen, mut passed, mut round) = (Vec::new(), 0, 0);
    while passed < frames {
        let n = batch(round).min(frames - passed);
        s.pass(n, |place, number| {
            assert!(place < n, "only frames of the batch");
            assert_eq!((passed + place + 1) as u64, number, "the number counts all frames");
            chosen.push(number);
        });
        passed += n;
        round += 1;
    }
    chosen
}

#[test]
fn one_of_a_thousand_is_a_thousandth() {
    for seed in [1, 2, 3, 5, 8, 13, 21] {
        let n = chosen(&sampling(1000, seed), 1_000_000, |_| 256).len();
        assert!((950..=1050).contains(&n), "seed {seed}: {n} samples of 1e6 frames");
    }
    // The distances' standard deviation is N/sqrt(3): over 2e7 frames the mean is within 1.3 % (3
    // sigma 1.2 %).
    let n = chosen(&sampling(1000, 42), 20_000_000, |_| 256).len();
    assert!((19_740..=20_260).contains(&n), "{n} samples of 2e7 frames");
}

#[test]
fn traffic_with_a_rhythm_is_not_preferred() {
    // Each 10th frame is special; each of the ten places must be chosen as often as the others.
    let mut places = [0u32; 10];
    for number in chosen(&sampling(100, 7), 10_000_000, |_| 256) {
        places[usize::try_from(number % 10).unwrap()] += 1;
    }
    assert!(places.iter().all(|n| (9_500..=10_500).contains(n)), "{places:?}");
}

#[test]
fn a_rate_of_one_chooses_every_frame() {
    let all = chosen(&sampling(1, 9), 1000, |round| round % 3);
    assert_eq!(all, (1..=1000).collect::<Vec<_>>());
    assert_eq!(chosen(&sampling(0, 9), 10, |_| 256).len(), 10, "0 is taken for 1");
}

proptest! {
    #[test]
    fn batches_make_no_difference(
        rate in 1u32..5000,
        seed: u64,
        lengths in proptest::collection::vec(1usize..300, 1..20),
    ) {
        let one = chosen(&sampling(rate, seed), 20_000, |_| 1);
        let some = chosen(&sampling(rate, seed), 20_000, |round| lengths[round % lengths.len()]);
        prop_assert_eq!(&one, &some);
        let gaps = one.windows(2).map(|w| w[1] - w[0]);
        prop_assert!(gaps.into_iter().all(|g| g < 2 * u64::from(rate)));
    }
}

/// Workers that serve different lanes of a port: each frame is counted once.
#[test]
fn frames_of_several_workers_are_counted_once() {
    let sampling = sampling(10, 4);
    let numbers = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for n in (0..7).cycle().take(70_000) {
                    sampling.pass(n, |_, number| numbers.lock().unwrap().push(number));
                }
            });
        }
    });
    // 630,000 frames have passed: the next samples are chosen among those to come.
    let mut numbers = numbers.into_inner().unwrap();
    let came = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((numbers.len(), *numbers.last().unwrap() <= 630_000), (came, true));
    sampling.pass(20, |place, number| assert_eq!(number, 630_001 + place as u64));
}
