//! vmxnet3's doorbells, device side: `txThreshold` of a queue's descriptor.
//!
//! | what is new | published by | wish | stated by |
//! | --- | --- | --- | --- |
//! | frames to send | generation bits | `txThreshold`: 1; else 2^32 - 1 | [`arm`] |
//! | buffers to fill | generation bits | none | - |
//!
//! The driver counts the frames that it has not rung for, and rings when there are as many as the
//! threshold. It reads the threshold for each frame, so it may change at any time.
//!
//! # Drivers without a fence
//!
//! The rule is the usual one: the driver stores a generation bit, then reads the wish; the worker
//! states the wish, then looks again. But no driver has a full fence between its two (Linux 6.1's
//! has not a single locked instruction there), so its load may be done first, while its store waits
//! in the processor's buffer: it reads that no doorbell is wanted, the worker sees no frame, and
//! both are content. Only the last frame before silence is lost so, since at a threshold of 1 each
//! later one rings.
//!
//! So there is a third look, [`later`]. A store leaves the buffer within nanoseconds, or a few
//! microseconds under contention; an interrupt or an exit of the virtual machine between the two
//! throws the early load away. [`LATER`] is far more than that. Once the third look has found
//! nothing, every load that may have been early is done, and the wish stands for all that follow:
//! no further look is needed until the wish is taken back and stated again.
//!
//! # Buffers
//!
//! There is a wish for buffers as well, `updateRxProd`. It stays 0. Whoever waits for buffers looks
//! every so often in any case (`Port::posts_silently`), since a driver without a fence, or one that
//! rings at every sixteenth place only, may post some in silence. A doorbell beside that wakes the
//! worker for the first buffer instead of for many, and holds the driver up each time.
//!
//! `txNumDeferred` is the driver's, and left alone.

use super::{Guard, Point};

/// Nanoseconds from the wish to the third look.
pub const LATER: u64 = 50_000;

/// The wish.
pub trait DeferredFields: Guard {
    /// States it, or takes it back; relaxed.
    fn set_wanted(&self, wanted: bool);
}

/// The worker is about to sleep: states the wish. Returns what `look`, the second look, says: true
/// if there is something, then do not sleep. If not, [`later`] is to be called after [`LATER`].
#[inline]
#[must_use]
pub fn arm(words: &impl DeferredFields, look: impl FnOnce() -> bool) -> bool {
    words.set_wanted(true);
    words.full_fence(Point::DeferredArm);
    words.looks_again(Point::DeferredLook) && look()
}

/// The third look: true if there is something that nobody may ever ring for.
#[inline]
#[must_use]
pub fn later(words: &impl Guard, look: impl FnOnce() -> bool) -> bool {
    words.looks_again(Point::DeferredLater) && look()
}

/// The worker is awake and looks by itself.
#[inline]
pub fn disarm(words: &impl DeferredFields) {
    words.set_wanted(false);
}
