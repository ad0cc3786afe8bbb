//! Transmit descriptors: an address, and a word of lengths and commands with the bit that hands the
//! descriptor over. What is sent is reported in a ring of its own, one report for each frame.

use std::sync::Arc;

use super::completions::Completions;
use crate::chip::{Offload, Options, Part, TxFormat};
use vmlan_transport::memory::{Pool, Ram};

const LEN: u64 = 0x3fff;
const GENERATION: u64 = 1 << 14;
/// Where go: the segment's length, or the place of the checksum; the length of all headers, or
/// where the sum starts; what is to be done; a tag.
const MSS: u32 = 18;
const HEADER: u32 = 32;
const TAG: u32 = 48;
const CHECKSUM: u64 = 2 << 42;
const SEGMENT: u64 = 3 << 42;
const END: u64 = 1 << 44;
const REPORT: u64 = 1 << 45;
const TAGGED: u64 = 1 << 47;
const INDEX: u64 = 0xfff; // Of a report: the frame's last descriptor.

/// What a frame's first descriptor asks for. There is no sum over the IP header alone.
#[inline]
fn bits(offload: &Offload) -> u64 {
    let tag = offload.vlan.map_or(0, |tag| TAGGED | u64::from(tag) << TAG);
    let ask = |what, header: u8, at: u16| what | u64::from(header) << HEADER | u64::from(at) << MSS;
    match (offload.segmentation, offload.checksum) {
        (Some(tso), _) => tag | ask(SEGMENT, tso.header, tso.mss & 0x3fff),
        (None, Some((start, at))) => tag | ask(CHECKSUM, start, at.into()),
        (None, None) => tag,
    }
}

/// Transmit descriptors, and the reports of those that are sent.
#[derive(Debug)]
pub struct TxDescriptor {
    reports: Completions,
    /// Frames that the device was not asked about yet: of one that it cuts, all segments.
    fresh: u32,
}

impl TxDescriptor {
    /// The ring of reports, for the device.
    pub(super) fn completions(&self) -> (u64, u16) {
        self.reports.ring()
    }

    /// Frames since the last call.
    #[inline]
    pub(super) fn take_fresh(&mut self) -> u32 {
        std::mem::take(&mut self.fresh)
    }
}

impl TxFormat for TxDescriptor {
    const OWNED: bool = false;
    const GENERATION: u64 = GENERATION;

    fn ram_bytes(options: &Options) -> usize {
        Completions::ram_bytes(options.size.into())
    }

    fn new(options: &Options, ram: &Arc<Ram>, low: &mut Pool) -> Self {
        Self { reports: Completions::new(ram, low, options.size), fresh: 0 }
    }

    fn reset(&mut self) {
        self.reports.reset();
        self.fresh = 0;
    }

    fn beside(_: &Options) -> usize {
        0
    }

    #[inline]
    fn is_done(&self, ahead: u16, _word: impl FnOnce() -> u64) -> bool {
        self.reports.look(ahead).is_some()
    }

    #[inline]
    fn retire(&mut self, end: u16) -> bool {
        let index = self.reports.first(0) & INDEX;
        self.reports.pass();
        index == u64::from(end)
    }

    #[inline]
    fn count(&mut self, offload: &Offload, len: usize) {
        let segments = offload.segmentation.map_or(1, |tso| {
            let payload = len.saturating_sub(tso.header.into());
            payload.div_ceil(usize::from(tso.mss).max(1)).try_into().unwrap_or(u32::MAX)
        });
        self.fresh = self.fresh.saturating_add(segments);
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
        [address, len & LEN | END | REPORT | bits(offload)]
    }

    fn piece(&self, address: u64, len: u64, part: Part, offload: &Offload) -> [u64; 2] {
        let first = if part.first { bits(offload) } else { 0 };
        let last = if part.last { END | REPORT } else { 0 };
        [address, len & LEN | first | last]
    }
}
