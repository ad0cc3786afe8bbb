//! Places in a packed ring, and how the one where a device left off is found again.

use std::sync::atomic::Ordering::Relaxed;

use vmlan_ram::Window;

use super::super::Fault;
use super::super::desc::NEXT;
use super::{USED, off};

/// A descriptor, in a lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u16,
    /// The wrap counter (virtio 1.2 section 2.8.1).
    pub(super) wrap: bool,
}

impl Place {
    /// Where a new ring begins.
    pub(super) const START: Self = Self { slot: 0, wrap: true };

    /// Goes on by `n` descriptors, at most a lap.
    #[inline]
    pub(super) fn pass(&mut self, n: u16, size: u16) {
        let to = u32::from(self.slot) + u32::from(n);
        if to >= u32::from(size) {
            self.wrap = !self.wrap;
        }
        self.slot = after(self.slot, n, size);
    }

    /// As in an event suppression structure, and in each half of `SET_VRING_BASE`: the slot, and
    /// the wrap counter in bit 15.
    pub(super) fn event(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    /// From the lower half of `SET_VRING_BASE`.
    ///
    /// # Errors
    /// [`Fault::Base`] beyond the ring.
    pub(super) fn from_base(base: u16, size: u16) -> Result<Self, Fault> {
        let place = Self { slot: base & 0x7fff, wrap: base >> 15 != 0 };
        if place.slot < size { Ok(place) } else { Err(Fault::Base(base)) }
    }
}

/// The slot `n` after `slot`, for n up to a lap.
#[inline]
pub(super) fn after(slot: u16, n: u16, size: u16) -> u16 {
    // Neither exceeds 32768, and together they are below 2^16: `slot` is below `size`.
    let to = slot.wrapping_add(n);
    if to >= size { to - size } else { to }
}

/// Where the device that served this ring stands.
///
/// In every descriptor that it passed in this lap, USED is as the wrap counter; in all behind them,
/// it is as in the lap before. That holds for descriptors that the driver has made available since,
/// and for a new ring, which is zero. So the place is where USED changes.
///
/// A device that ends while it marks a list has marked some of that list's last descriptors and not
/// the first. So those of the list at the place may be either way. Then USED changes more than
/// once, and one place explains it.
///
/// `None`: no place does. Somebody else wrote to this ring: a device that marks only the first
/// descriptor of a list, say. It knew its place, and said so before it stopped.
pub(super) fn find(ring: &Window, size: u16) -> Option<Place> {
    let flags = |slot: u16| ring.u16(off(slot) + 14, Relaxed);
    let used = |slot: u16| flags(slot) & USED != 0;
    let length = |slot: u16| {
        let more = |k: &u16| flags(after(slot, *k, size)) & NEXT != 0;
        (0..size - 1).take_while(more).count() + 1
    };
    let explains = |slot: &u16| {
        let (wrap, length) = (!used(*slot), length(*slot));
        let inside = |i: u16| usize::from((size - slot + i) % size) < length;
        (0..size).all(|i| used(i) == (wrap == (i < *slot)) || inside(i))
    };
    let changes = (1..size).filter(|i| used(*i) != used(i - 1)).take(MOST_CHANGES);
    let mut places = std::iter::once(0).chain(changes);
    places.find(explains).map(|slot| Place { slot, wrap: !used(slot) })
}

/// How often USED can change in a ring that a place explains: at the place, and at each end of what
/// was marked of a list, which may cross the ring's end.
const MOST_CHANGES: usize = 4;
