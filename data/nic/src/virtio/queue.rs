//! The device side of one virtqueue: what both layouts have, and what each has to bring
//! ([`Ring`]): [`super::split`], [`super::packed`].
//!
//! Buffers are numbered by *positions*, in the order in which the driver made them available:
//!
//! ```text
//!   done ........ next ........ fetched ........
//!   │ being used   │ heads read  │ not looked at
//!   └ all before was given back
//! ```

use std::sync::Arc;

use vmlan_ram::{DirtyLog, Map, Noting};

use super::desc::{Buffers, Desc};
use super::packed::Packed;
use super::split::Split;
use super::{Fault, Features, Inflight, Rings, feature};
use crate::Interrupt;
use crate::notify::Guard;

/// Positions whose heads can be held at a time.
pub(super) const HEADS: u16 = 256;

/// One ring, started, with what is particular to its layout.
pub(super) struct Queue<L> {
    pub(super) layout: L,
    pub(super) rings: Rings,
    pub(super) features: Features,
    pub(super) dirty: Option<Arc<DirtyLog>>,
    /// Next position to be used.
    pub(super) next: u16,
    /// First position that was not given back, as published.
    pub(super) done: u16,
    /// First position whose head has not been read.
    pub(super) fetched: u16,
    /// No interrupt was decided on since the start: the predecessor may have died before raising
    /// one.
    fresh: bool,
    /// The wish for doorbells stands.
    armed: bool,
    /// For how many buffers it was not meant: [`Ring::seen`] at that time.
    not_for: u16,
    pub(super) interrupt: Option<Arc<dyn Interrupt>>,
    pub(super) inflight: Option<Inflight>,
}

impl<L> Guard for Queue<L> {}

/// What a layout knows how to do. A *head* names a buffer between [`Ring::head`] and
/// [`Ring::stage`].
pub(super) trait Ring: Sized {
    /// The queue, if it has this layout.
    fn of(queue: &mut AnyQueue) -> Option<&mut Self>;

    /// The buffers of one descriptor chain.
    type Chain<'q>: Buffers
    where
        Self: 'q;

    /// Finds the ring's parts again, on another map or with other features.
    fn rebuild_windows(&mut self, map: &Arc<Map>) -> Result<(), Fault>;

    /// Looks for buffers; returns how many are known to be available and not yet taken, not 0 if
    /// there is one.
    ///
    /// # Errors
    /// A broken rule of the ring itself.
    fn look(&mut self) -> Result<u16, Fault>;

    /// Buffers available and not yet taken, as far as is known without another look.
    fn known(&self) -> u16;

    /// Reads heads, of at most [`HEADS`] positions from `base` on. Returns how many descriptors
    /// were read beyond one for each head.
    ///
    /// # Errors
    /// A broken rule of a head.
    fn fetch(&mut self, base: u16) -> Result<usize, Fault>;

    /// The head at `position`, which has been fetched.
    fn head(&self, position: u16) -> u16;

    /// The first descriptor of `head`, which is read once.
    fn desc(&self, head: u16) -> Result<Desc, Fault>;

    /// The buffers of the chain that begins with `first`, the descriptor of `head`.
    fn chain<'q>(&'q self, map: &'q Map, head: u16, first: Desc, write: bool) -> Self::Chain<'q>;

    /// Notes that the next chain was used, with `len` bytes written to it.
    fn stage(&mut self, map: &Map, head: u16, len: u32);

    /// Notes that the `n` chains after `done` were used, with nothing written to them. Nothing else
    /// is staged, and n is at most [`HEADS`].
    fn stage_unwritten(&mut self, n: u16);

    /// Writes what was staged and publishes it. `None`: nothing was. Else whether the driver wants
    /// an interrupt.
    fn expose(&mut self, map: &Map) -> Option<bool>;

    /// States the wish for a doorbell after the first `seen` buffers; true if there are more.
    fn state_wish(&mut self, seen: u16) -> bool;

    /// States that no doorbell is wanted, whatever stood there before.
    fn quiet(&self);

    /// Up to which position the driver's buffers have been seen.
    fn seen(&self) -> u16;

    /// True if something was used before this start.
    fn is_begun(&self) -> bool;

    /// What `GET_VRING_BASE` answers.
    fn base(&self) -> u32;

