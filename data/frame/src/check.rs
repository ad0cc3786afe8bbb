//! Whether a guest's offload claim holds.
//!
//! The claim is checked even if the receiver will do the work itself. What matters most is that a
//! checksum can never be stored over bytes that somebody decided on (addresses, an ARP or neighbour
//! discovery message): it would change the frame after the decision.

use crate::headers::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_RARP};
use crate::headers::{ICMPV6, TCP, UDP, is_tag};
use crate::{Gso, HEAD, Headers, MAX_PACKET, Network, Offload, Reason};

/// Payload of TCP segments of which any frame may consist: Linux' `TCP_MIN_SND_MSS`, for the same
/// reason (CVE-2019-11478 made hosts cut a frame into thousands of segments).
const USUAL_TCP_SEGMENT: usize = 48;

/// The least that Linux sends: it takes up to 40 bytes of options off after that bound.
const MIN_TCP_SEGMENT: usize = 8;

/// Most segments of a TCP frame, whatever their size.
const MAX_TCP_SEGMENTS: usize = MAX_PACKET.div_ceil(USUAL_TCP_SEGMENT);

const MAX_UDP_SEGMENTS: usize = 128; // Most segments of a UDP frame (Linux' `UDP_MAX_SEGMENTS`).

const ICMP: u8 = 1;
const IGMP: u8 = 2;

const TCP_SUM: usize = 16; // Where TCP and UDP keep their checksums.
const UDP_SUM: usize = 6;
const ICMP_SUM: usize = 2;

impl Offload {
    /// Checks a claim made by a guest against the frame's header snapshot and total length; fills
    /// in `hdr_len` from our own parse and clears what means nothing.
    ///
    /// # Errors
    /// [`Reason::BadOffload`] if an offset lies outside the snapshot, on a header, or otherwise
    /// does not fit what the frame is; [`Reason::BadHeader`] if headers to be segmented are broken,
    /// not whole in the snapshot, or contradict the frame's length; [`Reason::TooLong`] if segments
    /// would be.
    pub fn check(self, head: &[u8], len: usize) -> Result<Self, Reason> {
        self.verify(head, len).map(|(offload, _)| offload)
    }

    /// As [`Offload::check`], with what the parser found (nothing, if there is nothing to do).
    pub(crate) fn verify(self, head: &[u8], len: usize) -> Result<(Self, Headers), Reason> {
        if !self.needs_csum {
            let nothing = Self { csum_valid: self.csum_valid, ..Self::NONE };
            let claimed = self.gso != Gso::None;
            return if claimed {
                Err(Reason::BadOffload)
            } else {
                Ok((nothing, Headers::default()))
            };
        }
        let headers = Headers::parse(head, len);
        self.verify_sum(&headers, head.len().min(len).min(HEAD))?;
        let Ok(hdr_len) = u16::try_from(headers.header_len) else { return Err(Reason::BadHeader) };
        let checked = Self { hdr_len, csum_valid: false, ..self };
        if self.gso == Gso::None {
            return Ok((Self { gso_size: 0, ecn: false, ..checked }, headers));
        }
        self.verify_gso(&headers, len)?;
        Ok((checked, headers))
    }

    fn verify_sum(&self, h: &Headers, snapshot: usize) -> Result<(), Reason> {
        let (start, offset) = (usize::from(self.csum_start), usize::from(self.csum_offset));
        let inside = start + offset + 2 <= snapshot;
        let fits = match h.network {
            Network::Other => h.l3 != 0 && !must_be_understood(h.ethertype) && start >= h.l3,
            _ => h.l4 != 0 && !h.fragment && fits_protocol(h, start, offset),
        };
        if inside && fits { Ok(()) } else { Err(Reason::BadOffload) }
    }

    fn verify_gso(&self, h: &Headers, len: usize) -> Result<(), Reason> {
        if h.header_len == 0 || h.routing {
            return Err(Reason::BadHeader);
        }
        let kind = match self.gso {
            Gso::None => false,
            Gso::Tcp4 => h.network == Network::Ipv4 && h.protocol == TCP,
            Gso::Tcp6 => h.network == Network::Ipv6 && h.protocol == TCP,
            Gso::Udp => h.protocol == UDP && !self.ecn,
        };
        if !kind || usize::from(self.csum_start) != h.l4 {
            return Err(Reason::BadOffload);
        }
        // Bytes behind the packet would become payload of the last segment.
        if !h.length_left_out() && h.l3 + h.ip_len != len {
            return Err(Reason::BadHeader);
        }
        let payload = len.checked_sub(h.header_len).ok_or(Reason::BadHeader)?;
        self.verify_size(h, payload)
    }

    fn verify_size(&self, h: &Headers, payload: usize) -> Result<(), Reason> {
        let size = usize::from(self.gso_size);
        let enough = match self.gso {
            Gso::Udp => size > 0 && payload.div_ceil(size) <= MAX_UDP_SEGMENTS,
            _ if size >= USUAL_TCP_SEGMENT => true,
            _ => size >= MIN_TCP_SEGMENT && payload.div_ceil(size) <= MAX_TCP_SEGMENTS,
        };
        if !enough {
            return Err(Reason::BadOffload);
        }
        // A segment's length must fit its IP header, also where the device is to fill that in.
        let packet = h.header_len - h.l3 + size.min(payload);
        if packet > MAX_PACKET { Err(Reason::TooLong) } else { Ok(()) }
    }
}

/// Nothing is stored into packets whose contents decide something, or whose contents broken headers
/// or too many tags hide from us. An IEEE 802.3 length is followed by IEEE 802.2, which decides
/// whether ARP or IP could be behind it.
fn must_be_understood(ethertype: u16) -> bool {
    ethertype < 0x600
        || is_tag(ethertype)
        || matches!(ethertype, ETHERTYPE_ARP | ETHERTYPE_RARP | ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
}

/// The checksum is the upper layer's own, or lies behind its header (a tunnel's inner checksum).
fn fits_protocol(h: &Headers, start: usize, offset: usize) -> bool {
    let own = |field| start == h.l4 && offset == field;
    match h.protocol {
        TCP => own(TCP_SUM),
        UDP => own(UDP_SUM) || start >= h.l4 + 8,
        ICMP | ICMPV6 | IGMP => own(ICMP_SUM),
        _ => start >= h.l4,
    }
}
