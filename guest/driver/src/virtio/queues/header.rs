//! `struct virtio_net_hdr` (virtio 1.2, 5.1.6), little-endian.

/// The checksum must be completed from csum_start on (VIRTIO_NET_HDR_F_NEEDS_CSUM).
pub const HDR_F_NEEDS_CSUM: u8 = 1;
/// The checksum was verified (VIRTIO_NET_HDR_F_DATA_VALID).
pub const HDR_F_DATA_VALID: u8 = 2;
/// No segmentation.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4 is to be segmented.
pub const GSO_TCPV4: u8 = 1;
/// TCP over IPv6 is to be segmented.
pub const GSO_TCPV6: u8 = 4;
/// UDP is to be segmented (USO).
pub const GSO_UDP_L4: u8 = 5;

/// The virtio-net header. `Default` asks for no offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// `HDR_F_*`.
    pub flags: u8,
    /// `GSO_*`.
    pub gso_type: u8,
    /// Bytes of the headers in front of what is segmented.
    pub hdr_len: u16,
    /// Payload bytes of a segment.
    pub gso_size: u16,
    /// Where checksumming starts, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum lies, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Receive with MRG_RXBUF: buffers of this frame. Not there in the 10-byte legacy header.
    pub num_buffers: u16,
}

impl NetHeader {
    /// Bytes of the long form.
    pub const LEN: usize = 12;

    /// The header's bytes; the short form is the first 10 of them.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        (bytes[0], bytes[1]) = (self.flags, self.gso_type);
        let words =
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header from its bytes.
    pub fn decode(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        }
    }
}
