//! What both sides of a NIC have in common: queues that are started, stopped and moved.

use std::sync::Arc;

use vmlan_ram::{Map, Window};

use super::queue::AnyQueue;
use super::{Fault, Features};
use crate::Interrupt;

/// Queues on each side, at most.
pub const MAX_QUEUES: u16 = 128;

/// Where a ring lies. All addresses are guest-physical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// Descriptors; up to 32768, and a power of two in a split ring.
    pub size: u16,
    /// The descriptor table or ring, aligned to 16 bytes.
    pub desc: u64,
    /// The available ring, aligned to 2 bytes; of a packed ring the driver's event suppression
    /// structure, aligned to 4.
    pub avail: u64,
    /// The used ring, aligned to 4 bytes; of a packed ring the device's event suppression
    /// structure.
    pub used: u64,
    /// Where writes to the used ring are logged, while migrating (`VHOST_VRING_F_LOG`).
    pub log: Option<u64>,
    /// Where a packed ring begins that somebody else served who does not keep the descriptors as
    /// we do: a slot, and the wrap counter in bit 15. Any other ring says itself where it begins.
    pub base: u16,
}

/// Where each batch's used index is noted for whoever audits the connection: `used_idx` of the
/// queue's `QueueRegionSplit` or `QueueRegionPacked` in the inflight region, with what follows it
/// there up to the wrap counters. Nothing here reads it (see the folder's text).
#[derive(Debug)]
pub struct Inflight {
    /// The queue's part of the region.
    pub window: Window,
    /// Offset of `used_idx` in it: even, and a multiple of 8 for a packed ring.
    pub offset: usize,
}

/// What distinguishes the two sides.
pub trait QueueState: Default {
    /// Whether doorbells are wanted from the start: for frames they are, for receive buffers only
    /// while a sender waits ([`super::NetRx::want_room`]).
    const WANTS_DOORBELLS: bool;

    /// Buffers that may be used before they are published.
    const STAGED: usize;
}

/// One queue of a side.
#[derive(Default)]
pub(super) struct QueueSlot<S> {
    pub(super) queue: Option<AnyQueue>,
    /// Set by `SET_VRING_ENABLE`.
    pub(super) enabled: bool,
    pub(super) fault: Option<Fault>,
    /// Survives stop and start: the VMM may give it at any time.
    interrupt: Option<Arc<dyn Interrupt>>,
    pub(super) state: S,
}

impl<S> QueueSlot<S> {
    /// The queue, if it is started, enabled and sound.
    #[inline]
    pub(super) fn live(&mut self) -> Option<(&mut AnyQueue, &mut S)> {
        match &mut self.queue {
            Some(queue) if self.enabled && self.fault.is_none() => Some((queue, &mut self.state)),
            _ => None,
        }
    }
}

/// One side of a NIC: all its transmit queues ([`super::NetTx`]) or all its receive queues
/// ([`super::NetRx`]). Queues are numbered from 0 on each side.
pub struct Net<S> {
    pub(super) map: Arc<Map>,
    pub(super) features: Features,
    pub(super) slots: Vec<QueueSlot<S>>,
    /// Whose turn it is (transmit).
    pub(super) turn: usize,
    /// Numbers of the queues that are live (receive).
    pub(super) ready: Vec<u16>,
    /// The lane of the port that frames are counted for.
    pub(super) lane: usize,
}

impl<S: QueueState> Default for Net<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: QueueState> Net<S> {
    /// No queues, no memory, no features.
    pub fn new() -> Self {
        Self {
            map: Arc::default(),
            features: Features::default(),
            slots: Vec::new(),
            turn: 0,
            ready: Vec::new(),
            lane: 0,
        }
    }

    /// For a lane of a port (see [`vmlan_frame::Port::lanes`]).
    pub fn of_lane(lane: usize) -> Self {
        Self { lane, ..Self::new() }
    }

    /// Forgets queues, interrupts, memory and features: the connection is gone, or reset.
    pub fn reset(&mut self) {
        *self = Self::of_lane(self.lane);
    }

    /// Sets the features negotiated; running queues follow at once.
    pub fn set_features(&mut self, features: Features) {
        self.features = features;
        self.rebuild();
    }

    /// The features in force.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Replaces the memory map. Running queues go on at the same indexes; one that has lost its
    /// ring is stopped with [`Fault::BadRing`]. When this returns, nothing here refers to the old
    /// map.
    pub fn set_map(&mut self, map: Arc<Map>) {
        self.map = map;
        self.rebuild();
    }

    fn rebuild(&mut self) {
        for slot in &mut self.slots {
            if let Some(queue) = &mut slot.queue
                && let Err(fault) = queue.rebuild(&self.map, self.features)
            {
                slot.fault = Some(fault);
                slot.queue = None;
            }
        }
        self.refresh();
    }

