//! Receiving what does not fit one buffer as it is: long frames, tags to be stripped, buffers that
//! take no data.

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{Checksum, FrameView, Gso, HEAD, Headers, Mac, Offload, Reason};
use vmlan_ram::{Slice, SliceMut};

use super::receive::{At, Filter, Pass, Receive, Verdict, Written, ZEROS};
use super::{DescriptorRing, add};
use crate::chip::frame_totals::{FCS, SHORTEST};

/// Pieces of memory that one frame is spread over, and descriptors: the longest, in buffers of 256
/// bytes, needs 37.
pub const MAX_PARTS: usize = 64;

const TAG_AT: usize = 12; // Where a VLAN tag begins, and its bytes.
const TAG: usize = 4;

/// What became of a frame.
pub enum Outcome {
    Delivered,
    Dropped(Reason),
    NoRoom,
}

/// The pieces of memory for one frame.
struct Parts<'m> {
    runs: [Option<SliceMut<'m>>; MAX_PARTS],
    used: usize,
    /// Descriptors taken, and the bytes that each of them gets.
    shares: [(u32, usize); MAX_PARTS],
    descriptors: u32,
    /// The place behind them.
    at: At,
}

/// What a search for buffers came to.
enum Room {
    Enough,
    /// Not yet.
    Little,
    /// Not in the guest's memory, or too scattered.
    Bad,
    /// More buffers than a frame may have.
    Never,
}

impl<'m> Parts<'m> {
    fn new(at: At) -> Self {
        let (runs, shares) = ([const { None }; MAX_PARTS], [(0, 0); MAX_PARTS]);
        Self { runs, used: 0, shares, descriptors: 0, at }
    }

    /// One more descriptor, with `len` bytes.
    fn take(&mut self, (number, after): (u32, At), len: usize) {
        if let Some(share) = self.shares.get_mut(self.descriptors as usize) {
            *share = (number, len);
            self.descriptors += 1;
        }
        self.at = after;
    }

    fn shares(&self) -> impl DoubleEndedIterator<Item = (u32, usize)> {
        self.shares.iter().copied().take(self.descriptors as usize)
    }

    fn push(&mut self, run: SliceMut<'m>) -> Option<()> {
        *self.runs.get_mut(self.used)? = Some(run);
        self.used += 1;
        Some(())
    }
}

/// A frame as it is written: with or without its tag, then zeros.
struct Source<'b, 'm> {
    frame: FrameView<'b, 'm>,
    tag: usize,
    /// Bytes, zeros included.
    total: usize,
}

