//! Transmit, second half: a frame's pieces become a snapshot of its first bytes with everything in place that the chip
//! would put there, and the borrowed rest (SDM 3.4 segmentation, 3.5 checksums, 9.1 VLANs).
//!
//! What the chip does to headers is done in the snapshot, before anybody decides by it. What costs a walk through the payload is
//! left to the receiver or to egress where that means the same ([`Offload`]): one checksum to the frame's
//! end, and segmentation. UDP with TSE becomes USO: as the chip's, each of its segments has the UDP header with a
//! length of its own.
//!
//! Segmentation is only done to what it is meant for: IPv4 or IPv6 with TCP or UDP, whose headers are where the context says,
//! and whose length it tells. Anything else is dropped and counted. Where the IP header's checksum was not asked for (IXSM) it is
//! computed nevertheless.

use vmlan_frame::headers::TCP;
use vmlan_frame::{
    Batch, Checksum, Gso, HEAD, Headers, MAX_FRAME, MAX_GSO, MIN_FRAME, Network, Offload, Reason,
};
use vmlan_ram::Slice;

use super::desc::{Context, Kind, kind, legacy_sum, special, tx};
use super::stats::{FCS, SHORTEST};
use super::tx_scan::{Found, Want};

/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Where it goes.
const TAG_AT: usize = 12;
/// The header that a guest of CWR's meaning must see once only (RFC 3168).
const CWR: u8 = 0x80;

/// What the registers say about all frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// CTRL.VME: the tag's EtherType, from VET.
    pub vlan: Option<u16>,
    /// TCTL.PSP.
    pub pad: bool,
}

/// Adds the frame to the batch.
///
/// # Errors
/// Why it is dropped.
pub fn add<'q>(
    found: &Found,
    pieces: &mut [Slice<'q>],
    setup: Setup,
    batch: &mut Batch<'q>,
) -> Result<(), Reason> {
    if let Some(reason) = found.bad {
        return Err(reason);
    }
    // What this refuses is looked at the thorough way, which knows why.
    match as_it_is(found, setup) {
        Some(offload) if batch.add(pieces, offload).is_ok() => Ok(()),
        _ => add_changed(found, pieces, setup, batch),
    }
}

/// The offload of a frame to whose bytes nothing is to be done here.
#[inline]
fn as_it_is(found: &Found, setup: Setup) -> Option<Offload> {
    let Want { first, last, context: c } = &found.want;
    let short = setup.pad && (found.len as usize) < SHORTEST;
    let tagged = setup.vlan.is_some() && last & tx::VLE != 0;
    // TSE of a data descriptor is the legacy descriptor's IC.
    if short || tagged || last & tx::IFCS == 0 || (first | last) & tx::TSE != 0 {
        return None;
    }
    match (first & tx::DEXT, first & (tx::IXSM | tx::TXSM)) {
        (0, _) | (_, 0) => Some(Offload::NONE),
        (_, tx::TXSM) if c.tucse == 0 => unfinished(c.tucss.into(), c.tucso.into()),
        _ => None,
    }
}

/// Adds a frame that something is to be done to.
#[inline(never)]
fn add_changed<'q>(
    found: &Found,
    pieces: &mut [Slice<'q>],
    setup: Setup,
    batch: &mut Batch<'q>,
) -> Result<(), Reason> {
    let mut len = found.len as usize;
    if found.want.last & tx::IFCS == 0 {
        len = len.saturating_sub(FCS);
        trim(pieces, len);
    }
    let tag = setup.vlan.filter(|_| found.want.last & tx::VLE != 0);
    let most = if found.want.segments() { MAX_GSO } else { MAX_FRAME };
    if len < MIN_FRAME {
        return Err(Reason::Runt);
    }
    if len > most - TAG {
        return Err(Reason::TooLong);
    }
    let mut frame = Frame::new(pieces, len);
    if let Some(vet) = tag {
        frame.insert_tag(vet, special(found.want.last));
    }
    let offload = frame.finish(&found.want)?;
    // Segments are padded by whoever cuts them: padding here would be payload of the last.
    if setup.pad && offload.gso == Gso::None {
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

    /// The special field as tag control information, behind the addresses. The tag never touches guest memory.
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

    /// Zeros behind a short frame, which lies in the head whole: what is there was never anything else.
    fn pad(&mut self) {
        if self.len < SHORTEST {
            (self.used, self.len) = (SHORTEST, SHORTEST);
        }
    }

    /// Does what the descriptors ask for, or says how it is to be done.
    fn finish(&mut self, want: &Want) -> Result<Offload, Reason> {
        if want.segments() {
            return self.segment(want);
        }
        if kind(want.first) == Kind::Legacy {
            if want.last & tx::IC == 0 {
                return Ok(Offload::NONE);
            }
            let (start, at) = legacy_sum(want.last);
            return self.sum(self.place(start)?, self.place(at)?, self.len);
        }
        let c = &want.context;
        if want.first & tx::IXSM != 0 {
            let (start, at) = (self.place(c.ipcss)?, self.place(c.ipcso)?);
            let end = self.end(c.ipcse);
            self.sum_head(start, at, end)?;
        }
        if want.first & tx::TXSM == 0 {
            return Ok(Offload::NONE);
        }
        self.sum(self.place(c.tucss)?, self.place(c.tucso)?, self.end(c.tucse))
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

    /// Segmentation (3.4): headers become those of the whole, as a receiver that takes it in one piece expects.
    fn segment(&mut self, want: &Want) -> Result<Offload, Reason> {
        let c = want.context;
        let told = u64::from(c.paylen) + u64::from(c.hdrlen);
        if c.mss == 0 || want.first & tx::TXSM == 0 || told + self.tag as u64 != self.len as u64 {
            return Err(Reason::BadOffload);
        }
        let h = self.agreed(&c)?;
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
        let at = self.place(c.tucso)?;
        let offload = unfinished(h.l4, at).ok_or(Reason::BadOffload)?;
        // Also checked below; but nothing is written where no checksum is.
        offload.check(self.bytes(), self.len)?;
        self.set16(at, sum.folded());
        let mut offload = Offload { gso_size: c.mss, ..offload };
        // What fits one segment is no segmentation.
        if self.len - h.header_len > usize::from(c.mss) {
            offload.gso = kind_of(&h);
            let flags = self.head.get(h.l4 + 13).copied().unwrap_or_default();
            offload.ecn = h.protocol == TCP && flags & CWR != 0;
        } else if self.len > MAX_FRAME {
            return Err(Reason::TooLong);
        }
        offload.check(self.bytes(), self.len)
    }

    /// The headers, if they are where the context says.
    fn agreed(&self, c: &Context) -> Result<Headers, Reason> {
        let h = Headers::parse(self.bytes(), self.len);
        let as_told = h.header_len == usize::from(c.hdrlen) + self.tag
            && h.l3 == self.place(c.ipcss)?
            && h.l4 == self.place(c.tucss)?
            && (h.network == Network::Ipv4) == c.ipv4
            && (h.protocol == TCP) == c.tcp;
        if h.header_len > 0 && !h.fragment && as_told { Ok(h) } else { Err(Reason::BadHeader) }
    }
}

/// The claim that the checksum from `start` to the end is to be stored at `at`.
fn unfinished(start: usize, at: usize) -> Option<Offload> {
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
