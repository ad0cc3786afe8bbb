//! Descriptors: 16 bytes, here two words of 64 bits (SDM 3.2.3 and 3.3.3 to 3.3.7).

/// Command bits of a transmit descriptor, as bits of the second word.
pub(super) mod command {
    pub(crate) const EOP: u64 = 1 << 24;
    pub(crate) const IFCS: u64 = 1 << 25;
    pub(crate) const TSE: u64 = 1 << 26;
    pub(crate) const RS: u64 = 1 << 27;
    pub(crate) const DEXT: u64 = 1 << 29;
    pub(crate) const VLE: u64 = 1 << 30;
    pub(crate) const IDE: u64 = 1 << 31;
}

/// DTYP of a data descriptor, with the bit that says there is a DTYP.
const DATA: u64 = 1 << 20 | command::DEXT;
/// TUCMD of a context descriptor.
const TUCMD_TCP: u64 = 1 << 24;
const TUCMD_IP: u64 = 1 << 25;
/// POPTS of a data descriptor: insert the TCP or UDP checksum, the IP checksum.
const POPTS_TXSM: u64 = 1 << 41;
const POPTS_IXSM: u64 = 1 << 40;
/// Descriptor done, in the second word of either kind.
pub(super) const TX_DD: u64 = 1 << 32;

/// Status and errors of a receive descriptor, as bits of the second word (SDM 3.2.3.1, 3.2.3.2).
pub mod rx {
    /// Descriptor done.
    pub const DD: u64 = 1 << 32;
    /// End of packet.
    pub const EOP: u64 = 1 << 33;
    /// Ignore the checksum indications.
    pub const IXSM: u64 = 1 << 34;
    /// An 802.1Q packet: the tag is in the special field.
    pub const VP: u64 = 1 << 35;
    /// The TCP or UDP checksum was calculated.
    pub const TCPCS: u64 = 1 << 37;
    /// The IP checksum was calculated.
    pub const IPCS: u64 = 1 << 38;
    /// The TCP or UDP checksum is wrong.
    pub const TCPE: u64 = 1 << 45;
    /// The IP checksum is wrong.
    pub const IPE: u64 = 1 << 46;
    /// Any error that makes the frame worthless: CE, SE, SEQ, CXE, RXE.
    pub const BAD: u64 = 0b1001_0111 << 40;
}

/// Segmentation (SDM 3.5): the device cuts the frame into segments with `mss` bytes of payload each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of payload in a segment.
    pub mss: u16,
    /// Bytes of all headers together.
    pub header: u8,
}

/// What the device shall do with a frame before it leaves. Offsets are bytes from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Insert the TCP or UDP checksum: where the sum starts, where it goes. The field holds the pseudo header's sum.
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
    /// Nothing to do: a legacy descriptor says it all.
    pub(super) fn is_plain(&self) -> bool {
        self.checksum.is_none() && self.ip.is_none() && self.segmentation.is_none()
    }

    /// The context descriptor (SDM 3.3.6) for a frame of `len` bytes; `delay` is IDE or 0.
    pub(super) fn context(&self, len: usize, delay: u64) -> [u64; 2] {
        // IPv6 has no checksum, but segmentation finds the field of its length by IPCSS (SDM 3.5.3).
        let ethernet = if self.segmentation.is_some() { 14 } else { 0 };
        let (ip_start, ip_end) = self.ip.unwrap_or((ethernet, 0));
        let ip_at = if self.ip.is_some() { ip_start + 10 } else { 0 };
        let (start, at) = self.checksum.unwrap_or_default();
        let low = u64::from(ip_start) | u64::from(ip_at) << 8 | u64::from(ip_end) << 16;
        let first = low | u64::from(start) << 32 | u64::from(at) << 40;
        let mut second = command::DEXT | delay;
        second |= if self.tcp { TUCMD_TCP } else { 0 };
        second |= if self.ip.is_some() { TUCMD_IP } else { 0 };
        if let Some(tso) = self.segmentation {
            let payload = len.saturating_sub(usize::from(tso.header)) as u64 & 0xf_ffff;
            second |= payload | command::TSE;
            second |= u64::from(tso.header) << 40 | u64::from(tso.mss) << 48;
        }
        [first, second]
    }

    /// The bits that every data or legacy descriptor of the frame carries, without length and EOP.
    pub(super) fn bits(&self) -> u64 {
        let vlan = self.vlan.map_or(0, |tag| command::VLE | u64::from(tag) << 48);
        if self.is_plain() {
            return vlan;
        }
        let mut bits = DATA | vlan;
        bits |= if self.checksum.is_some() { POPTS_TXSM } else { 0 };
        bits |= if self.ip.is_some() { POPTS_IXSM } else { 0 };
        bits | if self.segmentation.is_some() { command::TSE } else { 0 }
    }
}
