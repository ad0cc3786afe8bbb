//! Numbers as they come: which never came, which came twice, which came late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use vmlan_transport::numbers::narrow32;

/// How far behind the newest number a late one is still told from one that came twice.
const WINDOW: u64 = 1 << 16;
/// Senders' queues that are kept apart; a neighbour that makes up addresses must not fill our
/// memory.
const STREAMS: usize = 256;
/// Of streams that come and go, one that was silent while so many numbers of others came gives its
/// place to a new one. More than [`STREAMS`] at a time must not drive each other out: none of them
/// would be followed.
const SILENT: u64 = 4096;
/// No stream loses so many at once: it is another one, or its payload has no numbers.
const JUMP: u64 = 1 << 32;
/// Number 0 again after so many is another run of the sender, not a frame that came twice.
const SHORTEST_RUN: u64 = 1 << 10;

const LANES: usize = 16; // Lanes of ours, see [`vmlan_transport::vhost_user::MAX_PAIRS`].

/// What was wrong so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Numbers that have not arrived.
    pub(crate) lost: u64,
    /// Numbers that came again.
    pub(crate) duplicated: u64,
    /// Numbers that came after a later one, on the same lane.
    pub(crate) reordered: u64,
    /// Times a stream started again, far behind: another run of its sender.
    pub(super) restarts: u64,
    /// Numbers looked at.
    pub(super) seen: u64,
}

/// The numbers of one queue of one sender.
#[derive(Debug)]
struct Stream {
    key: u64,
    /// [`Sequences::clock`] when it was heard.
    heard: u64,
    /// The next number expected.
    next: u64,
    /// One bit for each of the last [`WINDOW`] numbers: it came.
    seen: Box<[u64]>,
    /// The next number expected on each lane of ours. Order is kept within a lane only: between two
    /// lanes the order of looking means nothing.
    lanes: [u64; LANES],
}

/// All streams; threads that receive share one of these, as a sender's queue may be spread over
/// several of ours.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    streams: Vec<Stream>,
    latest: usize,
    /// Numbers that came, of whomever.
    clock: u64,
    faults: Faults,
    /// What came before the first number, or before a jump of [`JUMP`], is not lost.
    running: bool,
}

impl Stream {
    fn new(key: u64) -> Self {
        let seen = vec![0; (WINDOW / 64) as usize].into();
        Self { key, heard: 0, next: 0, seen, lanes: [0; LANES] }
    }

    fn bit(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        (narrow32(at / 64) as usize, 1 << (at % 64))
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = Self::bit(number);
        self.seen[word] |= bit;
    }

    fn is_seen(&self, number: u64) -> bool {
        let (word, bit) = Self::bit(number);
        self.seen[word] & bit != 0
    }

    /// Does the sender count from the beginning again?
    fn starts_over(&self, number: u64) -> bool {
        let behind = self.next.saturating_sub(number);
        // Nothing is that late. A number 0 that never came may be, on a slow lane.
        behind > WINDOW || number == 0 && behind > SHORTEST_RUN && self.is_seen(0)
    }

    /// The stream runs already: `number` is the next one.
    fn join(&mut self, number: u64) {
        self.next = number;
        self.seen.fill(u64::MAX);
    }

    fn clear(&mut self, from: u64, to: u64) {
        if to - from >= WINDOW {
            return self.seen.fill(0);
        }
        for number in from..to {
            let (word, bit) = Self::bit(number);
            self.seen[word] &= !bit;
        }
    }

    fn note(&mut self, number: u64, lane: usize, faults: &mut Faults) {
        if number >= self.next {
            faults.lost = faults.lost.saturating_add(number - self.next);
            let next = number.saturating_add(1);
            self.clear(self.next, next);
            self.next = next;
        } else if self.is_seen(number) {
            faults.duplicated += 1;
        } else {
            faults.reordered += u64::from(number < self.lanes[lane % LANES]);
            faults.lost = faults.lost.saturating_sub(1);
        }
        self.mark(number);
        let newest = &mut self.lanes[lane % LANES];
        *newest = (*newest).max(number.saturating_add(1));
    }
}

impl Sequences {
    /// Of streams that may run already when the first number is seen.
    pub(crate) fn of_running_streams() -> Self {
        Self { running: true, ..Self::default() }
    }

    /// A number of `sender`'s queue, on a lane of ours. False when there are too many senders to
    /// follow this one.
    pub(crate) fn note(&mut self, sender: [u8; 6], queue: u8, number: u64, lane: usize) -> bool {
        let [a, b, c, d, e, f] = sender;
        let key = u64::from_be_bytes([0, queue, a, b, c, d, e, f]);
        self.clock += 1;
        if self.streams.get(self.latest).is_none_or(|stream| stream.key != key) {
            let known = self.streams.iter().position(|stream| stream.key == key);
            let Some(at) = known.or_else(|| self.place_for(key)) else { return false };
            self.latest = at;
        }
        self.faults.seen += 1;
        let stream = &mut self.streams[self.latest];
        stream.heard = self.clock;
        if stream.starts_over(number) {
            // Earlier counts stay.
            self.faults.restarts += 1;
            *stream = Stream { heard: self.clock, ..Stream::new(key) };
        }
        if self.running && (stream.next == 0 || number.saturating_sub(stream.next) >= JUMP) {
            stream.join(number);
        }
        stream.note(number, lane, &mut self.faults);
        true
    }

    /// Begins a stream.
    fn place_for(&mut self, key: u64) -> Option<usize> {
        if self.streams.len() < STREAMS {
            self.streams.push(Stream::new(key));
            return Some(self.streams.len() - 1);
        }
        let (at, stream) = self.streams.iter_mut().enumerate().min_by_key(|(_, s)| s.heard)?;
        if !self.running || self.clock - stream.heard <= SILENT {
            return None;
        }
        *stream = Stream::new(key);
        Some(at)
    }

    pub(crate) fn faults(&self) -> Faults {
        self.faults
    }
}

/// A thread that died in the middle of counting does not stop the report.
pub(super) fn lock(sequences: &Mutex<Sequences>) -> MutexGuard<'_, Sequences> {
    sequences.lock().unwrap_or_else(PoisonError::into_inner)
}
