//! What a chip can do with a frame before it leaves.

/// Segmentation: the device cuts the frame into segments with `mss` bytes of payload each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of payload in a segment.
    pub mss: u16,
    /// Bytes of all headers together.
    pub header: u8,
}

/// What the device shall do with a frame before it leaves. Offsets are bytes from the start of the
/// frame; a chip that finds the headers by itself does not look at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Insert the TCP or UDP checksum: where the sum starts, where it goes. The field holds the
    /// pseudo header's sum.
    pub checksum: Option<(u8, u8)>,
    /// Insert the IPv4 header checksum: where the header starts, its last byte.
    pub ip: Option<(u8, u8)>,
    /// TCP (otherwise UDP).
    pub tcp: bool,
    /// Cut into segments; needs `checksum`. IPv4 when `ip` is there, otherwise IPv6.
    pub segmentation: Option<Segmentation>,
    /// Insert this 802.1Q tag.
    pub vlan: Option<u16>,
}

impl Offload {
    /// Nothing to do but to insert a tag, maybe.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.checksum.is_none() && self.ip.is_none() && self.segmentation.is_none()
    }
}