    fn slot(&mut self, index: u16) -> Option<&mut QueueSlot<S>> {
        if index >= MAX_QUEUES {
            return None;
        }
        let i = usize::from(index);
        if i >= self.slots.len() {
            self.slots.resize_with(i + 1, || QueueSlot {
                queue: None,
                enabled: false,
                fault: None,
                interrupt: None,
                state: S::default(),
            });
        }
        self.slots.get_mut(i)
    }

    fn refresh(&mut self) {
        self.ready.clear();
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if slot.live().is_some() {
                self.ready.extend(u16::try_from(i));
            }
        }
    }

    /// Starts queue `index` where its ring says that it stands, whatever base the VMM gave, with
    /// the features and the map in force. Clears an earlier fault. Doorbells are wanted at first
    /// from transmit queues, not from receive queues.
    ///
    /// # Errors
    /// [`Fault::NoSuchQueue`], [`Fault::BadSize`], [`Fault::BadRing`].
    pub fn start(&mut self, index: u16, rings: Rings) -> Result<(), Fault> {
        let (map, features) = (Arc::clone(&self.map), self.features);
        let slot = self.slot(index).ok_or(Fault::NoSuchQueue(index))?;
        let mut queue = AnyQueue::new(rings, &map, features, S::STAGED)?;
        // A predecessor that was killed may have published without interrupting.
        queue.set_interrupt(slot.interrupt.as_ref());
        queue.begin(S::WANTS_DOORBELLS);
        slot.queue = Some(queue);
        slot.fault = None;
        slot.state = S::default();
        self.refresh();
        Ok(())
    }

    /// Stops queue `index`; nothing of it is touched any more. Returns what to answer
    /// `GET_VRING_BASE` with (0 if it was not started): the index of the first buffer that was not
    /// used, and for a packed ring the slot, with the wrap counter in bit 15, in each half.
    pub fn stop(&mut self, index: u16) -> u32 {
        let queue = self.slots.get_mut(usize::from(index)).and_then(|s| s.queue.take());
        self.refresh();
        queue.map_or(0, |q| q.base())
    }

    /// Lets queue `index` be used, or not (`SET_VRING_ENABLE`). Queues begin disabled.
    ///
    /// # Errors
    /// [`Fault::NoSuchQueue`].
    pub fn enable(&mut self, index: u16, on: bool) -> Result<(), Fault> {
        self.slot(index).ok_or(Fault::NoSuchQueue(index))?.enabled = on;
        self.refresh();
        Ok(())
    }

    /// Sets or removes the interrupt of queue `index`, running or not.
    ///
    /// # Errors
    /// [`Fault::NoSuchQueue`].
    pub fn set_interrupt(
        &mut self,
        index: u16,
        interrupt: Option<Arc<dyn Interrupt>>,
    ) -> Result<(), Fault> {
        let slot = self.slot(index).ok_or(Fault::NoSuchQueue(index))?;
        if let Some(queue) = &mut slot.queue {
            queue.set_interrupt(interrupt.as_ref());
        }
        slot.interrupt = interrupt;
        Ok(())
    }

    /// Sets or removes the place where queue `index`, if running, notes its used index.
    pub fn set_inflight(&mut self, index: u16, inflight: Option<Inflight>) {
        if let Some(queue) = self.slots.get_mut(usize::from(index)).and_then(|s| s.queue.as_mut()) {
            queue.set_inflight(inflight);
        }
    }

    /// Sets or removes the log address of queue `index`'s used ring, if running.
    pub fn set_log(&mut self, index: u16, log: Option<u64>) {
        if let Some(queue) = self.slots.get_mut(usize::from(index)).and_then(|s| s.queue.as_mut()) {
            queue.set_log(log);
        }
    }

    /// True if queue `index` was started and not stopped.
    pub fn is_started(&self, index: u16) -> bool {
        self.slots.get(usize::from(index)).is_some_and(|s| s.queue.is_some())
    }

    /// True if some queue is started, enabled and sound.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The first rule that was broken, with the queue's number. That queue stands still until it is
    /// started again.
    pub fn fault(&self) -> Option<(u16, Fault)> {
        let numbered = (0u16..).zip(&self.slots);
        numbered.filter_map(|(i, s)| s.fault.map(|f| (i, f))).next()
    }

    /// Notes a broken rule: counted once, the queue stands still.
    #[cold]
    pub(super) fn break_off(&mut self, index: usize, fault: Fault, faults: &vmlan_frame::Counter) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.fault = Some(fault);
            faults.add_shared(1);
        }
        self.refresh();
    }
}
