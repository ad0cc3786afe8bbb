//! Descriptors: 16 bytes, here two words of 64 bits (SDM 3.2.3 and 3.3.3 to 3.3.7).

use std::sync::Arc;

use crate::chip::{Offload, Options, Part, Report, RxFormat, TxFormat};
use vmlan_transport::memory::{Pool, Ram};

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
const TUCMD_TCP: u64 = 1 << 24; // TUCMD of a context descriptor.
const TUCMD_IP: u64 = 1 << 25;
/// POPTS of a data descriptor: insert the TCP or UDP checksum, the IP checksum.
const POPTS_TXSM: u64 = 1 << 41;
const POPTS_IXSM: u64 = 1 << 40;
/// Descriptor done, in the second word of either kind.
pub(super) const TX_DD: u64 = 1 << 32;

/// Status and errors of a receive descriptor, as bits of the second word (SDM 3.2.3.1, 3.2.3.2).
#[allow(missing_docs, reason = "a comment beside each says it")]
pub mod rx {
    pub const DD: u64 = 1 << 32; // Descriptor done.
    pub const EOP: u64 = 1 << 33; // End of packet.
    pub const IXSM: u64 = 1 << 34; // Ignore the checksum indications.
    pub const VP: u64 = 1 << 35; // An 802.1Q packet: the tag is in the special field.
    pub const TCPCS: u64 = 1 << 37; // The TCP or UDP checksum was calculated.
    pub const IPCS: u64 = 1 << 38; // The IP checksum was calculated.
    pub const TCPE: u64 = 1 << 45; // The TCP or UDP checksum is wrong.
    pub const IPE: u64 = 1 << 46; // The IP checksum is wrong.
    /// Any error that makes the frame worthless: CE, SE, SEQ, CXE, RXE.
    pub const BAD: u64 = 0b1001_0111 << 40;
}

/// TxDescriptor descriptors.
#[derive(Debug)]
pub struct TxDescriptor {
    /// Bits of each frame's last descriptor, and of all.
    last: u64,
    delay: u64,
}

impl TxFormat for TxDescriptor {
    const OWNED: bool = false;

    fn new(options: &Options, _: &Arc<Ram>, _: &mut Pool) -> Self {
        // A delay is only in force for descriptors that ask for it (SDM 3.4.3.1).
        let delay = if options.tidv > 0 { command::IDE } else { 0 };
        Self { last: command::EOP | command::IFCS | delay, delay }
    }

    fn beside(options: &Options) -> usize {
        usize::from(options.checksum || options.segmentation)
    }

    #[inline]
    fn is_done(&self, _ahead: u16, status: impl FnOnce() -> u64) -> bool {
        status() & TX_DD != 0
    }

    #[inline]
    fn has_context(offload: &Offload) -> bool {
        !offload.is_plain()
    }

    fn context(&self, offload: &Offload, len: usize) -> [u64; 2] {
        context(offload, len, self.delay)
    }

    #[inline]
    fn whole(&self, address: u64, len: u64, report: bool, offload: &Offload) -> [u64; 2] {
        let report = if report { command::RS } else { 0 };
        [address, len | self.last | report | bits(offload)]
    }

    fn piece(&self, address: u64, len: u64, part: Part, offload: &Offload) -> [u64; 2] {
        let report = if part.report { command::RS } else { 0 };
        let last = if part.last { self.last | report } else { 0 };
        let all = bits(offload) | self.delay | (self.last & command::IFCS);
        [address, len | all | last]
    }
}

const CRC: usize = 4; // Bytes of the CRC that the device leaves at a frame's end.

/// RxDescriptor descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxDescriptor;

impl RxFormat for RxDescriptor {
    const OWNED: bool = false;
    const WHOLE: bool = false;

    fn crc(options: &Options) -> usize {
        if options.strip_crc { 0 } else { CRC }
    }

    #[inline]
    fn is_done(word: u64) -> bool {
        word & rx::DD != 0
    }

    #[inline]
    fn is_end(word: u64) -> bool {
        word & rx::EOP != 0
    }

    #[inline]
    fn is_bad(word: u64) -> bool {
        word & rx::BAD != 0
    }

    #[inline]
    fn len(word: u64) -> usize {
        let [low, high, ..] = word.to_le_bytes();
        usize::from(u16::from_le_bytes([low, high]))
    }
}

