//! Transmit, first half: which descriptors make a frame, and where its bytes lie (SDM 3.3.1 to 3.3.3, 3.3.7).

use vmlan_frame::{MAX_GSO, Reason};
use vmlan_ram::Slice;

use super::desc::{Context, Kind, data_len, kind, tx};
use super::ring::{Ring, add};
use super::stats::FCS;

/// Descriptors, and pieces of memory, of one frame at most. Linux uses up to 35 for 64 KiB. Frames of more are skipped
/// to their end and dropped.
pub const MAX_PIECES: usize = 128;

/// What the chip is asked to do to a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    /// The second quadword of its first descriptor: POPTS and TSE count there.
    pub first: u64,
    /// That of its last: IFCS, VLE, the special field, and the legacy IC, CSS and CSO count there.
    pub last: u64,
    /// The context that was in force.
    pub context: Context,
}

impl Want {
    /// Segmentation is asked for.
    #[inline]
    pub fn segments(&self) -> bool {
        self.first & (tx::DEXT | tx::TSE) == tx::DEXT | tx::TSE
    }
}

/// A frame found in the ring, its bytes at `first..first + count` of the pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Its number among the flights.
    pub flight: u16,
    pub first: u16,
    pub count: u16,
    /// Bytes of all its descriptors.
    pub len: u32,
    pub want: Want,
    pub bad: Option<Reason>,
    /// Regions of memory that were looked up because a buffer crosses them.
    pub crossed: u16,
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

/// Reads the descriptors of one frame; adds its pieces and asks for their first cache lines. What is wrong with it is left in
/// `found.bad`: its end is looked for all the same.
pub fn scan<'q>(
    ring: &'q Ring,
    span: Span,
    pieces: &mut Vec<Slice<'q>>,
    found: &mut Found,
) -> Scan {
    let before = pieces.len();
    let mut at = span.at;
    let (mut addr, mut word) = span.first;
    // Pieces are bounded by their capacity, far below 2^16.
    let small = |n| u16::try_from(n).unwrap_or(0);
    found.first = small(before);
    found.want.first = word;
    let what = kind(word);
    if what == Kind::Unknown {
        found.bad = Some(Reason::BadDescriptor);
    }
    let mut n = 1;
    loop {
        let this = kind(word);
        if this != what || this == Kind::Context {
            found.bad = Some(Reason::BadDescriptor);
        }
        // Bit 24 of a context descriptor is not EOP.
        if this != Kind::Context {
            gather(ring, (addr, data_len(word)), before, pieces, found);
            if word & tx::EOP != 0 {
                break;
            }
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

/// Adds the pieces of one buffer: several, if it crosses regions of memory. A null address means no data.
#[inline]
fn gather<'q>(
    ring: &'q Ring,
    (addr, len): (u64, u32),
    before: usize,
    pieces: &mut Vec<Slice<'q>>,
    found: &mut Found,
) {
    if addr == 0 || found.bad.is_some() {
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
    if (found.len + len) as usize > MAX_GSO + FCS {
        found.bad = Some(Reason::TooLong);
        return;
    }
    let mut done = 0;
    while done < len {
        found.crossed += 1;
        let gpa = addr.checked_add(done.into());
        let run = gpa.and_then(|gpa| ring.map().first_run(gpa, (len - done) as usize));
        let Some(run) = run else {
            found.bad = Some(Reason::BadDescriptor);
            return;
        };
        if pieces.len() - before >= MAX_PIECES {
            found.bad = Some(Reason::TooLong);
            return;
        }
        run.prefetch();
        done += u32::try_from(run.len()).unwrap_or(len);
        pieces.push(run);
    }
    found.len += len;
}
