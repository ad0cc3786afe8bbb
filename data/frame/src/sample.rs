//! Samples: one frame of so many, chosen at random.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Reason;

/// What became of a sampled frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It went to one port, of this number in its switch.
    Port(usize),
    /// It went to many.
    Many,
    /// It went nowhere.
    Dropped(Reason),
}

/// A frame that was chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'f> {
    /// The snapshot: the frame's first bytes.
    pub head: &'f [u8],
    /// Its length in bytes.
    pub len: usize,
    /// Its number among all frames of its port, from 1: the pool it was chosen from.
    pub number: u64,
    /// The VLAN that the switch has it in, 0 if none.
    pub vid: u16,
    /// What became of it.
    pub fate: Fate,
}

/// Somebody who takes samples of one port: an sFlow agent.
pub trait Sampler: Send + Sync {
    /// Takes a sample. Must neither block nor allocate: what does not fit a bounded queue is lost,
    /// and counted by it.
    fn sample(&self, sample: &Sample<'_>);
}

/// Chooses which frames of a port are samples. The distance from one to the next is drawn from 1 to
/// 2N-1, all equally likely: N on average, with no rhythm that traffic could match (sFlow version
/// 5, section 3.1).
///
/// Written by one thread at a time, whoever holds the port's transmit side; no locked instruction
/// is spent on it.
pub struct Sampling {
    rate: u32,
    /// Frames until the next sample, it included; never 0.
    left: AtomicU64,
    /// Number of the next sample among all frames.
    next: AtomicU64,
    chance: AtomicU64,
    sampler: Arc<dyn Sampler>,
}

impl Sampling {
    /// One frame of `rate` (at least 1) on average, for `sampler`. The same `seed` chooses the same
    /// frames.
    pub fn new(rate: u32, seed: u64, sampler: Arc<dyn Sampler>) -> Self {
        let new = Self {
            rate: rate.max(1),
            left: AtomicU64::new(1),
            next: AtomicU64::new(1),
            chance: AtomicU64::new(seed),
            sampler,
        };
        let first = new.draw();
        new.left.store(first, Ordering::Relaxed);
        new.next.store(first, Ordering::Relaxed);
        new
    }

    /// Who takes the samples.
    pub fn sampler(&self) -> &dyn Sampler {
        &*self.sampler
    }

    /// `frames` frames have passed; `each` is called for those of them that are samples, with their
    /// place among the `frames` and their number among all.
    #[inline]
    pub fn pass(&self, frames: usize, each: impl FnMut(usize, u64)) {
        let (left, frames) = (self.left.load(Ordering::Relaxed), frames as u64);
        match left.checked_sub(frames) {
            Some(rest) if rest > 0 => self.left.store(rest, Ordering::Relaxed),
            _ => self.choose(left, frames, each),
        }
    }

    #[cold]
    fn choose(&self, mut left: u64, mut frames: u64, mut each: impl FnMut(usize, u64)) {
        let mut place = 0;
        while left <= frames {
            frames -= left;
            place += left;
            let number = self.next.load(Ordering::Relaxed);
            each(usize::try_from(place - 1).unwrap_or(usize::MAX), number);
            left = self.draw();
            self.next.store(number.wrapping_add(left), Ordering::Relaxed);
        }
        self.left.store(left - frames, Ordering::Relaxed);
    }

    /// A distance. The generator is `splitmix64` (Steele, Lea, Flood 2014).
    fn draw(&self) -> u64 {
        let state = self.chance.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.chance.store(state, Ordering::Relaxed);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let (z, span) = (z ^ z >> 31, u64::from(self.rate) * 2 - 1);
        // The upper half of a product: as even as a remainder, without a division.
        let (_, drawn) = z.carrying_mul(span, 0);
        1 + drawn
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling").field("rate", &self.rate).finish_non_exhaustive()
    }
}
