//! Transmit, second half: what is to be done to a frame, and its way into the batch.
//!
//! A chip says what its descriptors ask for ([`Plan`]); here it is checked against the frame's own
//! headers, and done or left to the receiver. Header bytes are copied out first: what is checked is
//! what is sent. Nothing is written to the guest's memory.

use vmlan_frame::headers::{TCP, UDP};
use vmlan_frame::{
    Batch, Checksum, Gso, HEAD, Headers, MAX_FRAME, MIN_FRAME, Network, Offload, Reason,
};
use vmlan_ram::Slice;

use super::transmit::{Setup, Transmit};
use super::tx_scan::Found;
use crate::chip::frame_totals::{FCS, SHORTEST};

const TAG: usize = 4; // Bytes of a VLAN tag.
const TAG_AT: usize = 12; // Where it goes.
const CWR: u8 = 0x80; // CWR, which a receiver must see only once (RFC 3168).

/// A checksum: over bytes `start` to `end` (0: the frame's end), stored at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u8,
    /// Where it goes.
    pub at: u8,
    /// Its last byte; 0: the frame's.
    pub last: u16,
}

/// Checksums that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    #[default]
    None,
    /// Where they are is told (e1000). Places are those before a tag is inserted.
    Told {
        /// The IP header's.
        ip: Option<Range>,
        /// The upper layer's.
        upper: Option<Range>,
    },
    /// The chip finds them itself (Realtek). A checksum that the frame does not have is left out.
    Found {
        /// The IPv4 header's.
        ip: bool,
        /// The upper layer's, if it is this protocol.
        upper: Option<u8>,
    },
}

/// What is told about the headers of a packet to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes of headers and of payload.
    pub headers: u8,
    /// Bytes of the payload.
    pub payload: u32,
    /// Where the network header begins.
    pub l3: u8,
    /// Where the transport header begins.
    pub l4: u8,
    /// Where its checksum goes.
    pub at: u8,
    /// IPv4; else IPv6.
    pub ipv4: bool,
    /// TCP; else UDP.
    pub tcp: bool,
}

/// Segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Payload bytes of each segment.
    pub mss: u16,
    /// What the headers must be.
    pub headers: Wanted,
}

/// What the headers of a packet to be segmented must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// As they are told to be (e1000).
    Told(Told),
    /// TCP on IPv4: the chip finds them itself (Realtek).
    Tcp4,
    /// TCP on either IP, in so many bytes, an inserted tag not among them (vmxnet3).
    Tcp(usize),
}

/// What is to be done to a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Plan {
    /// It brings its own FCS: cut it off.
    pub fcs: bool,
    /// Insert a VLAN tag: EtherType, tag control information.
    pub tag: Option<(u16, u16)>,
    pub pad: bool,
    pub sums: Checksums,
    /// Segment it; then checksums are part of that.
    pub segment: Option<Segment>,
}

/// Adds the frame to the batch.
pub fn add<'q, T: Transmit>(
    found: &Found<T>,
    pieces: &mut [Slice<'q>],
    setup: Setup,
    batch: &mut Batch<'q>,
) -> Result<(), Reason> {
    if let Some(reason) = found.bad {
        return Err(reason);
    }
    // What this refuses goes the thorough way, which knows the reason.
    match T::as_it_is(found, setup) {
        Some(offload) if batch.add(pieces, offload).is_ok() => Ok(()),
        _ => add_changed(found.len as usize, &T::plan(found, setup)?, pieces, batch),
    }
}

/// Adds a frame that something is to be done to.
#[inline(never)]
fn add_changed<'q>(
    mut len: usize,
    plan: &Plan,
    pieces: &mut [Slice<'q>],
    batch: &mut Batch<'q>,
) -> Result<(), Reason> {
    if plan.fcs {
        len = len.saturating_sub(FCS);
        trim(pieces, len);
    }
    if len < MIN_FRAME {
        return Err(Reason::Runt);
    }
    if len > MAX_FRAME - TAG {
        return Err(Reason::TooLong);
    }
    let mut frame = Frame::new(pieces, len);
    if let Some((ethertype, tci)) = plan.tag {
        frame.insert_tag(ethertype, tci);
    }
    let offload = frame.finish(plan)?;
    // Segments are padded where they are cut: padding here would be payload of the last one.
    if plan.pad && offload.gso == Gso::None {
        frame.pad();
    }
    let Frame { head, used, body, rest, .. } = frame;
    let body = std::iter::once(rest).chain(body.iter().copied()).filter(|s| !s.is_empty());
    batch.add_parts(head.get(..used).unwrap_or_default(), body, offload)
}

