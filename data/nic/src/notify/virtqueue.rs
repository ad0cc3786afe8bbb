//! The notification protocol of a split ring (virtio 1.2 sections 2.7.7 and 2.7.10), device side.
//!
//! Both rules of [`super`], as publisher ([`publish`]) and as sleeper ([`arm`]). Whichever fence
//! comes first in the order of all fences, the later side sees what the earlier wrote: so either
//! the publisher sees the wish and rings, or the sleeper sees what is new and stays awake.

use super::{Guard, Point};

/// The driver's flag: no interrupts, please (`VIRTQ_AVAIL_F_NO_INTERRUPT`).
pub const NO_INTERRUPT: u16 = 1;
/// The device's flag: no doorbells, please (`VIRTQ_USED_F_NO_NOTIFY`).
pub const NO_NOTIFY: u16 = 1;

/// The words of a ring by which the two sides speak.
pub trait VirtqueueFields: Guard {
    /// `avail.idx`, acquire.
    fn avail_idx(&self) -> u16;
    /// `avail.flags`, relaxed.
    fn avail_flags(&self) -> u16;
    /// `used_event`, behind the avail ring, relaxed.
    fn used_event(&self) -> u16;
    /// `used.idx`, release.
    fn set_used_idx(&self, idx: u16);
    /// `used.flags`, relaxed.
    fn set_used_flags(&self, flags: u16);
    /// `avail_event`, behind the used ring, relaxed.
    fn set_avail_event(&self, idx: u16);
}

/// Publishes the buffers used since `old`, so that `used.idx` is `new`. Returns true if the driver
/// wants an interrupt for them. `event_idx`: whether `VIRTIO_F_EVENT_IDX` was negotiated.
#[inline]
pub fn publish(words: &impl VirtqueueFields, old: u16, new: u16, event_idx: bool) -> bool {
    words.set_used_idx(new);
    words.full_fence(Point::VirtqueuePublish);
    if event_idx {
        crossed(words.used_event(), old, new)
    } else {
        words.avail_flags() & NO_INTERRUPT == 0
    }
}

/// Asks for a doorbell when a buffer becomes available after the first `seen` (an index as in
/// `avail.idx`). Returns true if one has already: then do not sleep, nobody may ring.
#[inline]
pub fn arm(words: &impl VirtqueueFields, seen: u16, event_idx: bool) -> bool {
    if event_idx {
        words.set_avail_event(seen);
    } else {
        words.set_used_flags(0);
    }
    words.full_fence(Point::VirtqueueArm);
    words.looks_again(Point::VirtqueueLook) && words.avail_idx() != seen
}

/// Takes the wish back. With event indexes nothing is written: the one stated before has been
/// passed, and stays so for the next 65,535 buffers.
#[inline]
pub fn disarm(words: &impl VirtqueueFields, event_idx: bool) {
    if !event_idx {
        words.set_used_flags(NO_NOTIFY);
    }
}

/// True if moving an index from `old` to `new` passes `event` (`vring_need_event`, section 2.7.10).
#[inline]
pub fn crossed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
