//! Samples: one frame of so many, chosen at random.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

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
/// Workers that serve different lanes of the port wait for each other, for as long as choosing
/// takes.
pub struct Sampling {
    rate: u32,
    pool: Mutex<Pool>,
    sampler: Arc<dyn Sampler>,
}

/// Where a port's frames stand between two samples.
struct Pool {
    /// Frames until the next sample, it included; never 0.
    left: u64,
    /// Number of the next sample among all frames.
    next: u64,
    chance: u64,
}

impl Sampling {
    /// One frame of `rate` (at least 1) on average, for `sampler`. The same `seed` chooses the same
    /// frames.
    pub fn new(rate: u32, seed: u64, sampler: Arc<dyn Sampler>) -> Self {
        let rate = rate.max(1);
        let mut pool = Pool { left: 1, next: 1, chance: seed };
        pool.left = pool.draw(rate);
        pool.next = pool.left;
        Self { rate, pool: Mutex::new(pool), sampler }
    }

    /// Who takes the samples.
    pub fn sampler(&self) -> &dyn Sampler {
        &*self.sampler
    }

    /// `frames` frames have passed; `each` is called for those of them that are samples, with their
    /// place among the `frames` and their number among all.
    #[inline]
    pub fn pass(&self, frames: usize, each: impl FnMut(usize, u64)) {
        // Whoever panicked with it left numbers, and any numbers will do.
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match pool.left.checked_sub(frames as u64) {
            Some(rest) if rest > 0 => pool.left = rest,
            _ => pool.choose(self.rate, frames as u64, each),
        }
    }
}

impl Pool {
    #[cold]
    fn choose(&mut self, rate: u32, mut frames: u64, mut each: impl FnMut(usize, u64)) {
        let mut place = 0;
        while self.left <= frames {
            frames -= self.left;
            place += self.left;
            each(usize::try_from(place - 1).unwrap_or(usize::MAX), self.next);
            self.left = self.draw(rate);
            self.next = self.next.wrapping_add(self.left);
        }
        self.left -= frames;
    }

    /// A distance. The generator is `splitmix64` (Steele, Lea, Flood 2014).
    fn draw(&mut self, rate: u32) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.chance;
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let (z, span) = (z ^ z >> 31, u64::from(rate) * 2 - 1);
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
