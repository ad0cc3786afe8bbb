//! Receive descriptors (SDM 3.2).
//!
//! - No frame on this wire is damaged, so RCTL.SBP changes nothing.
//! - The packet checksum field (RXCSUM.PCSS) is 0: the drivers of this chip use the two below.
//! - Checksums are reported (IPCS, TCPCS) for frames that somebody on this host vouches for; for all others IXSM
//!   tells the guest to look itself.
//! - RXDMT0 is raised when the free descriptors fall to the threshold, RXO when the switch had to drop frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlan_frame::Reason;
use vmlan_ram::Map;

use super::E1000;
use super::cause;
use super::desc::rx;
use super::filter::Filter;
use super::ring::{RECEIVE, Ring};
use crate::chip::Fault;
use crate::chip::csb::{Csb, CsbSide};
use crate::ring::{Look, Receive, Shape, Verdict, Written, distance};

/// The receive ring.
pub struct Rx {
    ring: Ring,
    /// Frames that the switch dropped for want of room, at the last look.
    missed: u64,
}

impl Default for Rx {
    fn default() -> Self {
        Self { ring: Ring::new(&RECEIVE), missed: 0 }
    }
}

impl Receive for Rx {
    type Chip = E1000;
    type Filter = Filter;

    #[inline]
    fn map(&self) -> &Arc<Map> {
        self.ring.map()
    }

    fn set_map(&mut self, map: Arc<Map>) -> Arc<Map> {
        self.ring.set_map(map)
    }

    #[inline]
    fn side(&mut self) -> &mut CsbSide {
        &mut self.ring.csb
    }

    #[inline]
    fn look(&mut self, chip: &E1000) -> Result<Look, Fault> {
        self.ring.look(&chip.regs)
    }

    fn fault(&self) -> Option<Fault> {
        self.ring.fault()
    }

    fn forget(&mut self, chip: &E1000) {
        self.ring.forget(&chip.regs);
    }

    fn publish_again(&self, chip: &E1000) {
        self.ring.publish_again(&chip.regs);
    }

    fn replace_csb(&mut self, chip: &E1000, csb: Option<Arc<Csb>>, on: bool) {
        self.ring.replace_csb(csb, on, &chip.regs);
    }

    fn reconsider(&mut self, look: Look) {
        self.ring.reconsider(look);
    }

    /// Buffers with a null address are written back without data (3.2.3).
    #[inline]
    fn buffer(&self, index: u32, shape: &Shape) -> (u64, usize) {
        let addr = self.ring.memory.first(index, Ordering::Relaxed);
        (addr, if addr == 0 { 0 } else { shape.buffer })
    }

    #[inline]
    fn write_back(&self, index: u32, what: &Written) {
        let end = match what {
            Written { failed: true, .. } => rx::EOP | rx::IXSM | rx::RXE,
            Written { last: true, .. } => rx::EOP | status(what.sums) | special(what.tag),
            Written { len: 0, .. } => 0,
            _ => rx::IXSM,
        };
        self.ring.memory.set_u64(index, 8, rx::DD | end | what.len as u64);
    }

    #[inline]
    fn publish(&mut self, chip: &E1000, filter: &Filter, look: Look, at: u32) -> u32 {
        let mut causes = 0;
        if at != look.head {
            causes |= cause::RXT0;
            let threshold = look.size >> filter.threshold;
            let left = distance(at, look.tail, look.size);
            if left <= threshold && look.posted() > threshold {
                causes |= cause::RXDMT0;
            }
            self.ring.publish(&chip.regs, at);
        }
        let missed = chip.core.counters.output.dropped(Reason::ReceiverFull);
        if std::mem::replace(&mut self.missed, missed) != missed {
            causes |= cause::RXO;
        }
        causes
    }
}

/// What the chip says about checksums (3.2.9).
#[inline]
fn status(sums: Verdict) -> u64 {
    let ip = match sums.ip {
        None => 0,
        Some(true) => rx::IPCS,
        Some(false) => rx::IPCS | rx::IPE,
    };
    match ip | if sums.upper.is_some() { rx::TCPCS } else { 0 } {
        0 => rx::IXSM,
        status => status,
    }
}

fn special(tag: Option<u16>) -> u64 {
    tag.map_or(0, |tci| rx::VP | u64::from(tci) << rx::SPECIAL_SHIFT)
}
