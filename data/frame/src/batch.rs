//! A batch of frames, lent by one port.
//!
//! ```text
//!  frames[i] ── head_len ──► heads[i]: [u8; 128]      our copy: looked at, changed, delivered
//!            ── pieces   ──► pieces[a..b]: Slice<'m>  the rest, where the sender left it
//! ```
//!
//! The batch's storage belongs to a worker and is reused; the borrow `'m` ends when the port's
//! `pull` returns.

use std::ops::Range;

use vmlan_ram::{Slice, SliceMut, recycle};

use crate::{
    BATCH, Gso, HEAD, JOINT, MAX_FRAME, MIN_FRAME, Mac, Offload, Offloads, Reason, flow_hash,
};

const PAGE: usize = 4096;
const PIECES: usize = 4096; // Slices a batch holds for the bytes behind the heads.

/// What the switch decided about a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Delivered or dropped: the port may give its buffers back.
    #[default]
    Done,
    /// Its receiver is full: the port keeps it and lends it again.
    Held,
}

#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    len: u32,
    first: u16,
    count: u16,
    head_len: u16,
    verdict: Verdict,
    dropped: Option<Reason>,
    offload: Offload,
}

/// Destination and source at the beginning of a frame.
#[inline]
fn macs_of([a, b, c, d, e, f, g, h, i, j, k, l, ..]: &[u8; HEAD]) -> (Mac, Mac) {
    (Mac::new([*a, *b, *c, *d, *e, *f]), Mac::new([*g, *h, *i, *j, *k, *l]))
}

/// Up to [`BATCH`] frames of one port, or [`JOINT`] of several.
#[derive(Default)]
pub struct Batch<'m> {
    heads: Vec<[u8; HEAD]>,
    frames: Vec<Frame>,
    pieces: Vec<Slice<'m>>,
    needs: u8,
    /// Lengths of all frames together.
    bytes: u64,
    any_held: bool,
    source: u16,
    ring: u8,
}

/// One frame of a batch, to deliver.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the names say it")]
pub struct FrameView<'b, 'm> {
    /// The snapshot: the frame's first bytes.
    pub head: &'b [u8],
    /// The bytes behind it.
    pub body: &'b [Slice<'m>],
    pub len: usize,
    pub offload: Offload,
}

impl<'m> Batch<'m> {
    /// An empty batch with all its storage: nothing allocates after this.
    pub fn new() -> Self {
        Self::with_room_for(BATCH)
    }

    /// As [`Batch::new`], for what several ports lend: see [`Batch::append`].
    pub fn joint() -> Self {
        Self::with_room_for(JOINT)
    }

    fn with_room_for(frames: usize) -> Self {
        Self {
            heads: vec![[0; HEAD]; frames],
            frames: Vec::with_capacity(frames),
            pieces: Vec::with_capacity(PIECES),
            ..Self::default()
        }
    }

    /// Takes the storage out of `spare`, for another borrow. Give it back with
    /// [`Batch::give_back`].
    #[must_use]
    pub fn take(spare: &mut Batch<'static>) -> Self {
        let Batch { heads, frames, pieces, source, .. } = std::mem::take(spare);
        let pieces = recycle(pieces);
        let mut batch = Self { heads, frames, pieces, source, ..Self::default() };
        batch.frames.clear();
        batch
    }

    /// Returns the storage to its owner; every borrow of the frames ends here.
    pub fn give_back(self, spare: &mut Batch<'static>) {
        let Batch { heads, mut frames, pieces, source, .. } = self;
        frames.clear();
        *spare = Batch { heads, frames, pieces: recycle(pieces), source, ..Batch::default() };
    }

    /// Adds the frames of `other` as they are, but for what became of them; none if there is no
    /// room for all. Returns whether there was.
    #[must_use]
    pub fn append(&mut self, other: &Batch<'m>) -> bool {
        let (at, first) = (self.frames.len(), self.pieces.len());
        let count = other.frames.len();
        let theirs = other.heads.get(..count).unwrap_or_default();
        let Some(heads) = self.heads.get_mut(at..at + count) else { return false };
        if first + other.pieces.len() > PIECES {
            return false;
        }
        heads.copy_from_slice(theirs);
        let moved = |f: &Frame| Frame {
            first: f.first + small::<u16>(first),
            verdict: Verdict::Done,
            dropped: None,
            ..*f
        };
        self.frames.extend(other.frames.iter().map(moved));
        self.pieces.extend_from_slice(&other.pieces);
        self.needs |= other.needs;
        self.bytes += other.bytes;
        true
    }

