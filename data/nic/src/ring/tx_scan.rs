//! Transmit, first half: which descriptors make a frame, and where its bytes lie.

use vmlan_frame::{MAX_FRAME, Reason};
use vmlan_ram::Slice;

use super::transmit::Transmit;
use super::{DescriptorRing, add};
use crate::bits::small;
use crate::chip::frame_totals::FCS;

/// Descriptors, and pieces of memory, of one frame at most. Linux uses up to 35 for 64 KiB. Frames
/// of more are skipped to their end and dropped.
pub const MAX_PIECES: usize = 128;

/// What the chip is asked to do to a frame.
#[derive(Debug)]
pub struct Want<T: Transmit> {
    /// The word of its first descriptor.
    pub first: u64,
    /// That of its last.
    pub last: u64,
    /// The context that was in force.
    pub context: T::Context,
}

impl<T: Transmit> Clone for Want<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Transmit> Copy for Want<T> {}

impl<T: Transmit> Default for Want<T> {
    fn default() -> Self {
        Self { first: 0, last: 0, context: T::Context::default() }
    }
}

/// A frame found in the ring, its bytes at `first..first + count` of the pieces.
#[derive(Debug)]
pub struct Found<T: Transmit> {
    /// Its number among the flights.
    pub flight: u16,
    pub first: u16,
    pub count: u16,
    /// Bytes of all its descriptors.
    pub len: u32,
    pub want: Want<T>,
    pub bad: Option<Reason>,
    /// Regions of memory that were looked up because a buffer crosses them.
    pub crossed: u16,
}

impl<T: Transmit> Default for Found<T> {
    fn default() -> Self {
        let (flight, first, count, len, crossed) = (0, 0, 0, 0, 0);
        Self { flight, first, count, len, want: Want::default(), bad: None, crossed }
    }
}

/// How reading a frame's descriptors ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// At its end, after so many.
    Frame(u32),
    /// At the tail: its end is not posted yet.
    Open,
    /// There are too many.
    Endless,
}

/// Descriptors to read.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The first.
    pub at: u32,
    /// What is in it: it has been read already.
    pub first: (u64, u64),
    /// How many there are.
    pub posted: u32,
    /// Those of the ring.
    pub size: u32,
}

/// Reads the descriptors of one frame; adds its pieces and asks for their first cache lines. What
/// is wrong with it is left in `found.bad`: its end is looked for anyway.
pub fn scan<'q, T: Transmit>(
    ring: &'q T::Ring,
    span: Span,
    pieces: &mut Vec<Slice<'q>>,
    found: &mut Found<T>,
) -> Scan {
    let before = pieces.len();
    let mut at = span.at;
    let (mut addr, mut word) = span.first;
    let first = word;
    found.first = small(before);
    found.want.first = word;
    let mut n = 1;
    loop {
        if !T::fits(first, word, n - 1) {
            found.bad = Some(Reason::BadDescriptor);
        }
        if T::has_data(addr, word) {
            gather::<T>(ring, (addr, T::len(word)), before, pieces, found);
        }
        if T::is_last(word) {
            break;
        }
        if n == span.posted || n as usize == MAX_PIECES {
            pieces.truncate(before);
            return if n == span.posted { Scan::Open } else { Scan::Endless };
        }
        at = add(at, 1, span.size);
        (addr, word) = ring.read(at);
        n += 1;
    }
    if found.bad.is_some() {
        pieces.truncate(before);
    }
    found.want.last = word;
    found.count = small(pieces.len() - before);
    Scan::Frame(n)
}

/// Adds the pieces of one buffer: several, if it crosses regions of memory.
#[inline]
fn gather<'q, T: Transmit>(
    ring: &'q T::Ring,
    (addr, len): (u64, u32),
    before: usize,
    pieces: &mut Vec<Slice<'q>>,
    found: &mut Found<T>,
) {
    if found.bad.is_some() {
        return;
    }
    if let Some(piece) = ring.map().slice(addr, len as usize)
        && pieces.len() - before < MAX_PIECES
    {
        if len > 0 {
            piece.prefetch();
            pieces.push(piece);
            found.len += len;
        }
        return;
    }
    // Longer than any frame: not worth the walk.
    if (found.len + len) as usize > MAX_FRAME + FCS {
        found.bad = Some(Reason::TooLong);
        return;
    }
    let (mut done, bytes) = (0, len as usize);
    while done < bytes {
        found.crossed += 1;
        let gpa = addr.checked_add(done as u64);
        let run = gpa.and_then(|gpa| ring.map().first_run(gpa, bytes - done));
        let Some(run) = run else {
            found.bad = Some(Reason::BadDescriptor);
            return;
        };
        if pieces.len() - before >= MAX_PIECES {
            found.bad = Some(Reason::TooLong);
            return;
        }
        run.prefetch();
        done += run.len();
        pieces.push(run);
    }
    found.len += len;
}
