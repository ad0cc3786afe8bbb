//! Descriptors of C+ mode, which the RTL8169 also has: opts1, opts2 and an address, here two words
//! of 64 bits. OWN, in opts1, says who owns the descriptor; EOR ends the ring.

use std::sync::Arc;

use crate::chip::{Offload, Options, Part, Report, RxFormat, TxFormat};
use vmlan_transport::memory::{Pool, Ram};

const OWN: u64 = 1 << 31; // Bits of opts1 in descriptors of either side.
const EOR: u64 = 1 << 30;
const FS: u64 = 1 << 29;
const LS: u64 = 1 << 28;

/// Commands, in opts1 and in opts2.
mod command {
    pub(super) const LGSEN: u64 = 1 << 27;
    pub(super) const MSS: u64 = 0x7ff;
    pub(super) const IPCS: u64 = 1 << 18;
    pub(super) const UDPCS: u64 = 1 << 17;
    pub(super) const TCPCS: u64 = 1 << 16;
    pub(super) const TAGC: u64 = 1 << (32 + 17);
}

const TAVA: u64 = 1 << (32 + 16); // Opts2 of a received frame: it had a tag.

/// What the frame's descriptors ask for. The chip finds headers by itself.
#[inline]
fn bits(offload: &Offload) -> u64 {
    let vlan = offload.vlan.map_or(0, |tag| command::TAGC | u64::from(tag.swap_bytes()) << 32);
    if offload.is_plain() {
        return vlan;
    }
    if let Some(tso) = offload.segmentation {
        return vlan | command::LGSEN | (u64::from(tso.mss) & command::MSS) << 16;
    }
    let sum = if offload.tcp { command::TCPCS } else { command::UDPCS };
    let sum = if offload.checksum.is_some() { sum } else { 0 };
    vlan | sum | if offload.ip.is_some() { command::IPCS } else { 0 }
}

/// Transmit descriptors.
#[derive(Debug)]
pub struct TxDescriptor;

impl TxFormat for TxDescriptor {
    const OWNED: bool = true;
    const END: u64 = EOR;

    fn new(_: &Options, _: &Arc<Ram>, _: &mut Pool) -> Self {
        Self
    }

    fn beside(_: &Options) -> usize {
        0
    }

    #[inline]
    fn is_done(&self, _ahead: u16, word: impl FnOnce() -> u64) -> bool {
        word() & OWN == 0
    }

    #[inline]
    fn has_context(_: &Offload) -> bool {
        false
    }

    fn context(&self, _: &Offload, _len: usize) -> [u64; 2] {
        [0; 2]
    }

    #[inline]
    fn whole(&self, address: u64, len: u64, _report: bool, offload: &Offload) -> [u64; 2] {
        [OWN | FS | LS | len | bits(offload), address]
    }

    fn piece(&self, address: u64, len: u64, part: Part, offload: &Offload) -> [u64; 2] {
        let first = if part.first { FS } else { 0 };
        let last = if part.last { LS } else { 0 };
        [OWN | first | last | len | bits(offload), address]
    }
}

const CRC: usize = 4; // Bytes of the CRC that the chip leaves at a frame's end.

/// Receive descriptors whose lengths have this many bits. The status begins behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxDescriptor<const LEN: u32>;

impl<const LEN: u32> RxFormat for RxDescriptor<LEN> {
    const OWNED: bool = true;
    const WHOLE: bool = true;
    const END: u64 = EOR;

    fn crc(_: &Options) -> usize {
        CRC
    }

    #[inline]
    fn empty(buffer: usize) -> u64 {
        OWN | buffer as u64
    }

    #[inline]
    fn is_done(word: u64) -> bool {
        word & OWN == 0
    }

    #[inline]
    fn is_end(word: u64) -> bool {
        word & LS != 0
    }

    #[inline]
    fn is_bad(word: u64) -> bool {
        word >> (LEN + 7) & 1 != 0
    }

    #[inline]
    fn len(word: u64) -> usize {
        let [a, b, ..] = word.to_le_bytes();
        usize::from(u16::from_le_bytes([a, b])) & ((1 << LEN) - 1)
    }
}

impl<const LEN: u32> Report for RxDescriptor<LEN> {
    fn vlan(word: u64) -> Option<u16> {
        let [.., a, b, _, _] = word.to_le_bytes();
        (word & TAVA != 0).then_some(u16::from_be_bytes([a, b]))
    }

    fn checksum(word: u64) -> Option<bool> {
        let bit = |n: u32| word >> (LEN + n) & 1 != 0;
        match (bit(4), bit(3)) {
            // UDP, TCP.
            (true, false) => Some(!bit(1)),
            (false, true) => Some(!bit(0)),
            _ => None,
        }
    }
}
