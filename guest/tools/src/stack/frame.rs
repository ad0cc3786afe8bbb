//! UDP datagrams over IPv4 over Ethernet (RFC 768, RFC 791), for the path past smoltcp.

use std::net::{Ipv4Addr, SocketAddrV4};
use vmlan_transport::numbers::narrow16;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
pub(super) const IPV4: usize = 20;
/// Bytes of a UDP header.
pub(super) const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const MORE_FRAGMENTS: u16 = 0x2000;

/// The ones' complement sum of `bytes`, which start at an even offset; not folded.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    for (n, byte) in rest.iter().enumerate() {
        total += u64::from(*byte) << (8 * (3 - n));
    }
    total
}

/// Folds a sum to 16 bits.
#[inline]
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    narrow16(sum)
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// The pseudo header's sum.
fn pseudo(addresses: &[u8], length: usize) -> u64 {
    sum(addresses) + u64::from(PROTOCOL_UDP) + length as u64
}

/// Both ends of a flow, as smoltcp resolved them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Destination, source and type.
    pub(super) ethernet: [u8; ETHERNET],
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
}

/// The flow of a UDP datagram.
pub(super) fn flow(frame: &[u8]) -> Option<Flow> {
    let udp = Udp::parse(frame)?;
    Some(Flow {
        ethernet: frame.get(..ETHERNET)?.try_into().ok()?,
        from: udp.from(frame)?,
        to: SocketAddrV4::new(ip(frame, 30)?, udp.to_port(frame)),
    })
}

fn ip(frame: &[u8], at: usize) -> Option<Ipv4Addr> {
    frame.get(at..at + 4).map(|b| Ipv4Addr::new(b[0], b[1], b[2], b[3]))
}

/// An IPv4 packet with UDP, or a fragment of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Udp {
    /// Where the UDP header starts; of a later fragment, its part of the payload.
    pub(super) header: usize,
    /// Where the packet ends.
    pub(super) end: usize,
    /// IPv4's identification.
    pub(super) ident: u16,
    /// Bytes of the datagram before this fragment.
    pub(super) offset: usize,
    /// More fragments follow.
    pub(super) more: bool,
}

impl Udp {
    /// Looks at the first bytes of a frame; lengths beyond them are not checked. IPv4 options are
    /// none of the fast path's business.
    #[inline]
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let header = frame.get(ETHERNET..ETHERNET + IPV4 + UDP)?;
        if frame[12..14] != [8, 0] || header[0] != 0x45 || header[9] != PROTOCOL_UDP {
            return None;
        }
        let flags = be16(header, 6);
        Some(Self {
            header: ETHERNET + IPV4,
            end: ETHERNET + usize::from(be16(header, 2)),
            ident: be16(header, 4),
            offset: usize::from(flags & 0x1fff) * 8,
            more: flags & MORE_FRAGMENTS != 0,
        })
    }

    pub(super) fn is_fragment(self) -> bool {
        self.offset > 0 || self.more
    }

    /// Where the datagram comes from.
    pub(super) fn from(self, frame: &[u8]) -> Option<SocketAddrV4> {
        Some(SocketAddrV4::new(ip(frame, 26)?, be16(frame, self.header)))
    }

    /// Where the datagram goes.
    #[inline]
    pub(super) fn to_port(self, frame: &[u8]) -> u16 {
        be16(frame, self.header + 2)
    }

    /// The payload of a whole datagram, if its lengths and its checksum are right.
    #[inline]
    pub(super) fn payload(self, frame: &[u8]) -> Option<&[u8]> {
        let datagram = frame.get(self.header..self.end)?;
        let length = usize::from(be16(datagram, 4));
        let datagram = datagram.get(..length).filter(|d| d.len() >= UDP)?;
        let unsummed = be16(datagram, 6) == 0;
        let good = unsummed || fold(sum(datagram) + pseudo(&frame[26..34], length)) == 0xffff;
        good.then(|| &datagram[UDP..])
    }

    /// The piece of the datagram that a fragment holds.
    pub(super) fn piece(self, frame: &[u8]) -> Option<&[u8]> {
        frame.get(self.header..self.end)
    }
}

/// Is a whole datagram's checksum, over its pieces' sums, right? `addresses` are bytes 26 to 34 of
/// a frame.
pub(super) fn is_whole(addresses: &[u8], total: u64, length: usize) -> bool {
    fold(total + pseudo(addresses, length)) == 0xffff
}

