//! `struct virtio_net_hdr` (virtio 1.2 section 5.1.6), to and from [`Offload`].

use vmlan_frame::{Gso, Offload, Offloads, Reason};

/// Longest header.
pub(super) const LEN: usize = 12;

/// The header of a frame in one buffer without offloads.
pub(super) const PLAIN: [u8; LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// True if nothing is claimed about a frame. DATA_VALID is for the receiver's header: a sender
/// cannot vouch for its own checksum.
#[inline]
pub(super) fn is_plain(header: &[u8; 10]) -> bool {
    let [flags, gso_type, ..] = *header;
    flags & NEEDS_CSUM == 0 && gso_type == 0
}

/// What a transmitted frame claims. Only what the driver may send (`allowed`) is believed; offsets
/// are checked by [`vmlan_frame::Batch::add`], against the frame.
///
/// # Errors
/// [`Reason::BadOffload`].
#[inline]
pub(super) fn parse(header: &[u8; 10], allowed: Offloads) -> Result<Offload, Reason> {
    if is_plain(header) { Ok(Offload::NONE) } else { parse_claim(header, allowed) }
}

fn parse_claim(header: &[u8; 10], allowed: Offloads) -> Result<Offload, Reason> {
    let [flags, gso_type, _, _, s0, s1, c0, c1, o0, o1] = *header;
    let gso = match gso_type & !GSO_ECN {
        0 => Gso::None,
        GSO_TCPV4 => Gso::Tcp4,
        GSO_TCPV6 => Gso::Tcp6,
        GSO_UDP_L4 => Gso::Udp,
        _ => return Err(Reason::BadOffload),
    };
    let offload = Offload {
        needs_csum: flags & NEEDS_CSUM != 0,
        csum_valid: false,
        gso,
        ecn: gso_type & GSO_ECN != 0,
        gso_size: u16::from_le_bytes([s0, s1]),
        hdr_len: 0,
        csum_start: u16::from_le_bytes([c0, c1]),
        csum_offset: u16::from_le_bytes([o0, o1]),
    };
    let tcp = matches!(gso, Gso::Tcp4 | Gso::Tcp6);
    let sound = offload.needs_csum
        && allowed.covers(offload.needs())
        && (gso == Gso::None || offload.gso_size > 0)
        && (tcp || !offload.ecn);
    if sound { Ok(offload) } else { Err(Reason::BadOffload) }
}

/// The header of a frame delivered in `buffers` buffers. `csum`: the driver negotiated
/// `GUEST_CSUM`.
pub(super) fn build(offload: &Offload, buffers: u16, csum: bool) -> [u8; LEN] {
    let [n0, n1] = buffers.to_le_bytes();
    if !offload.needs_csum {
        let flags = if offload.csum_valid && csum { DATA_VALID } else { 0 };
        return [flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, n0, n1];
    }
    let kind = match offload.gso {
        Gso::None => 0,
        Gso::Tcp4 => GSO_TCPV4,
        Gso::Tcp6 => GSO_TCPV6,
        Gso::Udp => GSO_UDP_L4,
    };
    let (ecn, hdr_len, size) = match offload.gso {
        Gso::None => (0, 0, 0),
        _ => (if offload.ecn { GSO_ECN } else { 0 }, offload.hdr_len, offload.gso_size),
    };
    let ([h0, h1], [s0, s1]) = (hdr_len.to_le_bytes(), size.to_le_bytes());
    let [c0, c1] = offload.csum_start.to_le_bytes();
    let [o0, o1] = offload.csum_offset.to_le_bytes();
    [NEEDS_CSUM, kind | ecn, h0, h1, s0, s1, c0, c1, o0, o1, n0, n1]
}