impl Source<'_, '_> {
    /// Fills `run` with what is at `from` on.
    fn fill(&self, run: &mut SliceMut<'_>, from: usize) {
        let mut at = 0;
        let mut write = |from: usize, len: usize| {
            let before = at;
            let runs = self.frame.runs(from, len);
            runs.for_each(|s: Slice<'_>| at += run.write_from(at, s));
            at - before
        };
        let mut want = run_len(self, from);
        if from < TAG_AT {
            let first = (TAG_AT - from).min(want);
            want -= write(from, first);
        }
        write(from.max(TAG_AT) + self.tag, want);
        while at < run.len() {
            let n = run.write(at, &ZEROS);
            if n == 0 {
                break;
            }
            at += n;
        }
    }
}

/// What a packet that is still to be segmented stands for: segments, payload bytes of each.
pub fn uncut(frame: &FrameView<'_, '_>) -> Option<(usize, u16)> {
    let Offload { gso, gso_size, hdr_len, .. } = frame.offload;
    let payload = frame.len.saturating_sub(hdr_len.into());
    (gso != Gso::None).then(|| (payload.div_ceil(usize::from(gso_size).max(1)), gso_size))
}

/// Bytes of the frame itself from `from` on.
fn run_len(source: &Source<'_, '_>, from: usize) -> usize {
    (source.frame.len - source.tag).saturating_sub(from)
}

impl<'q, R: Receive> Pass<'q, R> {
    /// Delivers a frame the thorough way. Unless all of it fits, nothing is used except buffers
    /// before it that take no data.
    #[cold]
    #[inline(never)]
    pub fn place(&mut self, frame: &FrameView<'_, '_>) -> Outcome {
        if R::UNCUT && frame.offload.needs_csum && frame.offload.gso == Gso::None {
            return self.place_summed(frame);
        }
        let uncut = uncut(frame);
        let longest = if uncut.is_none() { self.shape.longest } else { self.shape.uncut };
        if frame.len + FCS > longest {
            R::stats(self.ring, self.chip).failed.add(1);
            return Outcome::Dropped(Reason::TooLong);
        }
        let tci = self.strip(frame.head);
        let tag = if tci.is_some() { TAG } else { 0 };
        let total = frame.len.max(SHORTEST) - tag + self.shape.fcs;
        // In a ring of buffers that are all alike it would wait for ever.
        if !R::IN_ORDER && total.div_ceil(self.shape.buffer.max(1)) >= self.size as usize {
            return Outcome::Dropped(Reason::TooLong);
        }
        self.skip_empty();
        let at = At { at: self.at, tail: self.tail, size: self.size, others: 0 };
        let mut parts = Parts::new(at);
        match self.gather(total, &mut parts) {
            Room::Little => return Outcome::NoRoom,
            Room::Never => return Outcome::Dropped(Reason::TooLong),
            Room::Bad => return self.give_up(&parts),
            Room::Enough => {}
        }
        let source = Source { frame: *frame, tag, total };
        self.fill(&source, &mut parts);
        let to = frame.head.first_chunk().map_or(Mac::default(), |to| Mac::new(*to));
        let (sums, note) = (self.verdict(frame), R::note(self.filter, frame));
        let last = Written { sums, tag: tci, to, note, ..Written::default() };
        self.write_back(&parts, source.total, last);
        if uncut.is_some() {
            let stats = R::stats(self.ring, self.chip);
            stats.cut.add(1);
            stats.cut_bytes.add(frame.len as u64);
        }
        Outcome::Delivered
    }

    /// A frame whose checksum is unfinished, for a receiver that takes packets uncut: what it is
    /// told to be right is right, so that it can be forwarded.
    fn place_summed(&mut self, frame: &FrameView<'_, '_>) -> Outcome {
        let Offload { csum_start, csum_offset, .. } = frame.offload;
        let (start, mut head) = (usize::from(csum_start), [0; HEAD]);
        let at = start + usize::from(csum_offset);
        let mut sum = Checksum::new();
        frame.runs(start, usize::MAX).for_each(|run| sum.add_slice(run));
        let head = head.get_mut(..frame.head.len()).unwrap_or_default();
        head.iter_mut().zip(frame.head).for_each(|(to, from)| *to = *from);
        let Some(field) = head.get_mut(at..at + 2) else {
            return Outcome::Dropped(Reason::BadOffload);
        };
        field.copy_from_slice(&sum.finish().to_be_bytes());
        let offload = Offload { csum_valid: true, ..Offload::NONE };
        self.place(&FrameView { head, offload, ..*frame })
    }

    /// The tag to strip.
    fn strip(&self, head: &[u8]) -> Option<u16> {
        let tci = head.get(TAG_AT + 2..TAG_AT + TAG).and_then(|t| t.first_chunk())?;
        let strip = self.shape.strip && self.filter.is_tagged(head);
        strip.then(|| u16::from_be_bytes(*tci))
    }

    /// Writes back buffers at the head of the ring that take no data. Other devices looped over
    /// such buffers for ever.
    fn skip_empty(&mut self) {
        while self.at != self.tail
            && self.budget > 0
            && R::buffer(self.ring, self.at, &self.shape).1 == 0
        {
            let next = add(self.at, 1, self.size);
            if self.ring.is_held() {
                self.ring.mark(self.at);
                self.ring.hand_over(self.at, next);
            }
            R::write_back(self.ring, self.filter, self.at, &Written::default());
            self.at = next;
            self.budget -= 1;
        }
    }

