//! What a receiver cannot do, done in software: checksums and segmentation.
//!
//! ```text
//!  one frame   [ headers | payload ........................................ ]
//!                  │ copied and renumbered for each   │ borrowed, never copied
//!  segments    [ headers' | gso_size ] [ headers' | gso_size ] [ headers' | rest ]
//! ```
//!
//! Bytes of the payload that lie in the snapshot are delivered from there, as everywhere: they go
//! into the new frames' own heads.

use vmlan_ram::Slice;

use crate::headers::{IPV6_HEADER, TCP};
use crate::{
    Batch, Checksum, FrameView, Gso, HEAD, Headers, MAX_PACKET, Network, Offload, Offloads, Reason,
};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// What is to be done to the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Nothing,
    Sum,
    Cut {
        /// The receiver takes unfinished checksums: leave them to it.
        leave_sum: bool,
    },
}

/// Makes of one frame those that a receiver can take. Resumable: it goes on where the output batch
/// was full. It allocates nothing, and its work is bounded by the frame's pieces and segments (at
/// most 1,366).
pub struct Finisher<'b, 'm> {
    head: &'b [u8],
    offload: Offload,
    headers: Headers,
    work: Work,
    payload: usize,
    /// Payload bytes that went out already.
    done: usize,
    count: usize,
    next: usize,
    body: Runs<'b, 'm>,
}

impl<'b, 'm> Finisher<'b, 'm> {
    /// Prepares `frame` for a receiver that takes `offloads`.
    ///
    /// # Errors
    /// Those of [`Offload::check`], which is done once more: the frame may come from anywhere.
    pub fn new(frame: FrameView<'b, 'm>, offloads: Offloads) -> Result<Self, Reason> {
        let FrameView { head, body, offload, .. } = frame;
        if head.len() > HEAD {
            return Err(Reason::BadHeader);
        }
        let len = body.iter().fold(head.len(), |sum, piece| sum + piece.len());
        let (offload, headers) = offload.verify(head, len)?;
        let leave_sum = offloads.covers(Offloads::CSUM);
        let work = match offload.gso {
            _ if offloads.covers(offload.needs()) => Work::Nothing,
            Gso::None => Work::Sum,
            _ => Work::Cut { leave_sum },
        };
        let payload = len.saturating_sub(headers.header_len);
        let count = match work {
            Work::Cut { .. } => payload.div_ceil(usize::from(offload.gso_size).max(1)).max(1),
            _ => 1,
        };
        let body = Runs { pieces: body, skip: 0, left: len - head.len() };
        Ok(Self { head, offload, headers, work, payload, done: 0, count, next: 0, body })
    }

    /// Frames that come of it, those already out included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Appends as many of the frames as `out` has room for. Returns true if there are more: empty
    /// `out` and call again.
    ///
    /// # Errors
    /// [`Reason::TooLong`] if a frame has more pieces than an empty batch holds; the rest is then
    /// lost.
    pub fn fill(&mut self, out: &mut Batch<'m>) -> Result<bool, Reason> {
        while self.next < self.count {
            let body = self.next_body();
            if !out.has_room(body.count()) {
                return if out.is_empty() { Err(Reason::TooLong) } else { Ok(true) };
            }
            match self.work {
                Work::Nothing => out.add_parts(self.head, body, self.offload)?,
                Work::Sum => self.sum(body, out)?,
                Work::Cut { leave_sum } => self.cut(body, leave_sum, out)?,
            }
            self.next += 1;
        }
        Ok(false)
    }

    /// Payload bytes of the next segment, and how many of them lie in the snapshot.
    fn next_size(&self) -> (usize, usize) {
        let size = usize::from(self.offload.gso_size).min(self.payload - self.done);
        let snapshot = self.head.len().saturating_sub(self.headers.header_len + self.done);
        (size, snapshot.min(size))
    }

    /// The borrowed bytes of the next frame.
    fn next_body(&self) -> Runs<'b, 'm> {
        match self.work {
            Work::Cut { .. } => {
                let (size, in_head) = self.next_size();
                self.body.first(size - in_head)
            }
            _ => self.body,
        }
    }

    /// Fills in the one checksum and changes nothing else.
    fn sum(&self, body: Runs<'b, 'm>, out: &mut Batch<'m>) -> Result<(), Reason> {
        let mut head = Head::new(self.head)?;
        let start = usize::from(self.offload.csum_start);
        // The field still holds the pseudo-header's sum and is summed with the rest.
        let mut sum = Checksum::new();
        sum.add(self.head.get(start..).unwrap_or_default());
        body.for_each(|run| sum.add_slice(run));
        head.set(start + usize::from(self.offload.csum_offset), &sum.finish().to_be_bytes());
        out.add_parts(head.bytes(), body, VALID)
    }

    /// Cuts off one segment.
    fn cut(
        &mut self,
        body: Runs<'b, 'm>,
        leave_sum: bool,
        out: &mut Batch<'m>,
    ) -> Result<(), Reason> {
        let (size, in_head) = self.next_size();
        let from = self.headers.header_len + self.done;
        let mut head = Head::new(self.head.get(..self.headers.header_len).unwrap_or_default())?;
        head.append(self.head.get(from..from + in_head).unwrap_or_default());
        self.set_ip(&mut head, size);
        self.set_transport(&mut head, size);
        let sum = self.pseudo_header(&head, size).ok_or(Reason::BadHeader)?;
        let offload =
            if leave_sum { self.leave(&mut head, sum) } else { self.finish(&mut head, sum, body) };
        out.add_parts(head.bytes(), body, offload)?;
        self.body = self.body.after(size - in_head);
        self.done += size;
        Ok(())
    }

