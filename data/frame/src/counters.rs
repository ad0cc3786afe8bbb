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

/// Counters of one port. `in` and `out` are seen from the switch: `input` is what the port's owner
/// sent.
#[derive(Debug, Default)]
pub struct Counters {
    /// From the port into the switch. Written under the port's transmit-side lock.
    pub input: Direction,
    /// From the switch to the port. Written under the port's receive-side lock.
    pub output: Direction,
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
    /// Totals of both directions: (in, out).
    pub fn snapshot(&self) -> (Snapshot, Snapshot) {
        (self.input.snapshot(), self.output.snapshot())
    }

    /// Drops of both directions, those that happened.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .iter()
            .map(|r| (*r, self.input.dropped(*r) + self.output.dropped(*r)))
            .filter(|(_, n)| *n > 0)
    }
}
