//! What wakes a sleeper: an eventfd or an interrupt, which stays pending until it is taken.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const RAISED: u32 = 1;
const RAISER: u32 = 2;

/// The wire to a sleeper.
pub struct Wire(AtomicU32);

impl Wire {
    /// So many threads may raise it.
    pub fn new(raisers: u32) -> Self {
        Self(AtomicU32::new(RAISER * raisers))
    }

    /// One thread more.
    pub fn join_in(&self) {
        self.0.fetch_add(RAISER, Ordering::AcqRel);
    }

    pub fn raise_if(&self, wanted: bool) {
        if wanted {
            self.0.fetch_or(RAISED, Ordering::AcqRel);
        }
    }

    /// One thread less.
    pub fn end(&self) {
        self.0.fetch_sub(RAISER, Ordering::AcqRel);
    }

    /// All is said.
    pub fn is_over(&self) -> bool {
        self.0.fetch_or(0, Ordering::AcqRel) < RAISER
    }

    /// Takes it, if it is raised.
    pub fn was_raised(&self) -> bool {
        self.0.fetch_and(!RAISED, Ordering::AcqRel) & RAISED != 0
    }

    /// Sleeps until it is raised, and some time longer. False: it never is.
    pub fn sleep(&self) -> bool {
        loop {
            let word = self.0.fetch_and(!RAISED, Ordering::AcqRel);
            if word & RAISED != 0 || word == 0 {
                return word != 0;
            }
            thread::yield_now();
        }
    }
}

/// One who sleeps whenever there is nothing to take.
pub trait Sleeper {
    /// Takes what there is; returns how much that makes in all, or nothing when one was lost.
    fn take(&mut self) -> Option<u32>;
    /// States the wish. True: there is something new, do not sleep.
    fn arm(&mut self) -> bool;
    /// Takes the wish back.
    fn disarm(&mut self);
    /// Sleeps; false when that would be for ever.
    fn sleep(&mut self) -> bool;
}

/// The life of a sleeper, until it has taken `all`, each of which is new twice at most. What went
/// wrong is to be looked at once the other thread is joined, for loom cannot abandon a thread.
pub fn live(all: u32, sleeper: &mut impl Sleeper) -> Result<(), &'static str> {
    let mut looks = 0;
    loop {
        match sleeper.take() {
            None => return Err("lost frame"),
            Some(n) if n == all => break,
            Some(_) => {}
        }
        if sleeper.arm() {
            looks += 1;
            if looks > 2 * all {
                return Err("no sleep");
            }
        } else if !sleeper.sleep() {
            return Err("lost wake-up");
        }
        sleeper.disarm();
    }
    if sleeper.arm() { Err("no sleep") } else { Ok(()) }
}

/// Fails by what went wrong.
pub fn judge(end: Result<(), &'static str>) {
    if let Err(what) = end {
        panic!("{what}");
    }
}
