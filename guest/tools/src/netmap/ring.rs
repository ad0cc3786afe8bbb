//! What transmit and receive rings have in common.

use super::cursors::Cursors;
use vmlan_driver::nic::Nic;

/// One of a port's rings, borrowed by the program: [`Tx`](super::Tx) or [`Rx`](super::Rx). `own` is
/// what only one of them has.
#[derive(Debug)]
pub struct Ring<'a, N, T: ?Sized> {
    pub(super) device: &'a N,
    pub(super) lane: usize,
    pub(super) at: &'a mut Cursors,
    pub(super) own: &'a mut T,
}

impl<N: Nic, T: ?Sized> Ring<'_, N, T> {
    /// Slots of the ring. The program never owns all of them.
    pub fn slots(&self) -> u16 {
        self.at.slots()
    }

    /// The oldest frame received, or the first slot to fill.
    #[inline]
    pub fn head(&self) -> u16 {
        self.at.head
    }

    /// The slot to go on with: waiting ends when `tail` is beyond it.
    #[inline]
    pub fn cur(&self) -> u16 {
        self.at.cur
    }

    /// The first slot that is not the program's.
    #[inline]
    pub fn tail(&self) -> u16 {
        self.at.tail
    }

    /// Slots from `cur` to `tail`.
    #[inline]
    pub fn space(&self) -> u16 {
        self.at.space()
    }

    /// Does the program own no slot?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at.head == self.at.tail
    }

    /// The slot after `at`.
    #[inline]
    pub fn next(&self, at: u16) -> u16 {
        self.at.ahead(at, 1)
    }

    /// Moves `cur`.
    ///
    /// # Panics
    /// When `to` is not from `head` to `tail`.
    #[inline]
    pub fn set_cur(&mut self, to: u16) {
        self.at.set_cur(to);
    }
}
