//! Packed virtqueues (virtio 1.2, sections 2.8.10, 2.8.14 and 2.8.21), driver side.

use super::{Guard, Point};

/// What an event suppression structure asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// RING_EVENT_FLAGS_ENABLE: whatever comes.
    Any,
    /// RING_EVENT_FLAGS_DISABLE.
    Nothing,
    /// RING_EVENT_FLAGS_DESC: a descriptor's offset, and its wrap counter in bit 15.
    At(u16),
}

impl Wish {
    /// The structure as one little-endian word.
    #[inline]
    pub fn encode(self) -> u32 {
        match self {
            Self::Any => 0,
            Self::Nothing => 1 << 16,
            Self::At(place) => 2 << 16 | u32::from(place),
        }
    }

    /// From such a word; what is reserved is taken for any.
    #[inline]
    pub fn decode(word: u32) -> Self {
        match word >> 16 {
            1 => Self::Nothing,
            2 => Self::At(u16::try_from(word & 0xffff).unwrap_or(0)),
            _ => Self::Any,
        }
    }
}

/// The words of a ring that the two sides meet at.
pub trait PackedFields: Guard {
    /// Stores the flags that make the posted descriptors available: release.
    fn show(&self);
    /// The device's event structure, relaxed.
    fn device_wish(&self) -> Wish;
    /// Ours, relaxed.
    fn set_driver_wish(&self, wish: Wish);
    /// Looks at used descriptors, acquire: have `after` more slots been used than were taken back,
    /// or has the device passed the place where it would tell us so?
    fn is_met(&self, after: u16) -> bool;
}

/// Shows the device `count` descriptors, behind which the ring of `size` goes on at `to` (offset,
/// wrap counter in bit 15); true when the device asked for a doorbell.
#[inline]
#[must_use]
pub fn publish(words: &impl PackedFields, to: u16, count: u16, size: u16) -> bool {
    words.show();
    words.fence(Point::PackedPublish);
    match words.device_wish() {
        Wish::Any => true,
        Wish::Nothing => false,
        Wish::At(place) => {
            let behind = distance(place, to, size);
            (1..=u32::from(count)).contains(&behind)
        }
    }
}

/// How many descriptors lie from one place up to another, in the two laps that wrap counters tell
/// apart.
#[inline]
pub fn distance(from: u16, to: u16, size: u16) -> u32 {
    let size = u32::from(size);
    let linear = |at: u16| u32::from(at & 0x7fff) + size * u32::from(at >> 15 == 0);
    (linear(to) + 2 * size - linear(from)) % (2 * size)
}

/// States the wish for an interrupt once `after` more slots (at least one) are used, which is when
/// the descriptor at `place` is; then looks again: true when that is already so and sleeping would
/// be wrong. Without EVENT_IDX every used slot interrupts, and is news.
#[inline]
#[must_use]
pub fn arm(words: &impl PackedFields, place: u16, after: u16, event_idx: bool) -> bool {
    words.set_driver_wish(if event_idx { Wish::At(place) } else { Wish::Any });
    words.fence(Point::PackedArm);
    let after = if event_idx { after.max(1) } else { 1 };
    words.has_second_look(Point::PackedLook) && words.is_met(after)
}

/// Takes the wish back.
#[inline]
pub fn disarm(words: &impl PackedFields) {
    words.set_driver_wish(Wish::Nothing);
}
