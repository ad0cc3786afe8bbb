//! Whose turn it is, by bytes and weight, where several ports wait: at an uplink, or at a shared
//! limit.
//!
//! Start-time fair queueing without a queue: frames stay in their senders' rings. What a source
//! sent, divided by its weight, is its virtual time. A source may send until it is a quantum ahead
//! of the last of the others that wait; then it waits in turn. No credit is gathered without
//! waiting: a source that comes starts where the last of the waiting ones is.
//!
//! Workers share it without a lock. One worker at a time acts for a source (the one that holds its
//! transmit side); what others see of it may be a moment old.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::{MAX_PORTS, PortId};

/// A source that has not tried for this long, in nanoseconds, no longer counts as waiting. It is
/// longer than a worker's longest round.
const PATIENCE: u64 = 2_000_000;

/// How far, in bytes of the heavier of two sources, one may be ahead of the other.
const QUANTUM: u64 = 1 << 16;

/// How far, in bytes, a source may be behind the others when it comes back soon after it waited.
const CREDIT: u64 = 4 * QUANTUM;

/// Virtual time is kept in 1024ths of bytes, modulo 2^64: only differences are looked at.
const SCALE: u64 = 1024;

/// A source cannot be ahead of others by so much: it has slept until the numbers wrapped.
const STALE: i64 = 1 << 50;

#[derive(Debug, Default)]
struct Source {
    /// Its virtual time.
    time: AtomicU64,
    /// When it last found no room; 0: never.
    tried: AtomicU64,
    weight: AtomicU16,
}

impl Source {
    fn is_recent(&self, now: u64, patience: u64) -> bool {
        let tried = self.tried.load(Ordering::Relaxed);
        tried != 0 && tried.abs_diff(now) <= patience
    }
}

/// A queue without frames in it: they stay in their senders' rings, and this says whose turn it is.
///
/// ```text
/// while grant() leaves bytes: send a frame (the last one may be longer);
/// sent(bytes that went, is there more that did not?)
/// ```
#[derive(Debug)]
pub struct Turns {
    sources: Box<[Source]>,
    /// One bit for each source that waited when it was last heard of.
    waiting: [AtomicU64; MAX_PORTS / 64],
    /// Virtual time of the last of those who wait.
    least: AtomicU64,
    patience: u64,
}

impl Default for Turns {
    fn default() -> Self {
        let sources = (0..MAX_PORTS).map(|_| Source::default()).collect();
        let waiting = Default::default();
        Self { sources, waiting, least: AtomicU64::new(0), patience: PATIENCE }
    }
}

/// How far `a` is ahead of `b`.
#[inline]
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b).cast_signed()
}

impl Turns {
    /// For sources that sleep for up to `patience` nanoseconds while they wait, and count as
    /// waiting for so long. Whoever finds that one no longer waits must say so; whoever takes one
    /// away must call [`Turns::leave`].
    pub fn patient(patience: u64) -> Self {
        Self { patience, ..Self::default() }
    }

    /// `source` could not even try: it counts as waiting until it can, and then says whether it
    /// does.
    pub fn wants(&self, source: PortId, weight: u16, now: u64) {
        self.sent(source, weight, 0, true, now);
    }

    /// `source` is gone, or shares this no more: nobody waits for it, and a port that gets its
    /// number has none of its credit. What it is ahead of the others stays, for it may come back.
    /// To be called when no worker acts for it here any more.
    pub fn leave(&self, source: PortId) {
        if let Some(own) = self.sources.get(source.index()) {
            own.tried.store(0, Ordering::Relaxed);
        }
        self.set_waiting(source, false);
    }

    /// Bytes that `source` may send now; `u64::MAX` if nobody else waits. Changes nothing.
    ///
    /// Frames are sent as long as there are any bytes left: the last one may be longer, which
    /// counts against the next ones.
    #[must_use]
    pub fn grant(&self, source: PortId, weight: u16, now: u64) -> u64 {
        let Some((time, other)) = self.last_of_others(source, now) else { return u64::MAX };
        let Some(own) = self.sources.get(source.index()) else { return u64::MAX };
        let weight = u64::from(weight.max(1));
        let quantum = QUANTUM * SCALE / weight.max(u64::from(other));
        let lead = ahead(self.time_of(own, source, now), time);
        let left = quantum.cast_signed().saturating_sub(lead);
        let bytes = left.max(0).unsigned_abs().saturating_mul(weight);
        bytes.div_ceil(SCALE)
    }

    /// `source` has sent `bytes`. `waits`: it has more, which found no room, or was not its turn.
    pub fn sent(&self, source: PortId, weight: u16, bytes: u64, waits: bool, now: u64) {
        let Some(own) = self.sources.get(source.index()) else { return };
        let weight = weight.max(1);
        let cost = bytes.saturating_mul(SCALE) / u64::from(weight);
        let time = self.time_of(own, source, now).wrapping_add(cost);
        own.time.store(time, Ordering::Relaxed);
        own.weight.store(weight, Ordering::Relaxed);
        if waits {
            own.tried.store(now.max(1), Ordering::Relaxed);
        }
        self.set_waiting(source, waits);
        let others = self.last_of_others(source, now).map(|(time, _)| time);
        let least = match others {
            Some(other) if !waits || ahead(time, other) > 0 => other,
            _ => time,
        };
        if ahead(least, self.least.load(Ordering::Relaxed)) > 0 {
            self.least.store(least, Ordering::Relaxed);
        }
    }

    /// The virtual time of a source. While it waits it keeps its place. Else it is no further back
    /// than the last of the waiting ones, except by [`CREDIT`] if it has just sent a whole batch
    /// and will be back.
    fn time_of(&self, own: &Source, source: PortId, now: u64) -> u64 {
        let time = own.time.load(Ordering::Relaxed);
        let least = self.least.load(Ordering::Relaxed);
        let lead = ahead(time, least);
        if (0..STALE).contains(&lead) {
            return time;
        }
        if !own.is_recent(now, self.patience) || lead > 0 {
            return least;
        }
        if self.is_waiting(source) {
            return time;
        }
        let weight = u64::from(own.weight.load(Ordering::Relaxed).max(1));
        let credit = (CREDIT * SCALE / weight).cast_signed();
        least.wrapping_sub(lead.max(-credit).unsigned_abs())
    }

    /// True if it had more when it was last heard of.
    pub fn is_waiting(&self, source: PortId) -> bool {
        let (word, bit) = place(source);
        self.waiting.get(word).is_some_and(|w| w.load(Ordering::Relaxed) & bit != 0)
    }

    fn set_waiting(&self, source: PortId, waits: bool) {
        let (word, bit) = place(source);
        let Some(word) = self.waiting.get(word) else { return };
        let before = word.load(Ordering::Relaxed) & bit != 0;
        if waits && !before {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if before && !waits {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Virtual time and weight of the last of the waiting sources other than `source`.
    fn last_of_others(&self, source: PortId, now: u64) -> Option<(u64, u16)> {
        let mut last: Option<(u64, u16)> = None;
        for (i, word) in self.waiting.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let index = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(other) = self.sources.get(index).filter(|_| index != source.index())
                else {
                    continue;
                };
                if !other.is_recent(now, self.patience) {
                    continue;
                }
                let time = other.time.load(Ordering::Relaxed);
                if last.is_none_or(|(least, _)| ahead(time, least) < 0) {
                    last = Some((time, other.weight.load(Ordering::Relaxed)));
                }
            }
        }
        last
    }
}

#[inline]
fn place(source: PortId) -> (usize, u64) {
    (source.index() / 64, 1 << (source.index() % 64))
}