    /// Finds room for `total` bytes.
    fn gather(&mut self, total: usize, parts: &mut Parts<'q>) -> Room {
        let (mut left, mut good) = (total, true);
        while left > 0 {
            if parts.descriptors as usize >= self.shape.most {
                return Room::Never;
            }
            let next = R::next(self.ring, parts.at, parts.descriptors);
            let Some(next) = next.filter(|_| self.budget > 0) else { return Room::Little };
            self.budget -= 1;
            let (addr, room) = R::buffer(self.ring, next.0, &self.shape);
            // In the middle of a frame, a buffer that takes no data loses its share, and the frame
            // with it.
            good &= room > 0;
            let n = left.min(if room > 0 { room } else { self.shape.buffer.max(1) });
            good = good && self.gather_one(addr, n, parts).is_some();
            parts.take(next, n);
            left -= n;
        }
        if good { Room::Enough } else { Room::Bad }
    }

    fn gather_one(&mut self, addr: u64, len: usize, parts: &mut Parts<'q>) -> Option<()> {
        let mut gpa = Some(addr);
        let mut done = 0;
        while done < len {
            self.budget = self.budget.saturating_sub(1);
            let run = self.ring.map().first_run_mut(gpa?, len - done)?;
            done += run.len();
            parts.push(run)?;
            gpa = addr.checked_add(done as u64);
        }
        Some(())
    }

    /// Copies the frame to its pieces.
    fn fill(&self, source: &Source<'_, '_>, parts: &mut Parts<'q>) {
        let mut from = 0;
        for run in parts.runs.iter_mut().flatten() {
            source.fill(run, from);
            from += run.len();
        }
    }

    /// Hands the descriptors of a frame of `total` bytes to the guest. `end`: what the last of them
    /// says.
    fn write_back(&mut self, parts: &Parts<'q>, total: usize, end: Written<R::Note>) {
        if self.ring.is_held() {
            return self.hand_over(parts, total, end);
        }
        let mut done = 0;
        for (number, len) in parts.shares() {
            let first = done == 0;
            done += len;
            let last = done == total;
            let what = if last { end } else { Written { note: end.note, ..Written::default() } };
            let what = Written { len, first, last, total: done, ..what };
            R::write_back(self.ring, self.filter, number, &what);
        }
        self.at = parts.at.at;
    }

    /// The same, so that the next process can tell what the guest has: nothing, until the first
    /// descriptor is written back, after all others.
    fn hand_over(&mut self, parts: &Parts<'q>, total: usize, end: Written<R::Note>) {
        self.mark_all(parts);
        let mut done = total;
        for (number, len) in parts.shares().rev() {
            let last = done == total;
            let what = if last { end } else { Written { note: end.note, ..Written::default() } };
            let what = Written { len, first: done == len, last, total: done, ..what };
            R::write_back(self.ring, self.filter, number, &what);
            done -= len;
        }
        self.at = parts.at.at;
    }

    fn mark_all(&self, parts: &Parts<'q>) {
        parts.shares().for_each(|(number, _)| self.ring.mark(number));
        self.ring.hand_over(self.at, parts.at.at);
    }

    /// Hands back descriptors that cannot be used, so that the ring goes on.
    fn give_up(&mut self, parts: &Parts<'q>) -> Outcome {
        if self.ring.is_held() {
            self.mark_all(parts);
        }
        for (number, _) in parts.shares() {
            let lost = Written { first: true, last: true, failed: true, ..Written::default() };
            R::write_back(self.ring, self.filter, number, &lost);
        }
        self.at = parts.at.at;
        Outcome::Dropped(Reason::BadDescriptor)
    }

    /// What the chip says about checksums of a frame whose upper layer's is known to be right.
    #[inline(never)]
    pub fn sums(&self, frame: &FrameView<'_, '_>) -> Verdict {
        let h = Headers::parse(frame.head, frame.len);
        let (ip, upper) = self.shape.sums;
        let upper = upper && h.header_len > 0 && !h.fragment && matches!(h.protocol, TCP | UDP);
        let ip = h.ipv4_end(frame.head).filter(|_| ip).map(|end| {
            let mut sum = Checksum::new();
            sum.add(frame.head.get(h.l3..end).unwrap_or_default());
            // Over a header with a right checksum the sum is all ones.
            sum.folded() == 0xffff
        });
        Verdict { ip, upper: upper.then_some(h.protocol) }
    }
}
