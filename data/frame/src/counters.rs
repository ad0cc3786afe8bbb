//! Counters of one port. All are monotone and start at 0 with the port.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Reason;

/// A number that one thread at a time adds to (whoever holds the lock of that side of the port) and
/// anybody reads. No locked instruction is spent on it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n`, from any thread.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happened in one direction. Aligned so that the two directions share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Direction {
    /// Frames that went through.
    pub frames: Counter,
    /// Their bytes, without offload headers.
    pub bytes: Counter,
    /// Batches they came in.
    pub batches: Counter,
    /// Notifications: doorbells rung by the guest (in), interrupts raised (out).
    pub notifications: Counter,
    /// Drops by [`Reason`], indexed by its number.
    drops: [Counter; Reason::COUNT],
}

impl Direction {
    /// Counts `n` drops, from any thread: drops are rare enough for a locked instruction.
    pub fn drop(&self, reason: Reason, n: u64) {
        if let Some(c) = self.drops.get(reason as usize) {
            c.add_shared(n);
        }
    }

    /// Counts a batch of `frames` with `bytes`.
    #[inline]
    pub fn count(&self, frames: usize, bytes: u64) {
        if frames > 0 {
            self.frames.add(frames as u64);
            self.bytes.add(bytes);
            self.batches.add(1);
        }
    }

    /// Frames dropped for `reason`.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops.get(reason as usize).map_or(0, Counter::get)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            frames: self.frames.get(),
            bytes: self.bytes.get(),
            batches: self.batches.get(),
            notifications: self.notifications.get(),
        }
    }
}

/// A copy of one direction's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Snapshot {
    pub frames: u64,
    pub bytes: u64,
    pub batches: u64,
    /// Doorbells (in) or interrupts (out).
    pub notifications: u64,
}

/// The counters of the lanes behind the first, in both directions.
#[derive(Debug, Default)]
pub struct Lanes(Box<[[Passed; 2]]>);

impl Snapshot {
    fn add(&mut self, passed: &Passed) {
        self.frames += passed.frames.get();
        self.bytes += passed.bytes.get();
        self.batches += passed.batches.get();
    }
}

/// What passed one lane in one direction (see [`crate::Port::lanes`]). Aligned as [`Direction`].
#[derive(Debug, Default)]
#[repr(align(128))]
struct Passed {
    frames: Counter,
    bytes: Counter,
    batches: Counter,
    work_ns: Counter,
    empty_looks: Counter,
}

impl Passed {
    fn count(&self, frames: usize, bytes: u64) {
        if frames > 0 {
            self.frames.add(frames as u64);
            self.bytes.add(bytes);
            self.batches.add(1);
        }
    }
}

/// Counters of one port. `in` and `out` are seen from the switch: `input` is what the port's owner
/// sent.
///
/// A port with several lanes has counters for each of them, so that no two workers write to one
/// cache line. What is public here is that of the first lane, and all of what is counted from any
/// thread; [`Counters::snapshot`], [`Counters::work_ns`] and [`Counters::empty_looks`] sum the
/// lanes up.
#[derive(Debug, Default)]
pub struct Counters {
    /// From the port into the switch. Written under the port's transmit-side lock.
    pub input: Direction,
    /// From the switch to the port. Written under the port's receive-side lock.
    pub output: Direction,
    /// The lanes behind the first.
    pub lanes: Lanes,
    /// Interrupts raised for completed transmissions (under the transmit-side lock).
    pub tx_interrupts: Counter,
    /// Doorbells for newly posted receive buffers (under the receive-side lock).
    pub rx_doorbells: Counter,
    /// Times the guest or its VMM broke the protocol and the port was reset or refused.
    pub faults: Counter,
    /// Nanoseconds that workers spent on breaths of this port, delivery to others included.
    pub work_ns: Counter,
    /// Times that a worker looked for frames of this port and there were none.
    pub empty_looks: Counter,
}

impl Counters {
    /// For a port with so many lanes.
    pub fn with_lanes(lanes: usize) -> Self {
        let lanes = Lanes((1..lanes).map(|_| Default::default()).collect());
        Self { lanes, ..Self::default() }
    }

    /// The lanes behind the first; `None` for the first.
    #[inline]
    fn lane(&self, lane: usize) -> Option<&[Passed; 2]> {
        self.lanes.0.get(lane.checked_sub(1)?)
    }

    /// Counts a batch from a lane into the switch. For whoever has its transmit-side lock.
    #[inline]
    pub fn count_input(&self, lane: usize, frames: usize, bytes: u64) {
        match self.lane(lane) {
            None => self.input.count(frames, bytes),
            Some([input, _]) => input.count(frames, bytes),
        }
    }

    /// Counts a batch from the switch to a lane. For whoever has its receive-side lock.
    #[inline]
    pub fn count_output(&self, lane: usize, frames: usize, bytes: u64) {
        match self.lane(lane) {
            None => self.output.count(frames, bytes),
            Some([_, output]) => output.count(frames, bytes),
        }
    }

    /// A worker spent `ns` on a breath of a lane. For the worker that has this lane.
    #[inline]
    pub fn worked(&self, lane: usize, ns: u64) {
        self.lane(lane).map_or(&self.work_ns, |[input, _]| &input.work_ns).add(ns);
    }

    /// A worker looked for frames of a lane in vain. For the worker that has this lane.
    #[inline]
    pub fn found_empty(&self, lane: usize) {
        self.lane(lane).map_or(&self.empty_looks, |[input, _]| &input.empty_looks).add(1);
    }

    /// Nanoseconds that workers spent on breaths of this port, delivery to others included.
    pub fn work_ns(&self) -> u64 {
        let more = self.lanes.0.iter().map(|[input, _]| input.work_ns.get());
        self.work_ns.get() + more.sum::<u64>()
    }

    /// The part of [`Counters::work_ns`] that was spent on one lane.
    pub fn work_ns_of(&self, lane: usize) -> u64 {
        self.lane(lane).map_or(&self.work_ns, |[input, _]| &input.work_ns).get()
    }

    /// Times that a worker looked for frames of this port and there were none.
    pub fn empty_looks(&self) -> u64 {
        let more = self.lanes.0.iter().map(|[input, _]| input.empty_looks.get());
        self.empty_looks.get() + more.sum::<u64>()
    }

    /// Totals of both directions: (in, out).
    pub fn snapshot(&self) -> (Snapshot, Snapshot) {
        let (mut input, mut output) = (self.input.snapshot(), self.output.snapshot());
        for [from, to] in &self.lanes.0 {
            input.add(from);
            output.add(to);
        }
        (input, output)
    }

    /// Drops of both directions, those that happened.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .iter()
            .map(|r| (*r, self.input.dropped(*r) + self.output.dropped(*r)))
            .filter(|(_, n)| *n > 0)
    }
}