/// Cuts the pieces off after `len` bytes.
fn trim(pieces: &mut [Slice<'_>], len: usize) {
    let mut left = len;
    for piece in pieces {
        *piece = piece.sub(0, left);
        left -= piece.len();
    }
}

/// A frame in the making.
struct Frame<'p, 'q> {
    head: [u8; HEAD],
    /// Bytes of the head that are the frame's.
    used: usize,
    /// What follows: the rest of the piece that the head ends in, and the pieces behind it.
    rest: Slice<'q>,
    body: &'p [Slice<'q>],
    len: usize,
    /// Bytes of VLAN tag inserted.
    tag: usize,
}

impl<'p, 'q> Frame<'p, 'q> {
    /// Copies out the first bytes, leaving room for a tag.
    fn new(pieces: &'p [Slice<'q>], len: usize) -> Self {
        let mut head = [0; HEAD];
        let (mut used, mut rest, mut body) = (0, Slice::from_bytes(&[]), pieces);
        while let Some((piece, behind)) = body.split_first() {
            let n = piece.read(head.get_mut(used..HEAD - TAG).unwrap_or_default());
            used += n;
            body = behind;
            if n < piece.len() {
                rest = piece.sub(n, usize::MAX);
                break;
            }
        }
        Self { head, used, rest, body, len, tag: 0 }
    }

    /// The special field as tag control information, behind the addresses. The tag never touches
    /// guest memory.
    fn insert_tag(&mut self, vet: u16, tci: u16) {
        self.head.copy_within(TAG_AT..HEAD - TAG, TAG_AT + TAG);
        self.set16(TAG_AT, vet);
        self.set16(TAG_AT + 2, tci);
        (self.used, self.len, self.tag) = (self.used + TAG, self.len + TAG, TAG);
    }

    fn set16(&mut self, at: usize, value: u16) {
        if let Some(field) = self.head.get_mut(at..at + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
    }

    fn bytes(&self) -> &[u8] {
        self.head.get(..self.used).unwrap_or_default()
    }

    /// Zeros behind a short frame, which lies in the head whole: what is there was never anything
    /// else.
    fn pad(&mut self) {
        if self.len < SHORTEST {
            (self.used, self.len) = (SHORTEST, SHORTEST);
        }
    }

    /// Does what the descriptors ask for, or says how it is to be done.
    fn finish(&mut self, plan: &Plan) -> Result<Offload, Reason> {
        if let Some(segment) = &plan.segment {
            return self.segment(segment);
        }
        match plan.sums {
            Checksums::None => Ok(Offload::NONE),
            Checksums::Told { ip, upper } => {
                if let Some(ip) = ip {
                    let (start, at, end) = self.range(ip)?;
                    self.sum_head(start, at, end)?;
                }
                let Some(upper) = upper else { return Ok(Offload::NONE) };
                let (start, at, end) = self.range(upper)?;
                self.sum(start, at, end)
            }
            Checksums::Found { ip, upper } => self.sum_found(ip, upper),
        }
    }

    /// The checksums of a frame whose headers say where they are.
    fn sum_found(&mut self, ip: bool, upper: Option<u8>) -> Result<Offload, Reason> {
        let h = Headers::parse(self.bytes(), self.len);
        if ip && let Some(end) = h.ipv4_end(self.bytes()) {
            self.set16(h.l3 + 10, 0);
            self.sum_head(h.l3, h.l3 + 10, end)?;
        }
        let field = match h.protocol {
            TCP => 16,
            UDP => 6,
            _ => return Ok(Offload::NONE),
        };
        if upper != Some(h.protocol) || h.header_len == 0 || h.fragment {
            return Ok(Offload::NONE);
        }
        let Some(pseudo) = Checksum::pseudo_header(self.bytes(), &h, self.upper_len(&h)) else {
            return Ok(Offload::NONE);
        };
        // What follows the packet, as padding does, is not summed.
        let end = h.l4 + self.upper_len(&h);
        self.set16(h.l4 + field, pseudo.folded());
        self.sum(h.l4, h.l4 + field, end)
    }

    /// Where a place that the guest knows without the tag lies now.
    fn place(&self, at: u8) -> Result<usize, Reason> {
        let at = usize::from(at);
        match self.tag {
            0 => Ok(at),
            _ if at < TAG_AT => Err(Reason::BadOffload),
            tag => Ok(at + tag),
        }
    }

    /// One past the last byte of a checksum's range; 0 means all.
    fn end(&self, last: u16) -> usize {
        if last == 0 { self.len } else { usize::from(last) + 1 + self.tag }
    }

    /// A range as it lies now.
    fn range(&self, range: Range) -> Result<(usize, usize, usize), Reason> {
        Ok((self.place(range.start)?, self.place(range.at)?, self.end(range.last)))
    }

    /// The IP header's checksum: range and place must lie in the head, as headers do.
    fn sum_head(&mut self, start: usize, at: usize, end: usize) -> Result<(), Reason> {
        if at + 2 > self.used {
            return Err(Reason::BadOffload);
        }
        let range = self.bytes().get(start..end).ok_or(Reason::BadOffload)?;
        let mut sum = Checksum::new();
        sum.add(range);
        self.set16(at, sum.finish());
        Ok(())
    }

    /// The upper layer's checksum: left to the receiver if it can be told, else computed here.
    fn sum(&mut self, start: usize, at: usize, end: usize) -> Result<Offload, Reason> {
        if start >= end || end > self.len || at + 2 > self.used {
            return Err(Reason::BadOffload);
        }
        if end == self.len
            && let Some(offload) = unfinished(start, at)
            && let Ok(offload) = offload.check(self.bytes(), self.len)
        {
            return Ok(offload);
        }
        let mut sum = Checksum::new();
        let (mut skip, mut left) = (start, end - start);
        let head = Slice::from_bytes(self.bytes());
        for run in [head, self.rest].iter().chain(self.body) {
            let part = run.sub(skip, left);
            skip = skip.saturating_sub(run.len());
            left -= part.len();
            sum.add_slice(part);
        }
        let sum = sum.finish();
        self.set16(at, sum);
        Ok(Offload::NONE)
    }

    /// Segmentation: headers become those of the whole, as a receiver that takes it in one piece
    /// expects.
    fn segment(&mut self, segment: &Segment) -> Result<Offload, Reason> {
        let (h, at) = self.agreed(segment)?;
        let small = |n| u16::try_from(n).map_err(|_| Reason::TooLong);
        let packet = self.len - h.l3;
        if h.network == Network::Ipv4 {
            self.set16(h.l3 + 2, small(packet)?);
            self.set16(h.l3 + 10, 0);
            self.sum_head(h.l3, h.l3 + 10, h.l4)?;
        } else {
            self.set16(h.l3 + 4, small(packet.saturating_sub(40))?);
        }
        let upper = self.len - h.l4;
        if h.protocol != TCP {
            self.set16(h.l4 + 4, small(upper)?);
        }
        let sum = Checksum::pseudo_header(self.bytes(), &h, upper).ok_or(Reason::BadHeader)?;
        let offload = unfinished(h.l4, at).ok_or(Reason::BadOffload)?;
        // Also checked below; but nothing is written where no checksum is.
        offload.check(self.bytes(), self.len)?;
        self.set16(at, sum.folded());
        let mut offload = Offload { gso_size: segment.mss, ..offload };
        // What fits one segment is not segmentation.
        if self.len - h.header_len > usize::from(segment.mss) {
            offload.gso = kind_of(&h);
            let flags = self.head.get(h.l4 + 13).copied().unwrap_or_default();
            offload.ecn = h.protocol == TCP && flags & CWR != 0;
        }
        offload.check(self.bytes(), self.len)
    }

    /// The headers, if they are where they were told to be, and the place of the upper checksum.
    fn agreed(&self, segment: &Segment) -> Result<(Headers, usize), Reason> {
        let h = Headers::parse(self.bytes(), self.len);
        if segment.mss == 0 {
            return Err(Reason::BadOffload);
        }
        let tcp = h.header_len > 0 && !h.fragment && h.protocol == TCP;
        let found = |good| if good { Ok((h, h.l4 + 16)) } else { Err(Reason::BadHeader) };
        let told = match segment.headers {
            Wanted::Told(told) => told,
            Wanted::Tcp4 => return found(tcp && h.network == Network::Ipv4),
            Wanted::Tcp(bytes) => return found(tcp && h.header_len == bytes + self.tag),
        };
        let total = u64::from(told.payload) + u64::from(told.headers) + self.tag as u64;
        if total != self.len as u64 {
            return Err(Reason::BadOffload);
        }
        let as_told = h.header_len == usize::from(told.headers) + self.tag
            && h.l3 == self.place(told.l3)?
            && h.l4 == self.place(told.l4)?
            && (h.network == Network::Ipv4) == told.ipv4
            && (h.protocol == TCP) == told.tcp;
        let good = h.header_len > 0 && !h.fragment && as_told;
        if good { Ok((h, self.place(told.at)?)) } else { Err(Reason::BadHeader) }
    }

    /// Bytes of the transport header and what is behind it, as the network header has them.
    fn upper_len(&self, h: &Headers) -> usize {
        let end = h.l3 + h.ip_len;
        end.clamp(h.l4, self.len) - h.l4
    }
}

/// The claim that the checksum from `start` to the end is to be stored at `at`.
pub fn unfinished(start: usize, at: usize) -> Option<Offload> {
    Some(Offload {
        needs_csum: true,
        csum_start: u16::try_from(start).ok()?,
        csum_offset: u16::try_from(at.checked_sub(start)?).ok()?,
        ..Offload::NONE
    })
}

fn kind_of(h: &Headers) -> Gso {
    match (h.protocol, h.network) {
        (TCP, Network::Ipv4) => Gso::Tcp4,
        (TCP, _) => Gso::Tcp6,
        _ => Gso::Udp,
    }
}
