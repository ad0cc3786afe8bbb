//! A virtqueue of the layout that was negotiated.

use std::sync::Arc;

use super::packed::PackedRing;
use super::{Audit, Places, RingOptions, Segment, SplitRing};
use vmlan_transport::memory::{Pool, Ram};

/// The driver's side of one virtqueue. What the calls do: see [`SplitRing`], [`PackedRing`].
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

/// Does the same with either.
macro_rules! each {
    ($self:expr, $ring:ident => $does:expr) => {
        match $self {
            Self::Split($ring) => $does,
            Self::Packed($ring) => $does,
        }
    };
}

impl Ring {
    /// A ring whose parts are taken from `low`, the pool of the RAM's low region; all slots are
    /// free.
    pub fn new(ram: &Arc<Ram>, low: &mut Pool, options: RingOptions) -> Self {
        if options.packed {
            Self::Packed(PackedRing::new(ram, low, options))
        } else {
            Self::Split(SplitRing::new(ram, low, options))
        }
    }

    /// See [`SplitRing::places`].
    pub fn places(&self) -> Places {
        each!(self, ring => ring.places())
    }

    /// See [`SplitRing::options`].
    #[inline]
    pub fn options(&self) -> RingOptions {
        each!(self, ring => ring.options())
    }

    /// See [`SplitRing::bad_used`].
    pub fn bad_used(&self) -> u64 {
        each!(self, ring => ring.bad_used())
    }

    /// See [`SplitRing::free_slots`].
    #[inline]
    pub fn free_slots(&self) -> u16 {
        each!(self, ring => ring.free_slots())
    }

    /// See [`SplitRing::outstanding`].
    #[inline]
    pub fn outstanding(&self) -> u16 {
        each!(self, ring => ring.outstanding())
    }

    /// See [`SplitRing::audit`].
    pub fn audit(&self) -> Audit {
        each!(self, ring => ring.audit())
    }

    /// See [`SplitRing::write_slot`].
    pub fn write_slot(&mut self, slot: u16, writable: bool, segments: &[Segment]) {
        each!(self, ring => ring.write_slot(slot, writable, segments));
    }

    /// See [`SplitRing::take`].
    #[inline]
    pub fn take(&mut self) -> Option<u16> {
        each!(self, ring => ring.take())
    }

    /// See [`SplitRing::free_ahead`].
    #[inline]
    pub fn free_ahead(&self, ahead: u16) -> u16 {
        each!(self, ring => ring.free_ahead(ahead))
    }

    /// See [`SplitRing::release`].
    #[inline]
    pub fn release(&mut self, slot: u16) {
        each!(self, ring => ring.release(slot));
    }

    /// See [`SplitRing::post`].
    #[inline]
    pub fn post(&mut self, slot: u16) {
        each!(self, ring => ring.post(slot));
    }

    /// See [`SplitRing::publish`].
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        each!(self, ring => ring.publish())
    }

    /// See [`SplitRing::has_used`].
    #[inline]
    pub fn has_used(&mut self) -> bool {
        each!(self, ring => ring.has_used())
    }

    /// See [`SplitRing::next_used`].
    #[inline(always)] // As below.
    pub fn next_used(&mut self) -> Option<(u16, u32)> {
        each!(self, ring => ring.next_used())
    }

    /// See [`SplitRing::arm`].
    #[must_use]
    pub fn arm(&mut self, after: u16) -> bool {
        each!(self, ring => ring.arm(after))
    }

    /// See [`SplitRing::disarm`].
    pub fn disarm(&mut self) {
        each!(self, ring => ring.disarm());
    }

    /// See [`SplitRing::reset`].
    pub fn reset(&mut self) {
        each!(self, ring => ring.reset());
    }

    /// What SET_VRING_BASE is told: see [`SplitRing::base`], [`PackedRing::base`].
    pub fn base(&self) -> u32 {
        match self {
            Self::Split(ring) => ring.base().into(),
            Self::Packed(ring) => ring.base(),
        }
    }

    /// Notes where the device stopped, as GET_VRING_BASE has said.
    pub fn set_base(&mut self, base: u32) {
        if let Self::Packed(ring) = self {
            ring.set_base(base);
        }
    }
}
