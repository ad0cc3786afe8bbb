//! Copying memory: what a switch cannot do without.

use std::hint::black_box;
use std::time::Duration;

use super::cores::{Cores, run_on};
use super::figure::{Found, Samples};

/// Bytes; 1514 is a frame of Ethernet.
pub(super) const SIZES: [usize; 7] = [64, 256, 1024, 1514, 4096, 16_384, 65_536];
/// Where cold blocks lie: far more than a core's own caches hold.
const AREA: usize = 64 << 20;
/// Hot copies in a sample, in bytes: long enough for the clock.
const HOT: usize = 1 << 18;
/// Cold copies in a sample.
const COLD: u32 = 16;
const LINE: usize = 64;

/// Copies a second of so many bytes, of blocks that no cache of the worker's core has.
pub(crate) fn per_s(bytes: usize) -> Option<f64> {
    const AREA: usize = 16 << 20;
    const TIME: Duration = Duration::from_millis(20);
    let copies = move || {
        let (mut from, mut to) = (vec![1_u8; AREA], vec![2_u8; AREA]);
        cold(&mut from, &mut to, bytes, TIME)
    };
    Some(1e9 / run_on(Cores::find().far(), copies).ok()?.low()?)
}

/// All sizes, hot and cold, each for a share of `time`.
pub(super) fn all(cores: Cores, time: Duration) -> Found {
    // Fourteen of these take as long as two others.
    let each = time / 7;
    match run_on(cores.here, move || on_this_core(each)) {
        Ok(found) => found,
        Err(why) => {
            let mut found = Found::default();
            found.miss("memory copies", why);
            found
        }
    }
}

fn on_this_core(each: Duration) -> Found {
    let mut found = Found::default();
    for size in SIZES {
        let what = format!("copy of {size} bytes, hot");
        found.add(&format!("copy-{size}-hot"), &what, hot(size, each));
    }
    let (mut from, mut to) = (vec![1_u8; AREA], vec![2_u8; AREA]);
    for size in SIZES {
        let what = format!("copy of {size} bytes, cold");
        let samples = cold(&mut from, &mut to, size, each);
        found.add(&format!("copy-{size}-cold"), &what, samples);
    }
    found
}

/// The same bytes to the same place.
fn hot(size: usize, time: Duration) -> Samples {
    let (from, mut to) = (vec![1_u8; size], vec![2_u8; size]);
    let batch = u32::try_from((HOT / size).clamp(8, 256)).unwrap_or(8);
    Samples::take(batch, time, || {
        for _ in 0..batch {
            black_box(to.as_mut_slice()).copy_from_slice(black_box(&from));
        }
    })
}

/// Blocks in an order that no prefetcher guesses; where the next one is stands in the block that
/// was just copied, so that not even the processor can look ahead.
fn cold(from: &mut [u8], to: &mut [u8], size: usize, time: Duration) -> Samples {
    let stride = size.next_multiple_of(LINE);
    let next = circle(from.len() / stride);
    for (block, next) in from.chunks_exact_mut(stride).zip(&next) {
        block[..4].copy_from_slice(&next.to_ne_bytes());
    }
    let mut at = 0;
    Samples::take(COLD, time, || {
        for _ in 0..COLD {
            let place = at * stride..at * stride + size;
            to[place.clone()].copy_from_slice(&from[place.clone()]);
            let mut next = [0; 4];
            next.copy_from_slice(&black_box(&*to)[place][..4]);
            at = u32::from_ne_bytes(next) as usize;
        }
    })
}

/// For each of `len` places the next one: one circle through all of them, by chance (Sattolo), the
/// same in each run.
fn circle(len: usize) -> Vec<u32> {
    let mut next: Vec<u32> = (0..len).filter_map(|n| u32::try_from(n).ok()).collect();
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..next.len()).rev() {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let other = usize::try_from(dice % at as u64).unwrap_or(0);
        next.swap(at, other);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circle_visits_every_place_once() {
        let next = circle(1000);
        let (mut at, mut seen) = (0, vec![false; 1000]);
        for _ in 0..1000 {
            assert!(!std::mem::replace(&mut seen[at], true), "{at} twice");
            at = next[at] as usize;
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn cold_blocks_are_copied_whole() {
        let (mut from, mut to) = (vec![7; 64 * 32], vec![0; 64 * 32]);
        let samples = cold(&mut from, &mut to, 50, Duration::ZERO);
        assert!(samples.figure("n", "w").is_some_and(|f| f.times == 16));
        let copied = to.chunks(64).filter(|c| c[..50].ends_with(&[7]) && c[50..] == [0; 14]);
        assert_eq!(copied.count(), 16);
    }
}