impl Report for RxDescriptor {
    fn vlan(word: u64) -> Option<u16> {
        let [.., low, high] = word.to_le_bytes();
        (word & rx::VP != 0).then_some(u16::from_le_bytes([low, high]))
    }

    fn checksum(word: u64) -> Option<bool> {
        let said = word & rx::IXSM == 0 && word & rx::TCPCS != 0;
        said.then_some(word & rx::TCPE == 0)
    }
}

/// Status and errors of an extended receive descriptor, as bits of the second word (82574L).
#[allow(missing_docs, reason = "a comment beside each says it")]
mod extended {
    pub const DD: u64 = 1; // Descriptor done.
    pub const EOP: u64 = 1 << 1; // End of packet.
    pub const IXSM: u64 = 1 << 2; // Ignore the checksum indications.
    pub const VP: u64 = 1 << 3; // An 802.1Q packet: the tag is in the last 16 bits.
    pub const TCPCS: u64 = 1 << 5; // The TCP or UDP checksum was calculated.
    pub const TCPE: u64 = 1 << 29; // The TCP or UDP checksum is wrong.
    /// Any error that makes the frame worthless: CE, SE, SEQ, CXE, RXE.
    pub const BAD: u64 = 0b1001_0111 << 24;
}

/// Extended receive descriptors. The chip overwrites the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedDescriptor;

impl RxFormat for ExtendedDescriptor {
    const OWNED: bool = false;
    const WHOLE: bool = false;

    fn crc(options: &Options) -> usize {
        RxDescriptor::crc(options)
    }

    #[inline]
    fn is_done(word: u64) -> bool {
        word & extended::DD != 0
    }

    #[inline]
    fn is_end(word: u64) -> bool {
        word & extended::EOP != 0
    }

    #[inline]
    fn is_bad(word: u64) -> bool {
        word & extended::BAD != 0
    }

    #[inline]
    fn len(word: u64) -> usize {
        let [_, _, _, _, low, high, ..] = word.to_le_bytes();
        usize::from(u16::from_le_bytes([low, high]))
    }
}

impl Report for ExtendedDescriptor {
    fn vlan(word: u64) -> Option<u16> {
        let [.., low, high] = word.to_le_bytes();
        (word & extended::VP != 0).then_some(u16::from_le_bytes([low, high]))
    }

    fn checksum(word: u64) -> Option<bool> {
        let said = word & extended::IXSM == 0 && word & extended::TCPCS != 0;
        said.then_some(word & extended::TCPE == 0)
    }
}

/// The context descriptor (SDM 3.3.6) for a frame of `len` bytes; `delay` is IDE or 0.
fn context(offload: &Offload, len: usize, delay: u64) -> [u64; 2] {
    // IPv6 has no checksum, but segmentation finds the field of its length by IPCSS (SDM 3.5.3).
    let ethernet = if offload.segmentation.is_some() { 14 } else { 0 };
    let (ip_start, ip_end) = offload.ip.unwrap_or((ethernet, 0));
    let ip_at = if offload.ip.is_some() { ip_start + 10 } else { 0 };
    let (start, at) = offload.checksum.unwrap_or_default();
    let low = u64::from(ip_start) | u64::from(ip_at) << 8 | u64::from(ip_end) << 16;
    let first = low | u64::from(start) << 32 | u64::from(at) << 40;
    let mut second = command::DEXT | delay;
    second |= if offload.tcp { TUCMD_TCP } else { 0 };
    second |= if offload.ip.is_some() { TUCMD_IP } else { 0 };
    if let Some(tso) = offload.segmentation {
        let payload = len.saturating_sub(usize::from(tso.header)) as u64 & 0xf_ffff;
        second |= payload | command::TSE;
        second |= u64::from(tso.header) << 40 | u64::from(tso.mss) << 48;
    }
    [first, second]
}

/// The bits that every data or legacy descriptor of the frame carries, without length and EOP.
fn bits(offload: &Offload) -> u64 {
    let vlan = offload.vlan.map_or(0, |tag| command::VLE | u64::from(tag) << 48);
    if offload.is_plain() {
        return vlan;
    }
    let mut bits = DATA | vlan;
    bits |= if offload.checksum.is_some() { POPTS_TXSM } else { 0 };
    bits |= if offload.ip.is_some() { POPTS_IXSM } else { 0 };
    bits | if offload.segmentation.is_some() { command::TSE } else { 0 }
}