/// Completes a checksum that the sender left to its device, of a TCP or UDP packet (a frame that
/// never left this host).
pub(super) fn complete_checksum(frame: &mut [u8]) {
    let end = (ETHERNET + usize::from(be16(frame, 16))).min(frame.len());
    let header = ETHERNET + usize::from(frame.get(14).copied().unwrap_or(0) & 15) * 4;
    let protocol = frame.get(23).copied().unwrap_or(0);
    let at = header + if protocol == 6 { 16 } else { 6 };
    if at + 2 > end
        || end < ETHERNET + IPV4
        || frame[12..14] != [8, 0]
        || !matches!(protocol, 6 | PROTOCOL_UDP)
    {
        return;
    }
    frame[at..at + 2].fill(0);
    let length = (end - header) as u64;
    let total = sum(&frame[26..34]) + u64::from(protocol) + length + sum(&frame[header..end]);
    let check = !fold(total);
    frame[at..at + 2].copy_from_slice(&if check == 0 { u16::MAX } else { check }.to_be_bytes());
}

/// Datagrams of one flow and one size, which differ in their number only. A long one is several
/// frames.
#[derive(Debug)]
pub(super) struct Template {
    frames: Vec<Vec<u8>>,
    /// Sum of the whole datagram with pseudo header, without number and checksum.
    base: u64,
    numbered: bool,
    ident: u16,
}

impl Template {
    /// From `size` 8 on, payloads start with their number.
    pub(super) fn new(flow: &Flow, size: usize, mtu: usize) -> Self {
        let length = UDP + size;
        let mut datagram = Vec::with_capacity(length);
        for word in [flow.from.port(), flow.to.port(), narrow16(length as u64), 0] {
            datagram.extend(word.to_be_bytes());
        }
        datagram.extend((0..size).map(crate::workload::byte));
        let numbered = size >= 8;
        if numbered {
            datagram[UDP..UDP + 8].fill(0);
        }
        let addresses = [flow.from.ip().octets(), flow.to.ip().octets()].concat();
        let base = sum(&datagram) + pseudo(&addresses, length);
        // Every fragment but the last is a multiple of 8 long (RFC 791).
        let most = if length + IPV4 <= mtu { length } else { (mtu - IPV4) / 8 * 8 };
        let count = length.div_ceil(most);
        let build = |(n, piece): (usize, &[u8])| fragment(flow, n * most, n + 1 < count, piece);
        let frames = datagram.chunks(most).enumerate().map(build).collect();
        Self { frames, base, numbered, ident: 0 }
    }

    /// Frames of a datagram.
    pub(super) fn count(&self) -> usize {
        self.frames.len()
    }

    /// The frames of datagram `number`.
    #[inline]
    pub(super) fn stamp(&mut self, number: u64) -> &[Vec<u8>] {
        let first = &mut self.frames[0];
        let mut total = self.base;
        if self.numbered {
            let bytes = number.to_be_bytes();
            total += sum(&bytes);
            first[42..50].copy_from_slice(&bytes);
        }
        let check = !fold(total);
        // Zero stands for "none" (RFC 768).
        let check = if check == 0 { u16::MAX } else { check };
        first[40..42].copy_from_slice(&check.to_be_bytes());
        if self.frames.len() > 1 {
            self.ident = self.ident.wrapping_add(1);
            for frame in &mut self.frames {
                frame[18..20].copy_from_slice(&self.ident.to_be_bytes());
                seal(frame);
            }
        }
        &self.frames
    }
}

/// Writes the IPv4 header's checksum.
fn seal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let check = !fold(sum(&frame[ETHERNET..ETHERNET + IPV4]));
    frame[24..26].copy_from_slice(&check.to_be_bytes());
}

fn fragment(flow: &Flow, offset: usize, more: bool, piece: &[u8]) -> Vec<u8> {
    let word = |value: usize| narrow16(value as u64).to_be_bytes();
    let mut frame = flow.ethernet.to_vec();
    frame.extend([0x45, 0]);
    frame.extend(word(IPV4 + piece.len()));
    frame.extend([0, 0]);
    frame.extend(word((offset / 8) | if more { usize::from(MORE_FRAGMENTS) } else { 0 }));
    frame.extend([64, PROTOCOL_UDP, 0, 0]);
    frame.extend(flow.from.ip().octets());
    frame.extend(flow.to.ip().octets());
    frame.extend(piece);
    seal(&mut frame);
    frame.resize(frame.len().max(60), 0);
    frame
}