    /// Length, and for IPv4 identification and header checksum (RFC 791 section 3.1).
    fn set_ip(&self, head: &mut Head, size: usize) {
        let l3 = self.headers.l3;
        let packet = self.headers.header_len - l3 + size;
        if self.headers.network == Network::Ipv6 {
            head.set_u16(l3 + 4, packet.saturating_sub(IPV6_HEADER));
            return;
        }
        head.set_u16(l3 + 2, packet);
        head.set_u16(l3 + 4, (head.u16(l3 + 4) + self.next) & 0xffff);
        head.set(l3 + 10, &[0, 0]);
        let mut sum = Checksum::new();
        sum.add(head.get(l3, self.headers.l4 - l3));
        head.set(l3 + 10, &sum.finish().to_be_bytes());
    }

    /// TCP: sequence number and flags; UDP: length. The checksum field becomes 0.
    fn set_transport(&self, head: &mut Head, size: usize) {
        let l4 = self.headers.l4;
        head.set(l4 + usize::from(self.offload.csum_offset), &[0, 0]);
        if self.headers.protocol != TCP {
            head.set_u16(l4 + 4, 8 + size);
            return;
        }
        let before = head.get(l4 + 4, 4).try_into().map_or(0, u32::from_be_bytes);
        // Sequence numbers are counted modulo 2^32.
        let [.., a, b, c, d] = self.done.to_be_bytes();
        let sequence = before.wrapping_add(u32::from_be_bytes([a, b, c, d]));
        head.set(l4 + 4, &sequence.to_be_bytes());
        let mut flags = head.get(l4 + 13, 1).first().copied().unwrap_or_default();
        if self.next > 0 {
            flags &= !CWR; // RFC 3168 section 6.1.2: answered once.
        }
        if self.next + 1 < self.count {
            flags &= !(FIN | PSH);
        }
        head.set(l4 + 13, &[flags]);
    }

    fn pseudo_header(&self, head: &Head, size: usize) -> Option<Checksum> {
        let len = self.headers.header_len - self.headers.l4 + size;
        Checksum::pseudo_header(head.bytes(), &self.headers, len)
    }

    fn sum_field(&self) -> usize {
        self.headers.l4 + usize::from(self.offload.csum_offset)
    }

    fn leave(&self, head: &mut Head, sum: Checksum) -> Offload {
        head.set(self.sum_field(), &sum.folded().to_be_bytes());
        let Offload { csum_start, csum_offset, hdr_len, .. } = self.offload;
        Offload { needs_csum: true, csum_start, csum_offset, hdr_len, ..Offload::NONE }
    }

    fn finish(&self, head: &mut Head, mut sum: Checksum, body: Runs<'b, 'm>) -> Offload {
        sum.add(head.get(self.headers.l4, HEAD));
        body.for_each(|run| sum.add_slice(run));
        head.set(self.sum_field(), &sum.finish().to_be_bytes());
        VALID
    }
}

/// A frame whose checksum we computed ourselves.
const VALID: Offload = Offload { csum_valid: true, ..Offload::NONE };

/// The head of a new frame. Reads outside it give nothing and writes outside do nothing: every
/// place was checked by the parser, so neither happens.
struct Head {
    bytes: [u8; HEAD],
    len: usize,
}

impl Head {
    fn new(bytes: &[u8]) -> Result<Self, Reason> {
        let mut head = Self { bytes: [0; HEAD], len: 0 };
        head.append(bytes);
        if head.len == bytes.len() { Ok(head) } else { Err(Reason::BadHeader) }
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(free) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            free.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Up to `len` bytes at `at`.
    fn get(&self, at: usize, len: usize) -> &[u8] {
        let rest = self.bytes().get(at..).unwrap_or_default();
        rest.get(..len).unwrap_or(rest)
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if at + bytes.len() <= self.len
            && let Some(field) = self.bytes.get_mut(at..at + bytes.len())
        {
            field.copy_from_slice(bytes);
        }
    }

    fn u16(&self, at: usize) -> usize {
        self.get(at, 2).try_into().map_or(0, |b| usize::from(u16::from_be_bytes(b)))
    }

    /// Stores `value`, which fits: [`Offload::check`] refuses segments that are longer than an IP
    /// packet can be.
    fn set_u16(&mut self, at: usize, value: usize) {
        debug_assert!(value <= MAX_PACKET, "{value} bytes are no packet's length");
        let [.., high, low] = value.to_be_bytes();
        self.set(at, &[high, low]);
    }
}

/// A range of the borrowed bytes, run by run. Cutting the first bytes off one after the other costs
/// a step for each run and each cut, however many runs there are.
#[derive(Clone, Copy)]
struct Runs<'b, 'm> {
    pieces: &'b [Slice<'m>],
    /// Bytes of the first piece that are not in the range.
    skip: usize,
    left: usize,
}

impl Runs<'_, '_> {
    fn first(self, len: usize) -> Self {
        Self { left: len.min(self.left), ..self }
    }

    fn after(self, len: usize) -> Self {
        let mut passed = self.first(len);
        passed.by_ref().for_each(drop);
        Self { left: self.left.saturating_sub(len), ..passed }
    }
}

impl<'m> Iterator for Runs<'_, 'm> {
    type Item = Slice<'m>;

    #[inline]
    fn next(&mut self) -> Option<Slice<'m>> {
        while self.left > 0 {
            let (piece, rest) = self.pieces.split_first()?;
            let run = piece.sub(self.skip, self.left);
            self.left -= run.len();
            self.skip += run.len();
            if self.skip >= piece.len() {
                (self.pieces, self.skip) = (rest, 0);
            }
            if !run.is_empty() {
                return Some(run);
            }
        }
        None
    }
}
