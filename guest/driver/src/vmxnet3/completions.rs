//! A ring in which the device reports what it has done. A bit in each report, which alternates from
//! lap to lap, says that it is new.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::chip::ALIGN;
use vmlan_transport::memory::{Pool, Ram, View};

const GENERATION: u64 = 1 << 63;

/// The ring.
#[derive(Debug)]
pub(super) struct Completions {
    words: View<AtomicU64>,
    gpa: u64,
    size: u16,
    /// The next one to look at, and whether it is on an odd lap, as the first one is.
    next: u16,
    lap: bool,
}

impl Completions {
    /// The RAM that so many reports take.
    pub(super) fn ram_bytes(size: usize) -> usize {
        16 * size + ALIGN
    }

    pub(super) fn new(ram: &Arc<Ram>, low: &mut Pool, size: u16) -> Self {
        let at = low.take(16 * usize::from(size), ALIGN);
        let words = ram.view(at, 2 * usize::from(size));
        Self { words, gpa: ram.guest_phys(at), size, next: 0, lap: true }
    }

    pub(super) fn reset(&mut self) {
        self.words.iter().for_each(|word| word.store(0, Relaxed));
        (self.next, self.lap) = (0, true);
    }

    /// For the device: its address, and how many reports it has.
    pub(super) fn ring(&self) -> (u64, u16) {
        (self.gpa, self.size)
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    pub(super) fn next(&self) -> u16 {
        self.next
    }

    #[inline]
    pub(super) fn after(&self, at: u16) -> u16 {
        if at + 1 == self.size { 0 } else { at + 1 }
    }

    /// The place `ahead` (fewer than all) after the next, and its lap. There are 8,192 at most, so
    /// nothing overflows.
    #[inline]
    fn place(&self, ahead: u16) -> (u16, bool) {
        let at = self.next + ahead;
        if at >= self.size { (at - self.size, !self.lap) } else { (at, self.lap) }
    }

    /// The last two words of the report `ahead` (fewer than all) after the next, if it has come.
    #[inline]
    pub(super) fn look(&self, ahead: u16) -> Option<u64> {
        let (at, lap) = self.place(ahead);
        let word = u64::from_le(self.words[2 * usize::from(at) + 1].load(Acquire));
        (word & GENERATION != 0).eq(&lap).then_some(word)
    }

    /// The first two words of the report `ahead` after the next, which has come.
    #[inline]
    pub(super) fn first(&self, ahead: u16) -> u64 {
        let (at, _) = self.place(ahead);
        u64::from_le(self.words[2 * usize::from(at)].load(Relaxed))
    }

    /// Passes over the next report; where it was.
    #[inline]
    pub(super) fn pass(&mut self) -> u16 {
        let at = self.next;
        self.next = self.after(at);
        self.lap ^= self.next == 0;
        at
    }
}
