//! Two guests see each other fall asleep, whatever their speeds: now and then one waits for the
//! other to sleep before it goes on, so that every wake-up is tried often on any machine.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::numbered::Progress;
use crate::random::Random;

/// At work.
const AWAKE: u8 = 0;
/// Waits for an interrupt.
const ASLEEP: u8 = 1;
/// Waits for the other to fall asleep.
const WAITS: u8 = 2;
/// Has nothing to do any more.
const DONE: u8 = 3;

/// What one of the two is doing, for the other to see.
#[derive(Debug, Default)]
pub struct Sleeper(AtomicU8);

impl Sleeper {
    /// Does what sleeps until an interrupt.
    pub fn sleep<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.store(ASLEEP, Ordering::SeqCst);
        let woken = wait();
        self.0.store(AWAKE, Ordering::SeqCst);
        woken
    }

    /// It will neither sleep nor wait any more.
    pub fn done(&self) {
        self.0.store(DONE, Ordering::SeqCst);
    }

    /// Once in a few calls: waits until `other` sleeps, waits as well, or is done. To be called by
    /// the one who has left `other` nothing to do.
    ///
    /// # Panics
    /// When it goes on and on.
    pub fn sometimes_wait_for(&self, other: &Self, random: &mut Random) {
        if random.below(4) > 0 {
            return;
        }
        self.0.store(WAITS, Ordering::SeqCst);
        let mut progress = Progress::default();
        while other.0.load(Ordering::SeqCst) == AWAKE {
            progress.note(0, || "the other one never sleeps".into());
        }
        self.0.store(AWAKE, Ordering::SeqCst);
    }
}
