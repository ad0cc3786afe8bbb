//! Doorbells that ring only when somebody listens.
//!
//! | the guest's side, [`ring`] | the worker, [`arm`] |
//! | --- | --- |
//! | store TDT (RDT) | store the wish |
//! | full fence | full fence |
//! | read the wish: ring if it stands | read TDT (RDT) again: sleep if there is nothing |
//!
//! Each side stores, then reads what the other stores, with a full fence between. So at least one
//! of them sees the other's store: either the guest's side rings, or the worker does not go to
//! sleep. Whoever takes the wish away (a swap) rings after that, so a second ringer that finds it
//! gone relies on a bell that is still to come, and what it stored is seen by the worker which that
//! bell wakes. All changes of the wish are swaps, so that they stand in one order which every
//! thread can tell.
//!
//! A register that is mapped into the guest rings no bell. The worker arms all the same, for the
//! link and for registers that are not mapped, and looks again when its timer says so.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Guard, Point};
use crate::chip::state::Fields;

/// What the protocol touches; a trait, so that loom can run it.
pub trait BellFlag: Guard {
    /// The worker wants to be rung.
    fn wanted(&self) -> bool;
    /// States the wish, or takes it back, by a swap.
    fn set_wanted(&self, wanted: bool);
    /// Takes the wish away, atomically; true if it stood.
    fn take_wanted(&self) -> bool;
}

/// The worker is about to sleep: states the wish. Returns what `look`, the second look at the tail,
/// says: true if there is something to do, then do not sleep.
#[inline]
#[must_use]
pub fn arm(words: &impl BellFlag, look: impl FnOnce() -> bool) -> bool {
    words.set_wanted(true);
    words.full_fence(Point::BellArm);
    words.looks_again(Point::BellLook) && look()
}

/// The guest's side has stored a new tail. True: ring now.
#[inline]
#[must_use]
pub fn ring(words: &impl BellFlag) -> bool {
    words.full_fence(Point::BellRing);
    words.wanted() && words.take_wanted()
}

/// The wish of one side of a chip.
#[derive(Debug, Default)]
pub struct Bell {
    wanted: AtomicBool,
}

impl Guard for Bell {}

impl BellFlag for Bell {
    #[inline]
    fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
    #[inline]
    fn set_wanted(&self, wanted: bool) {
        self.wanted.swap(wanted, Ordering::AcqRel);
    }
    #[inline]
    fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }
}

impl Bell {
    /// See [`arm`].
    #[inline]
    #[must_use]
    pub fn arm(&self, look: impl FnOnce() -> bool) -> bool {
        arm(self, look)
    }

    /// The worker is awake and looks by itself.
    #[inline]
    pub fn disarm(&self) {
        self.set_wanted(false);
    }

    /// See [`ring`].
    #[inline]
    #[must_use]
    pub fn ring(&self) -> bool {
        ring(self)
    }
}

impl Bell {
    /// Passes the wish.
    pub(crate) fn fields(&self, io: &mut Fields<'_>) {
        let Self { wanted } = self;
        io.atomic_flag(wanted);
    }
}