    /// Ends every borrow of the frames: what is left tells their lengths and what became of them.
    #[must_use]
    pub fn without_pieces<'n>(self) -> Batch<'n> {
        let Batch { heads, frames, pieces, needs, bytes, any_held, source, ring } = self;
        Batch { heads, frames, pieces: recycle(pieces), needs, bytes, any_held, source, ring }
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.pieces.clear();
        (self.needs, self.bytes, self.any_held) = (0, 0, false);
    }

    /// The number of the port that the frames came from. A batch that takes the storage of this one
    /// has it, too.
    pub fn source(&self) -> u16 {
        self.source
    }

    /// Says where the frames come from.
    pub fn set_source(&mut self, source: u16) {
        self.source = source;
    }

    /// Which of the lane's rings the frames came from; 0 if it has one.
    #[inline]
    pub fn ring(&self) -> u8 {
        self.ring
    }

    /// Says which ring the frames come from.
    #[inline]
    pub fn set_ring(&mut self, ring: usize) {
        self.ring = u8::try_from(ring).unwrap_or(u8::MAX);
    }

    /// Frames in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True without frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// True if another frame of up to `pieces` slices fits. Ports ask before they add.
    #[inline]
    pub fn has_room(&self, pieces: usize) -> bool {
        self.frames.len() < self.heads.len().min(BATCH) && self.pieces.len() + pieces <= PIECES
    }

