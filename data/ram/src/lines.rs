//! Cache lines that will be wanted soon.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::{SliceMut, Window, bytes};

/// Lines noted, at most.
const MOST: usize = 15;

/// The addresses of cache lines that the next visit of something will touch. Whoever is about to
/// come asks the CPU for them, without the lock that guards what lies there.
///
/// They are asked for and never read: an address that is no longer mapped, or is somebody else's
/// now, costs a useless request at most.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Lines {
    addresses: [AtomicUsize; MOST],
    /// In the same lines.
    wanted: AtomicBool,
}

/// Notes lines, from the first on; those beyond the last place are left out. When this ends, so
/// does the list.
#[derive(Debug)]
pub struct Noting<'l> {
    places: std::slice::Iter<'l, AtomicUsize>,
}

impl Lines {
    /// Asks for all lines, to write to them, and wants the next ones to be noted.
    #[inline]
    pub fn prefetch(&self) {
        if !self.wanted.load(Relaxed) {
            self.wanted.store(true, Relaxed);
        }
        self.noted().for_each(|at| bytes::prefetch(std::ptr::without_provenance(at), true));
    }

    /// True if somebody has asked for lines. If nobody does, noting them is a waste.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Begins the list anew.
    #[inline]
    pub fn note(&self) -> Noting<'_> {
        self.wanted.store(false, Relaxed);
        Noting { places: self.addresses.iter() }
    }

    /// The addresses, for tests.
    #[inline]
    pub fn noted(&self) -> impl Iterator<Item = usize> {
        self.addresses.iter().map(|place| place.load(Relaxed)).take_while(|at| *at != 0)
    }
}

impl Noting<'_> {
    #[inline]
    fn address(&mut self, address: usize) {
        if let Some(place) = self.places.next() {
            place.store(address, Relaxed);
        }
    }

    /// The line of one of our own values.
    #[inline]
    pub fn value<T: ?Sized>(&mut self, value: &T) {
        self.address(std::ptr::from_ref(value).addr());
    }

    /// The line that has the byte at `offset` of a ring.
    #[inline]
    pub fn ring(&mut self, ring: &Window, offset: usize) {
        self.address(ring.slice(offset, 1).as_raw().0.addr());
    }

    /// The line that has the byte at `offset` of a buffer.
    #[inline]
    pub fn buffer(&mut self, buffer: &SliceMut<'_>, offset: usize) {
        self.address(buffer.address(offset));
    }
}

impl Drop for Noting<'_> {
    #[inline]
    fn drop(&mut self) {
        self.address(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_where_its_noting_ended() {
        let lines = Lines::default();
        let mut memory = [0; 256];
        let at = memory.as_ptr().addr();
        let buffer = SliceMut::from_bytes(&mut memory);
        let mut noting = lines.note();
        (0..MOST + 3).for_each(|i| noting.buffer(&buffer, i));
        drop(noting);
        assert_eq!(lines.noted().collect::<Vec<_>>(), (at..at + MOST).collect::<Vec<_>>());
        lines.note().buffer(&buffer, 7);
        assert_eq!(lines.noted().collect::<Vec<_>>(), [at + 7]);
        drop(lines.note());
        assert_eq!(lines.noted().count(), 0);
    }

    #[test]
    fn lines_are_wanted_until_they_are_noted() {
        let lines = Lines::default();
        assert!(!lines.is_wanted());
        lines.prefetch();
        assert!(lines.is_wanted());
        drop(lines.note());
        assert!(!lines.is_wanted());
    }

    /// Whatever stood there: nothing is read.
    #[test]
    fn addresses_that_are_not_mapped_do_no_harm() {
        let lines = Lines::default();
        let mut noting = lines.note();
        [1, 4096, usize::MAX, usize::MAX / 2].into_iter().for_each(|at| noting.address(at));
        drop(noting);
        lines.prefetch();
    }
}