    /// Notes the lines of the ring that the next use touches.
    fn note_lines(&self, lines: &mut Noting<'_>);

    /// Notes how far it came in the inflight region.
    fn note(&self, inflight: &Inflight);

    /// Marks as written what a predecessor that was killed may have published, and not marked.
    fn mark_published(&self, map: &Map);
}

impl<L> Queue<L>
where
    Self: Ring,
{
    /// With all positions at `start`.
    pub(super) fn at(
        layout: L,
        rings: Rings,
        map: &Arc<Map>,
        features: Features,
        start: u16,
    ) -> Self {
        Self {
            layout,
            rings,
            features,
            dirty: map.log().cloned(),
            next: start,
            done: start,
            fetched: start,
            fresh: true,
            armed: false,
            not_for: start,
            interrupt: None,
            inflight: None,
        }
    }

    /// Moves to another map, or other features, with all indexes kept.
    pub(super) fn rebuild(&mut self, map: &Arc<Map>, features: Features) -> Result<(), Fault> {
        self.features = features;
        self.dirty = map.log().cloned();
        self.rebuild_windows(map)
    }

    pub(super) fn size(&self) -> u16 {
        self.rings.size
    }

    /// Publishes what was staged and raises the interrupt if the driver wants one; returns whether
    /// that told the driver at once.
    #[inline]
    pub(super) fn publish(&mut self, map: &Map) -> bool {
        let Some(wanted) = self.expose(map) else { return false };
        if let Some(inflight) = &self.inflight {
            self.note(inflight);
        }
        let first = std::mem::take(&mut self.fresh);
        match &self.interrupt {
            Some(interrupt) if wanted || first => interrupt.raise(),
            _ => false,
        }
    }

    #[inline]
    pub(super) fn event_idx(&self) -> bool {
        self.features.has(feature::EVENT_IDX)
    }

    /// Asks for a doorbell after the first `seen` buffers; true if there are more already.
    pub(super) fn arm(&mut self, seen: u16) -> bool {
        self.armed = true;
        self.not_for = seen;
        self.state_wish(seen)
    }

    /// Takes the wish back if buffers came since, which the driver rang for. An event index has
    /// passed by itself.
    #[inline]
    pub(super) fn disarm_if_met(&mut self) {
        if self.armed && self.seen() != self.not_for && !self.event_idx() {
            self.disarm();
        }
    }

    /// Takes the wish back, if it stands.
    #[inline]
    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.quiet();
        }
    }
}

/// A virtqueue of either layout.
pub(super) enum AnyQueue {
    Split(Queue<Split>),
    Packed(Queue<Packed>),
}

/// Does the same with either.
macro_rules! either {
    ($queue:expr, $q:ident => $does:expr) => {
        match $queue {
            $crate::virtio::queue::AnyQueue::Split($q) => $does,
            $crate::virtio::queue::AnyQueue::Packed($q) => $does,
        }
    };
}
pub(super) use either;

impl AnyQueue {
    /// Starts on `rings`, whose layout was negotiated. At most `staged` buffers are used before
    /// they are published.
    pub(super) fn new(
        rings: Rings,
        map: &Arc<Map>,
        features: Features,
        staged: usize,
    ) -> Result<Self, Fault> {
        let queue = if features.has(feature::RING_PACKED) {
            Self::Packed(Queue::<Packed>::new(rings, map, features, staged)?)
        } else {
            Self::Split(Queue::<Split>::new(rings, map, features)?)
        };
        either!(&queue, q => q.mark_published(map));
        Ok(queue)
    }

    /// Moves to another map, or other features, with all indexes kept.
    pub(super) fn rebuild(&mut self, map: &Arc<Map>, features: Features) -> Result<(), Fault> {
        either!(self, q => q.rebuild(map, features))
    }

    pub(super) fn set_log(&mut self, log: Option<u64>) {
        either!(self, q => q.rings.log = log);
    }

    pub(super) fn set_inflight(&mut self, inflight: Option<Inflight>) {
        // A predecessor may have published without noting it.
        either!(self, q => {
            inflight.iter().for_each(|inflight| q.note(inflight));
            q.inflight = inflight;
        });
    }

    /// Sets or removes the interrupt; what was published before it existed is reported now.
    pub(super) fn set_interrupt(&mut self, interrupt: Option<&Arc<dyn Interrupt>>) {
        if let Some(interrupt) = interrupt
            && either!(self, q => q.is_begun())
        {
            interrupt.raise();
        }
        either!(self, q => q.interrupt = interrupt.cloned());
    }

    /// Asks for a doorbell after what was taken (`wanted`), or for none.
    pub(super) fn begin(&mut self, wanted: bool) {
        either!(self, q => if wanted {
            q.arm(q.next);
        } else {
            q.quiet();
        });
    }

    /// What `GET_VRING_BASE` answers: see [`super::Net::stop`].
    pub(super) fn base(&self) -> u32 {
        either!(self, q => q.base())
    }
}