    /// Adds a frame that lies in `pieces`: copies its first [`HEAD`] bytes, borrows the rest, and
    /// checks `offload` against the copy.
    ///
    /// # Errors
    /// The reason to drop it: too short, too long, or an offload claim that does not hold. Also
    /// [`Reason::TooLong`] if [`Batch::has_room`] would have said no.
    #[inline]
    pub fn add(&mut self, pieces: &[Slice<'m>], offload: Offload) -> Result<(), Reason> {
        match pieces {
            [piece] if offload == Offload::NONE => self.add_plain(*piece),
            _ => self.add_any(pieces, offload),
        }
    }

    /// Adds a frame in one piece and without offloads, as nearly all are.
    // A call would cost each frame 14 instructions, and without the attribute the compiler makes
    // one for some chips.
    #[inline(always)]
    pub fn add_plain(&mut self, piece: Slice<'m>) -> Result<(), Reason> {
        let (index, first, len) = (self.frames.len(), self.pieces.len(), piece.len());
        if len < MIN_FRAME {
            return Err(Reason::Runt);
        }
        if len > MAX_FRAME || index >= BATCH || first >= PIECES {
            return Err(Reason::TooLong);
        }
        let Some(head) = self.heads.get_mut(index) else { return Err(Reason::TooLong) };
        let head_len = piece.read(head);
        if head_len < len {
            self.pieces.push(piece.sub(head_len, usize::MAX));
        }
        self.bytes += len as u64;
        self.frames.push(Frame {
            len: small(len),
            first: small(first),
            count: u16::from(head_len < len),
            head_len: small(head_len),
            ..Frame::default()
        });
        Ok(())
    }

    fn add_any(&mut self, pieces: &[Slice<'m>], offload: Offload) -> Result<(), Reason> {
        let index = self.frames.len();
        let first = self.pieces.len();
        if !self.has_room(pieces.len()) {
            return Err(Reason::TooLong);
        }
        let Some(head) = self.heads.get_mut(index) else { return Err(Reason::TooLong) };
        let (mut len, mut head_len) = (0, 0);
        for piece in pieces {
            let free = head.get_mut(head_len..).unwrap_or_default();
            let n = piece.read(free);
            head_len += n;
            len += piece.len();
            if n < piece.len() {
                self.pieces.push(piece.sub(n, usize::MAX));
            }
        }
        self.close(first, len, head_len, offload)
    }

    /// Adds a frame made of a header of our own and borrowed payload: a segment. `offload` is
    /// trusted.
    ///
    /// # Errors
    /// [`Reason::TooLong`] if the head is longer than [`HEAD`] or there is no room.
    pub fn add_parts(
        &mut self,
        head: &[u8],
        body: impl IntoIterator<Item = Slice<'m>>,
        offload: Offload,
    ) -> Result<(), Reason> {
        self.add_joined([head], body, offload)
    }

    /// As [`Batch::add_parts`], with a head that is put together of several runs of bytes.
    #[inline]
    pub fn add_joined<const N: usize>(
        &mut self,
        heads: [&[u8]; N],
        body: impl IntoIterator<Item = Slice<'m>>,
        offload: Offload,
    ) -> Result<(), Reason> {
        let (index, first) = (self.frames.len(), self.pieces.len());
        let Some(head) = self.heads.get_mut(index) else { return Err(Reason::TooLong) };
        let mut head_len = 0;
        for run in heads {
            let dst = head.get_mut(head_len..head_len + run.len());
            dst.ok_or(Reason::TooLong)?.copy_from_slice(run);
            head_len += run.len();
        }
        let mut len = head_len;
        for piece in body {
            if self.pieces.len() >= PIECES {
                self.pieces.truncate(first);
                return Err(Reason::TooLong);
            }
            len += piece.len();
            self.pieces.push(piece);
        }
        self.push_frame(first, len, head_len, offload)
    }

    #[inline]
    fn close(
        &mut self,
        first: usize,
        len: usize,
        head_len: usize,
        offload: Offload,
    ) -> Result<(), Reason> {
        let checked = self.check(len, head_len, offload);
        match checked {
            Ok(offload) => self.push_frame(first, len, head_len, offload),
            Err(reason) => {
                self.pieces.truncate(first);
                Err(reason)
            }
        }
    }

    #[inline]
    fn check(&self, len: usize, head_len: usize, offload: Offload) -> Result<Offload, Reason> {
        if len < MIN_FRAME {
            return Err(Reason::Runt);
        }
        if len > MAX_FRAME {
            return Err(Reason::TooLong);
        }
        if !offload.needs_csum && offload.gso == Gso::None {
            return Ok(Offload { csum_valid: offload.csum_valid, ..Offload::NONE });
        }
        let head = self.heads.get(self.frames.len()).and_then(|h| h.get(..head_len));
        offload.check(head.unwrap_or_default(), len)
    }

    #[inline]
    fn push_frame(
        &mut self,
        first: usize,
        len: usize,
        head_len: usize,
        offload: Offload,
    ) -> Result<(), Reason> {
        let too_long = Reason::TooLong;
        let count = self.pieces.len().saturating_sub(first);
        let (Ok(len), Ok(first), Ok(count), Ok(head_len)) = (
            u32::try_from(len),
            u16::try_from(first),
            u16::try_from(count),
            u16::try_from(head_len),
        ) else {
            return Err(too_long);
        };
        self.needs |= offload.needs().bits();
        self.bytes += u64::from(len);
        self.frames.push(Frame { len, first, count, head_len, offload, ..Frame::default() });
        Ok(())
    }

    /// Everything that some frame of the batch needs from its receiver.
    #[inline]
    pub fn needs(&self) -> Offloads {
        Offloads::from_bits(self.needs)
    }

    /// True if nothing is to be done to any frame, and few of them have more than one piece behind
    /// the head.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.needs == 0 && self.pieces.len() <= self.frames.len()
    }

    /// Reads a byte of each page that something behind a head lies in: page faults are the time of
    /// who does this, and not of who copies the frames later.
    pub fn touch(&self) {
        for piece in &self.pieces {
            let ends = (0..piece.len()).step_by(PAGE).chain([piece.len().saturating_sub(1)]);
            ends.for_each(|at| _ = std::hint::black_box(piece.sub(at, 1).read_array::<1>()));
        }
    }

    /// Destination and source of frame `i` (zero if there is no such frame).
    #[inline]
    pub fn macs(&self, i: usize) -> (Mac, Mac) {
        self.heads.get(i).map_or_else(Default::default, macs_of)
    }

    /// [`Batch::macs`] of all `frames`.
    #[inline]
    pub fn all_macs(&self, frames: Range<usize>) -> impl Iterator<Item = (Mac, Mac)> {
        let heads = self.heads.get(frames).unwrap_or_default();
        heads.iter().map(macs_of)
    }

    /// How many frames from `i` on have the same destination and source: one look-up serves them
    /// all.
    #[inline]
    pub fn run(&self, i: usize) -> usize {
        let heads = self.heads.get(i..self.frames.len()).unwrap_or_default();
        let Some(first) = heads.first().and_then(|h| h.first_chunk::<12>()) else { return 0 };
        heads.iter().take_while(|h| h.first_chunk() == Some(first)).count()
    }

    /// The snapshot of frame `i`; empty if there is no such frame.
    #[inline]
    pub fn head(&self, i: usize) -> &[u8] {
        let len = self.frames.get(i).map_or(0, |f| usize::from(f.head_len));
        self.heads.get(i).and_then(|h| h.get(..len)).unwrap_or_default()
    }

    /// What is still to be done to frame `i`.
    pub fn offload(&self, i: usize) -> Offload {
        self.frames.get(i).map_or(Offload::NONE, |f| f.offload)
    }

    /// Total length of frame `i` in bytes.
    #[inline]
    pub fn frame_len(&self, i: usize) -> usize {
        self.frames.get(i).map_or(0, |f| f.len as usize)
    }

    /// The hash of frame `i`'s flow: [`flow_hash`].
    #[inline]
    pub fn flow(&self, i: usize) -> u32 {
        flow_hash(self.head(i), self.frame_len(i))
    }

    /// Frame `i`, to deliver.
    #[inline]
    pub fn frame(&self, i: usize) -> Option<FrameView<'_, 'm>> {
        let f = self.frames.get(i)?;
        let head = self.heads.get(i)?.get(..usize::from(f.head_len))?;
        let first = usize::from(f.first);
        let body = self.pieces.get(first..first + usize::from(f.count))?;
        Some(FrameView { head, body, len: f.len as usize, offload: f.offload })
    }

    /// Leaves frame `i` with its port, to be lent again.
    pub fn hold(&mut self, i: usize) {
        if let Some(f) = self.frames.get_mut(i) {
            f.verdict = Verdict::Held;
            self.any_held = true;
        }
    }

    /// True if some frame is held.
    pub fn any_held(&self) -> bool {
        self.any_held
    }

    /// Lengths of all frames together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The work that its frames, but for those that are held, can make for one receiver each, in
    /// bytes to copy.
    pub fn work(&self) -> usize {
        if self.needs == 0 && !self.any_held {
            return usize::try_from(self.bytes).unwrap_or(usize::MAX);
        }
        let done = self.frames.iter().filter(|f| f.verdict == Verdict::Done);
        done.map(|f| f.offload.work(f.len as usize)).sum()
    }

    /// What became of frame `i`.
    #[inline]
    pub fn verdict(&self, i: usize) -> Verdict {
        self.frames.get(i).map_or(Verdict::Done, |f| f.verdict)
    }

    /// Notes that frame `i` was dropped, for captures. Counting is the caller's.
    pub fn set_dropped(&mut self, i: usize, reason: Reason) {
        if let Some(f) = self.frames.get_mut(i) {
            f.dropped = Some(reason);
        }
    }

    /// Why frame `i` was dropped, if it was.
    pub fn dropped(&self, i: usize) -> Option<Reason> {
        self.frames.get(i).and_then(|f| f.dropped)
    }
}

/// A length or place in a batch, whose limits ([`MAX_FRAME`], `PIECES`, [`HEAD`]) fit the type it
/// is kept in.
#[inline]
fn small<T: TryFrom<usize> + Default>(n: usize) -> T {
    debug_assert!(T::try_from(n).is_ok(), "{n} is beyond every limit of a batch");
    T::try_from(n).unwrap_or_default()
}

impl<'m> FrameView<'_, 'm> {
    /// Copies the whole frame into our own buffer; returns how many bytes fitted.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let mut done = SliceMut::from_bytes(dst).write(0, self.head);
        for piece in self.body {
            done += piece.read(dst.get_mut(done..).unwrap_or_default());
        }
        done
    }

    /// Writes the whole frame at `offset` of one guest buffer; returns how many bytes fitted.
    #[inline(always)]
    pub fn write_to(&self, dst: &mut SliceMut<'_>, offset: usize) -> usize {
        let mut done = dst.write(offset, self.head);
        for piece in self.body {
            done += dst.write_from(offset + done, *piece);
        }
        done
    }

    /// The `len` bytes from `from` on, as runs: first of the head, then of the body.
    pub fn runs(&self, from: usize, len: usize) -> impl Iterator<Item = Slice<'_>> + '_ {
        let head = std::iter::once(Slice::from_bytes(self.head));
        let (mut skip, mut left) = (from, len);
        head.chain(self.body.iter().copied()).filter_map(move |run| {
            let part = run.sub(skip, left);
            skip = skip.saturating_sub(run.len());
            left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }
}
