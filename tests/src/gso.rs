//! Frames with unfinished business (checksum, segmentation), and a judgement on what became of them
//! that shares no code with the switch: headers are read and checksums computed by `etherparse`.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use vmlan_driver::virtio::queues::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HDR_F_NEEDS_CSUM, NetHeader,
};

use crate::numbered::MacBytes;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

/// All kinds.
pub const KINDS: [Kind; 4] = [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6];

/// TCP sequence number of the first payload byte.
pub const SEQ: u32 = 0xffff_f000;

impl Kind {
    fn tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    /// The header's word for segmentation of this kind.
    pub fn gso(self) -> u8 {
        match self {
            Self::Tcp4 => GSO_TCPV4,
            Self::Tcp6 => GSO_TCPV6,
            Self::Udp4 | Self::Udp6 => GSO_UDP_L4,
        }
    }

    fn l4(self) -> usize {
        if matches!(self, Self::Tcp4 | Self::Udp4) { 34 } else { 54 }
    }

    /// Bytes of all headers of [`unfinished`] frames.
    pub fn header_len(self) -> usize {
        self.l4() + if self.tcp() { 20 } else { 8 }
    }
}

fn build(kind: Kind, to: MacBytes, from: MacBytes, payload: &[u8]) -> Vec<u8> {
    let eth = PacketBuilder::ethernet2(from, to);
    let six = |n: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
    let ip = match kind {
        Kind::Tcp4 | Kind::Udp4 => eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
        Kind::Tcp6 | Kind::Udp6 => eth.ipv6(six(1), six(2), 64),
    };
    let mut bytes = Vec::new();
    if kind.tcp() {
        ip.tcp(4000, 4001, SEQ, 0x7fff).psh().ack(77).write(&mut bytes, payload)
    } else {
        ip.udp(4000, 4001).write(&mut bytes, payload)
    }
    .expect("a frame below 64 KiB");
    bytes
}

/// The sum over the pseudo header, folded, as a driver leaves it in the checksum field.
fn pseudo(kind: Kind, frame: &[u8]) -> u16 {
    let addresses = if kind.l4() == 34 { &frame[26..34] } else { &frame[22..54] };
    let words = addresses.chunks(2).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]])));
    let len = (frame.len() - kind.l4()) as u64;
    let mut sum = words.sum::<u64>() + len + if kind.tcp() { 6 } else { 17 };
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// A frame whose checksum is to be completed, and with `gso_size` > 0 that is to be cut into
/// segments of so many bytes.
pub fn unfinished(
    kind: Kind,
    to: MacBytes,
    from: MacBytes,
    payload: &[u8],
    gso_size: u16,
) -> (NetHeader, Vec<u8>) {
    let mut frame = build(kind, to, from, payload);
    let short = |n: usize| u16::try_from(n).expect("a header");
    let offset = if kind.tcp() { 16 } else { 6 };
    let sum = pseudo(kind, &frame).to_be_bytes();
    frame[kind.l4() + offset..][..2].copy_from_slice(&sum);
    let header = NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type: if gso_size > 0 { kind.gso() } else { GSO_NONE },
        hdr_len: short(kind.header_len()),
        gso_size,
        csum_start: short(kind.l4()),
        csum_offset: short(offset),
        num_buffers: 0,
    };
    (header, frame)
}

/// Completes a checksum, as the receiving driver would.
pub fn complete(header: &NetHeader, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let start = usize::from(header.csum_start);
    let words = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[start..]);
    let sum = words.ones_complement();
    frame[start + usize::from(header.csum_offset)..][..2].copy_from_slice(&sum.to_ne_bytes());
    frame
}

/// A finished frame, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Segment {
    /// TCP sequence number; 0 for UDP.
    pub seq: u32,
    /// TCP: the PSH flag.
    pub psh: bool,
    /// IPv4 identification; 0 for IPv6.
    pub ip_id: u16,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Takes a finished frame apart; every length in it must fit and every checksum must be right.
///
/// # Panics
/// When not.
pub fn judge(kind: Kind, frame: &[u8]) -> Segment {
    let packet = SlicedPacket::from_ethernet(frame).expect("well-formed headers");
    let net = packet.net.expect("an IP packet");
    let ip_id = match &net {
        NetSlice::Ipv4(v4) => {
            let header = v4.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
            assert_eq!(usize::from(header.total_len), frame.len() - 14, "IPv4 length");
            header.identification
        }
        NetSlice::Ipv6(v6) => {
            assert_eq!(usize::from(v6.header().payload_length()), frame.len() - 54, "IPv6 length");
            0
        }
        _ => panic!("an IP packet"),
    };
    let payload = frame[kind.header_len()..].to_vec();
    let (seq, psh) = match packet.transport.expect("TCP or UDP") {
        TransportSlice::Tcp(tcp) => {
            let good = match &net {
                NetSlice::Ipv4(v4) => tcp
                    .calc_checksum_ipv4(v4.header().source(), v4.header().destination())
                    .expect("length"),
                NetSlice::Ipv6(v6) => tcp
                    .calc_checksum_ipv6(v6.header().source(), v6.header().destination())
                    .expect("length"),
                _ => unreachable!(),
            };
            assert_eq!(tcp.checksum(), good, "TCP checksum");
            (tcp.sequence_number(), tcp.psh())
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let good = match &net {
                NetSlice::Ipv4(v4) => header
                    .calc_checksum_ipv4_raw(
                        v4.header().source(),
                        v4.header().destination(),
                        &payload,
                    )
                    .expect("length"),
                NetSlice::Ipv6(v6) => header
                    .calc_checksum_ipv6_raw(
                        v6.header().source(),
                        v6.header().destination(),
                        &payload,
                    )
                    .expect("length"),
                _ => unreachable!(),
            };
            assert_eq!(header.checksum, good, "UDP checksum");
            assert_eq!(usize::from(header.length), payload.len() + 8, "UDP length");
            (0, false)
        }
        _ => panic!("TCP or UDP"),
    };
    Segment { seq, psh, ip_id, payload }
}
