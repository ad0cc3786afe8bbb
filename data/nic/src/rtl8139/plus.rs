//! C+ mode: what the registers say about its rings, to [`crate::realtek`], which walks them.

use std::sync::atomic::{AtomicU32, Ordering};

use super::chip::Rtl8139;
use super::regs::{self, CPCR, RCR, RDSAR, TCR, THPDS, TNPDS, cpcr, tcr};
use crate::chip::frame_totals::FCS;
use crate::chip::state::Fields;
use crate::realtek::cplus::{Cplus, Which};
use crate::realtek::desc::{RTL8139, Status};
use crate::realtek::filter::Rules;
use crate::realtek::ring::Place;
use crate::ring::Shape;

/// Longest frame, with tag and FCS: 4 KiB of data is what 8139cp asks for at most.
const LONGEST: usize = 4096 + 18 + FCS;

/// What is beside the registers.
#[derive(Debug, Default)]
pub struct Rings {
    /// Times that the transmit rings were told to begin again.
    transmit: AtomicU32,
    /// And the receive ring.
    receive: AtomicU32,
}

impl Rings {
    /// Passes them.
    pub fn fields(&self, io: &mut Fields<'_>) {
        let Self { transmit, receive } = self;
        [transmit, receive].into_iter().for_each(|count| io.atomic(count));
    }

    /// Both counts.
    pub fn counts(&self) -> [&AtomicU32; 2] {
        [&self.transmit, &self.receive]
    }

    /// The transmit rings, or the receive ring, begin at their first descriptors.
    pub fn rewind(&self, transmit: bool, receive: bool) {
        self.transmit.fetch_add(transmit.into(), Ordering::AcqRel);
        self.receive.fetch_add(receive.into(), Ordering::AcqRel);
    }
}

impl Cplus for Rtl8139 {
    const STATUS: Status = RTL8139;
    const MOST: u32 = 64; // The chip wraps there if no EOR comes before.
    const USUAL_BUFFER: u32 = 1536; // What drivers usually post.

    #[inline]
    fn place(&self, which: Which) -> Place {
        let (low, rewinds) = match which {
            Which::Normal => (TNPDS, &self.rings.transmit),
            Which::High => (THPDS, &self.rings.transmit),
            Which::Receive => (RDSAR, &self.rings.receive),
        };
        Place { base: self.regs.address(low), rewinds: rewinds.load(Ordering::Acquire) }
    }

    #[inline]
    fn own_fcs(&self) -> bool {
        self.regs.get(TCR) & tcr::CRC != 0
    }

    #[inline]
    fn filter_version(&self) -> u32 {
        self.filter_version.load(Ordering::Acquire)
    }

    fn rules(&self) -> Rules {
        let get = |at| self.regs.get(at);
        let own = (get(regs::IDR0), get(regs::IDR4));
        Rules::new(get(RCR), own, (get(regs::MAR0), get(regs::MAR4)))
    }

    fn shape(&self) -> Shape {
        let has = |bit| self.regs.get(CPCR) & bit != 0;
        let (strip, sums) = (has(cpcr::RXVLAN), has(cpcr::RXCHKSUM));
        let quick = if strip { 0 } else { LONGEST };
        let (longest, untagged, sums) = (LONGEST, LONGEST, (sums, sums));
        Shape { quick, longest, fcs: FCS, strip, untagged, sums, ..Shape::default() }
    }
}
