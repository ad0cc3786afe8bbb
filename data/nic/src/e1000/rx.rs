//! Receive descriptors (SDM 3.2).
//!
//! - No frame on this wire is damaged, so RCTL.SBP changes nothing.
//! - The packet checksum field (RXCSUM.PCSS) is 0: the drivers of this chip use the two below.
//! - Checksums are reported (IPCS, TCPCS) for frames that somebody on this host vouches for; for
//!   all others IXSM tells the guest to look itself.
//! - RXDMT0 is raised when the free descriptors fall to the threshold, RXO when the switch had to
//!   drop frames.

use std::sync::atomic::Ordering;

use super::E1000;
use super::cause;
use super::desc::rx;
use super::filter::Filter;
use super::ring::{RECEIVE, Ring};
use crate::ring::{Look, Receive, Shape, Verdict, Written, distance};

/// What receive descriptors mean.
pub struct Rx;

impl Rx {
    /// A ring that is nowhere.
    pub fn ring() -> Ring {
        Ring::new(&RECEIVE)
    }
}

impl Receive for Rx {
    type Ring = Ring;
    type Filter = Filter;
    type Note = ();

    /// Buffers with a null address are written back without data (3.2.3).
    #[inline]
    fn buffer(ring: &Ring, index: u32, shape: &Shape) -> (u64, usize) {
        let addr = ring.memory.first(index, Ordering::Relaxed);
        (addr, if addr == 0 { 0 } else { shape.buffer })
    }

    #[inline]
    fn write_back(ring: &Ring, _: &Filter, index: u32, what: &Written) {
        let end = match what {
            Written { failed: true, .. } => rx::EOP | rx::IXSM | rx::RXE,
            Written { last: true, .. } => rx::EOP | status(what.sums) | special(what.tag),
            Written { len: 0, .. } => 0,
            _ => rx::IXSM,
        };
        ring.memory.set_u64(index, 8, rx::DD | end | what.len as u64);
    }

    #[inline]
    fn publish(
        ring: &mut Ring,
        chip: &E1000,
        filter: &Filter,
        (look, at): (Look, u32),
        lost: bool,
    ) -> u32 {
        let mut causes = 0;
        if at != look.head {
            causes |= cause::RXT0;
            let threshold = look.size >> filter.threshold;
            let left = distance(at, look.tail, look.size);
            if left <= threshold && look.posted() > threshold {
                causes |= cause::RXDMT0;
            }
            ring.publish(&chip.regs, at);
        }
        if lost {
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
