//! Receiving what does not fit one buffer as it is: long frames (SDM 3.2.2), tags to be stripped (9.2), null buffers (3.2.3).

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{Checksum, FrameView, Headers, Network, Reason};
use vmlan_ram::{Slice, SliceMut};

use super::desc::{rx, rx::SPECIAL_SHIFT};
use super::ring::add;
use super::rx::{Pass, ZEROS};
use super::stats::{FCS, SHORTEST};

/// Pieces of memory that one frame is spread over, and descriptors: the longest, in buffers of 256 bytes, needs 37.
const MAX_PARTS: usize = 64;

/// Where a VLAN tag begins, and its bytes.
const TAG_AT: usize = 12;
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
    /// Descriptors taken, and bytes in each but the last.
    descriptors: u32,
}

impl<'m> Parts<'m> {
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

/// Bytes of the frame itself from `from` on.
fn run_len(source: &Source<'_, '_>, from: usize) -> usize {
    (source.frame.len - source.tag).saturating_sub(from)
}

impl<'q> Pass<'q> {
    /// Delivers a frame the thorough way. Nothing is used unless all of it fits, but null buffers before it.
    #[cold]
    #[inline(never)]
    pub fn place(&mut self, frame: &FrameView<'_, '_>) -> Outcome {
        if frame.len + FCS > self.filter.longest {
            self.count_long();
            return Outcome::Dropped(Reason::TooLong);
        }
        let (tag, special) = self.strip(frame.head);
        let total = frame.len.max(SHORTEST) - tag + self.filter.fcs;
        if total.div_ceil(self.filter.buffer) >= self.size as usize {
            return Outcome::Dropped(Reason::TooLong);
        }
        self.skip_null();
        let mut parts = Parts { runs: [const { None }; MAX_PARTS], used: 0, descriptors: 0 };
        match self.gather(total, &mut parts) {
            None => return Outcome::NoRoom,
            Some(false) => return self.give_up(&parts),
            Some(true) => {}
        }
        let source = Source { frame: *frame, tag, total };
        self.fill(&source, &mut parts);
        let status = if frame.offload.csum_valid { self.sums_status(frame) } else { rx::IXSM };
        self.write_back(&parts, source.total, status | special);
        Outcome::Delivered
    }

    /// Bytes of the tag to strip, and what the descriptor says about it.
    fn strip(&self, head: &[u8]) -> (usize, u64) {
        let tci = head.get(TAG_AT + 2..TAG_AT + TAG).and_then(|t| t.first_chunk());
        match tci {
            Some(tci) if self.filter.strip && self.filter.is_tagged(head) => {
                (TAG, rx::VP | u64::from(u16::from_be_bytes(*tci)) << SPECIAL_SHIFT)
            }
            _ => (0, 0),
        }
    }

    /// Writes back null buffers at the head of the ring, which take no data (`reliability.md` rows 5 and 7).
    fn skip_null(&mut self) {
        while self.at != self.tail && self.budget > 0 && self.ring.address(self.at) == 0 {
            self.ring.write_back(self.at, rx::DD);
            self.at = add(self.at, 1, self.size);
            self.budget -= 1;
        }
    }

    /// Finds room for `total` bytes. `None`: there is none; false: it is not in the guest's memory, or too
    /// scattered.
    fn gather(&mut self, total: usize, parts: &mut Parts<'q>) -> Option<bool> {
        let (mut at, mut left, mut good) = (self.at, total, true);
        while left > 0 {
            if at == self.tail || self.budget == 0 {
                return None;
            }
            self.budget -= 1;
            let addr = self.ring.address(at);
            let n = left.min(self.filter.buffer);
            good = good && self.gather_one(addr, n, parts).is_some();
            parts.descriptors += 1;
            left -= n;
            at = add(at, 1, self.size);
        }
        Some(good)
    }

    fn gather_one(&mut self, addr: u64, len: usize, parts: &mut Parts<'q>) -> Option<()> {
        // A null buffer amid a frame takes its share and loses it; so the frame is lost.
        let mut gpa = Some(addr).filter(|addr| *addr != 0);
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

    /// Hands the descriptors of a frame to the guest.
    fn write_back(&mut self, parts: &Parts<'q>, total: usize, last: u64) {
        let mut left = total;
        for _ in 0..parts.descriptors {
            let n = left.min(self.filter.buffer);
            left -= n;
            let end = if left == 0 { rx::EOP | last } else { rx::IXSM };
            self.ring.write_back(self.at, rx::DD | end | n as u64);
            self.at = add(self.at, 1, self.size);
        }
    }

    /// Hands back descriptors that cannot be used, so that the ring goes on.
    fn give_up(&mut self, parts: &Parts<'q>) -> Outcome {
        for _ in 0..parts.descriptors {
            self.ring.write_back(self.at, rx::DD | rx::EOP | rx::IXSM | rx::RXE);
            self.at = add(self.at, 1, self.size);
        }
        Outcome::Dropped(Reason::BadDescriptor)
    }

    /// What the chip says about checksums of a frame whose upper layer's is known to be right (3.2.9).
    #[inline(never)]
    pub fn sums_status(&self, frame: &FrameView<'_, '_>) -> u64 {
        let h = Headers::parse(frame.head, frame.len);
        let upper = self.filter.sums && h.header_len > 0 && !h.fragment;
        let mut status = match h.protocol {
            TCP | UDP if upper => rx::TCPCS,
            _ => 0,
        };
        if self.filter.ip_sums && h.network == Network::Ipv4 {
            let mut sum = Checksum::new();
            sum.add(frame.head.get(h.l3..h.l4.max(h.l3)).unwrap_or_default());
            // Over a header with a right checksum the sum is all ones.
            let wrong = h.l4 == 0 || sum.folded() != 0xffff;
            status |= rx::IPCS | if wrong { rx::IPE } else { 0 };
        }
        if status == 0 { rx::IXSM } else { status }
    }
}
