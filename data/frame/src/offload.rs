//! The offload state of a frame, as virtio-net's header describes it (virtio 1.2 section 5.1.6).

/// Segmentation still to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Gso {
    #[default]
    None,
    Tcp4,
    Tcp6,
    /// UDP datagrams, each with its own header (USO, `VIRTIO_NET_HDR_GSO_UDP_L4`).
    Udp,
}

/// What is still to be done to a frame, or known about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum from `csum_start` to the end is still to be filled in, at `csum_start +
    /// csum_offset`. The field holds the pseudo-header's sum.
    pub needs_csum: bool,
    /// Somebody on this host vouches for the checksum; never set together with `needs_csum`.
    pub csum_valid: bool,
    /// Segmentation to do; implies `needs_csum`.
    pub gso: Gso,
    /// The TCP segments carry ECN marks that need care (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
    /// Payload bytes in each segment.
    pub gso_size: u16,
    /// Bytes of all headers, as found by our own parser, not as claimed.
    pub hdr_len: u16,
    /// Where the checksum's range starts.
    pub csum_start: u16,
    /// Where, from `csum_start`, the checksum is stored.
    pub csum_offset: u16,
}

/// A set of abilities: what a receiver takes, or a frame needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads(u8);

impl Offloads {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Unfinished checksums.
    pub const CSUM: Self = Self(1);
    /// TCP over IPv4, unsegmented.
    pub const TSO4: Self = Self(2);
    /// TCP over IPv6, unsegmented.
    pub const TSO6: Self = Self(4);
    /// The same with ECN marks.
    pub const ECN: Self = Self(8);
    /// UDP, unsegmented.
    pub const USO: Self = Self(16);
    /// Everything.
    pub const ALL: Self = Self(31);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if `self` has all of `needs`.
    #[inline]
    pub const fn covers(self, needs: Self) -> bool {
        needs.0 & !self.0 == 0
    }

    /// As bits, for atomics.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From bits.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

/// What cutting off a segment costs, in bytes to copy: a frame of 64 KiB can claim 1,365 of them.
const SEGMENT: usize = 512;

/// The work that a frame can make for one receiver, in bytes to copy. `gso_size`: 0 if it is not to
/// be cut.
#[inline]
pub fn work(len: usize, gso_size: u16) -> usize {
    if gso_size == 0 { len } else { len + len / usize::from(gso_size) * SEGMENT }
}

impl Offload {
    /// [`work`] of a frame to which this is to be done.
    #[inline]
    pub fn work(&self, len: usize) -> usize {
        work(len, if self.gso == Gso::None { 0 } else { self.gso_size })
    }

    /// Nothing to do.
    pub const NONE: Self = Self {
        needs_csum: false,
        csum_valid: false,
        gso: Gso::None,
        ecn: false,
        gso_size: 0,
        hdr_len: 0,
        csum_start: 0,
        csum_offset: 0,
    };

    /// What a receiver must be able to take to get the frame as it is.
    #[inline]
    pub fn needs(&self) -> Offloads {
        if !self.needs_csum {
            return Offloads::NONE;
        }
        let gso = match self.gso {
            Gso::None => Offloads::NONE,
            Gso::Tcp4 => Offloads::TSO4,
            Gso::Tcp6 => Offloads::TSO6,
            Gso::Udp => Offloads::USO,
        };
        let ecn = if self.ecn { Offloads::ECN } else { Offloads::NONE };
        Offloads::CSUM.with(gso).with(ecn)
    }
}
