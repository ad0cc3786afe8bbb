//! Doorbells that ring only when somebody listens (DESIGN section 5).
//!
//! | the guest's side, [`ring`] | the worker, [`arm`] |
//! | --- | --- |
//! | store TDT (RDT) | store the wish |
//! | full fence | full fence |
//! | read the wish: ring if it stands | read TDT (RDT) again: sleep if there is nothing |
//!
//! Each side stores, then reads what the other stores, with a full fence between. So at least one of them sees the
//! other's store: either the guest's side rings, or the worker does not go to sleep. Whoever takes the wish away (a swap)
//! rings after that, so a second ringer that finds it gone relies on a bell that is still to come, and what it stored is
//! seen by the worker which that bell wakes. All changes of the wish are swaps, so that they stand in one order which every
//! thread can tell. `tests/loom.rs` tries every interleaving.

use std::sync::atomic::{AtomicBool, Ordering};

/// What the protocol touches; a trait, so that loom can run it.
pub trait Words {
    /// The worker wants to be rung.
    fn wanted(&self) -> bool;
    /// States the wish, or takes it back, by a swap.
    fn set_wanted(&self, wanted: bool);
    /// Takes the wish away, atomically; true if it stood.
    fn take_wanted(&self) -> bool;
    /// The fence between a store and a load.
    fn full_fence(&self);
}

/// The worker is about to sleep: states the wish. The caller then looks at the tail again, and sleeps only if it has
/// not moved.
#[inline]
pub fn arm(words: &impl Words) {
    words.set_wanted(true);
    words.full_fence();
}

/// The guest's side has stored a new tail. True: ring now.
#[inline]
#[must_use]
pub fn ring(words: &impl Words) -> bool {
    words.full_fence();
    words.wanted() && words.take_wanted()
}

/// The wish of one side of a chip.
#[derive(Debug, Default)]
pub struct Bell {
    wanted: AtomicBool,
}

impl Words for Bell {
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
    #[inline]
    fn full_fence(&self) {
        vmlan_ram::full_fence();
    }
}

impl Bell {
    /// See [`arm`].
    #[inline]
    pub fn arm(&self) {
        arm(self);
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
