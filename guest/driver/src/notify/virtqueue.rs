//! Split virtqueues (virtio 1.2, sections 2.7.7, 2.7.10, 2.7.13 and 2.7.14), driver side.

use super::{Guard, Point};

const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// The words of a ring that are not entries.
pub trait VirtqueueFields: Guard {
    /// `avail.idx`, release: the entries before it are written.
    fn set_avail_idx(&self, idx: u16);
    /// `avail.flags`, relaxed.
    fn set_avail_flags(&self, flags: u16);
    /// `used_event`, relaxed.
    fn set_used_event(&self, idx: u16);
    /// `used.idx`, acquire.
    fn used_idx(&self) -> u16;
    /// `used.flags`, relaxed.
    fn used_flags(&self) -> u16;
    /// `avail_event`, relaxed.
    fn avail_event(&self) -> u16;
}

/// `VIRTQ_NEED_EVENT` (2.7.7.2): has `event` been passed on the way from `old` to `new`?
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Moves `avail.idx` from `old` to `new`; true when the device asked for a doorbell (2.7.13, steps
/// 4 to 7).
#[inline]
#[must_use]
pub fn publish(words: &impl VirtqueueFields, old: u16, new: u16, event_idx: bool) -> bool {
    words.set_avail_idx(new);
    words.fence(Point::VirtqueuePublish);
    if event_idx {
        need_event(words.avail_event(), new, old)
    } else {
        words.used_flags() & USED_F_NO_NOTIFY == 0
    }
}

/// States the wish for an interrupt once `used.idx` is `after` (at least one) beyond `from`, then
/// looks again: true when that is already so and sleeping would be wrong. Without EVENT_IDX every
/// used buffer interrupts, and is news.
#[inline]
#[must_use]
pub fn arm(words: &impl VirtqueueFields, from: u16, after: u16, event_idx: bool) -> bool {
    let after = after.max(1);
    if event_idx {
        words.set_used_event(from.wrapping_add(after - 1));
    } else {
        words.set_avail_flags(0);
    }
    words.fence(Point::VirtqueueArm);
    words.has_second_look(Point::VirtqueueLook)
        && words.used_idx().wrapping_sub(from) >= if event_idx { after } else { 1 }
}

/// Takes the wish back. With EVENT_IDX the event is put as far away as it can be: behind `from`.
#[inline]
pub fn disarm(words: &impl VirtqueueFields, from: u16, event_idx: bool) {
    if event_idx {
        words.set_used_event(from.wrapping_sub(1));
    } else {
        words.set_avail_flags(AVAIL_F_NO_INTERRUPT);
    }
}
