//! Chance, the same in each run, and what guests do by it.

use std::time::{Duration, Instant};

/// Pseudo-random numbers (xorshift64). Not from 0, which stays 0.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Frames until the next pause: often just a few, so that every length of a burst up to a
    /// ring's size meets a sleeping peer.
    pub fn stretch(&mut self) -> u64 {
        if self.below(16) > 0 { 1 + self.below(300) } else { self.below(20_000) }
    }

    /// Longer than the switch spins (20 us), so that it sleeps; or just about that long, so that it
    /// is caught falling asleep.
    pub fn pause(&mut self) {
        let end = Instant::now() + Duration::from_micros(15 + self.below(120));
        if self.below(2) == 0 {
            std::thread::sleep(end - Instant::now());
        }
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}
