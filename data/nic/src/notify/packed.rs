//! The notification protocol of a packed ring (virtio 1.2 sections 2.8.10 and 2.8.14), device side.
//!
//! Both rules of [`super`], as in [`super::virtqueue`]. What is published are the descriptors'
//! flags; the wishes are in a structure of four bytes for each side, which is read and written as a
//! whole.

use super::{Guard, Point};

/// `RING_EVENT_FLAGS_ENABLE`: any buffer notifies.
pub const ENABLE: u16 = 0;
/// `RING_EVENT_FLAGS_DISABLE`: none does.
pub const DISABLE: u16 = 1;
/// `RING_EVENT_FLAGS_DESC`: the descriptor at a certain place does.
pub const DESC: u16 = 2;

/// An event suppression structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The place: offset in the ring, with the wrap counter in bit 15.
    pub at: u16,
    /// One of the three; others are reserved.
    pub flags: u16,
}

impl Event {
    /// From the four bytes, as a little-endian number.
    #[inline]
    pub fn from_word(word: u32) -> Self {
        let [a, b, c, d] = word.to_le_bytes();
        Self { at: u16::from_le_bytes([a, b]), flags: u16::from_le_bytes([c, d]) }
    }

    /// As four bytes.
    #[inline]
    pub fn word(self) -> u32 {
        u32::from(self.at) | u32::from(self.flags) << 16
    }
}

/// The words of a ring by which the two sides speak.
pub trait PackedFields: Guard {
    /// Whether the next descriptor that we have not read is available: acquire.
    fn is_available(&self) -> bool;
    /// The driver's event suppression structure: relaxed, at once.
    fn driver_event(&self) -> Event;
    /// Ours: relaxed, at once.
    fn set_device_event(&self, event: Event);
}

/// After used descriptors were written, `count` of them up to the place `to` of a ring of `size`:
/// whether the driver wants an interrupt for them.
///
/// # Errors
/// The offset that the driver named, if it is beyond the ring.
#[inline]
pub fn publish(words: &impl PackedFields, to: u16, count: u16, size: u16) -> Result<bool, u16> {
    words.full_fence(Point::PackedPublish);
    let event = words.driver_event();
    if event.flags != DESC {
        return Ok(event.flags != DISABLE);
    }
    let off = event.at & 0x7fff;
    if off >= size {
        return Err(off);
    }
    Ok(passed(event.at, to, count, size))
}

/// True if going on by `count` descriptors to the place `to` passes that at `event`.
#[inline]
pub fn passed(event: u16, to: u16, count: u16, size: u16) -> bool {
    // Distances are counted in a circle of two laps.
    let laps = 2 * u32::from(size);
    let place = |at: u16| u32::from(at & 0x7fff) + if at >> 15 == 0 { u32::from(size) } else { 0 };
    let back = (place(to) + laps - 1 - place(event)) % laps;
    back < u32::from(count)
}

/// Asks for a doorbell when the descriptor at the place `at` becomes available, the first that we
/// have not read. Returns true if it is already: then do not sleep, nobody may ring. `event_idx`:
/// whether `VIRTIO_F_EVENT_IDX` was negotiated.
#[inline]
pub fn arm(words: &impl PackedFields, at: u16, event_idx: bool) -> bool {
    let wish = if event_idx { Event { at, flags: DESC } } else { Event { at: 0, flags: ENABLE } };
    words.set_device_event(wish);
    words.full_fence(Point::PackedArm);
    words.looks_again(Point::PackedLook) && words.is_available()
}
