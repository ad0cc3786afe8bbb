//! Receive descriptors of the old kind (SDM 3.2).
//!
//! - No frame on this wire is damaged, so RCTL.SBP changes nothing.
//! - The packet checksum field (RXCSUM.PCSS) is 0: the drivers of this chip use the two below.
//! - Checksums are reported (IPCS, TCPCS) for frames that somebody on this host vouches for; for
//!   all others IXSM tells the guest to look itself.
//! - RXDMT0 is raised when the free descriptors fall to the threshold, RXO when the switch had to
//!   drop frames.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use super::cause;
use super::chip::Intel;
use super::desc::rx;
use super::filter::Filter;
use super::model::Model;
use super::ring::Ring;
use crate::ring::{Look, Receive, Shape, Verdict, Written, distance};

/// What they mean.
pub struct Rx<M>(PhantomData<M>);

impl<M: Model> Receive for Rx<M> {
    type Ring = Ring<M>;
    type Filter = Filter;
    type Note = ();

    /// Buffers with a null address are written back without data (3.2.3).
    #[inline]
    fn buffer(ring: &Ring<M>, index: u32, shape: &Shape) -> (u64, usize) {
        let addr = ring.memory.first(index, Ordering::Relaxed);
        (addr, if addr == 0 { 0 } else { shape.buffer })
    }

    #[inline]
    fn write_back(ring: &Ring<M>, _: &Filter, index: u32, what: &Written) {
        write_back(ring, index, what);
    }

    #[inline]
    fn publish(
        ring: &mut Ring<M>,
        chip: &Intel<M>,
        filter: &Filter,
        moved: (Look, u32),
        lost: bool,
    ) -> u32 {
        publish(ring, chip, filter, moved, lost)
    }
}

/// Writes back a descriptor of the old kind.
#[inline]
pub fn write_back<M: Model, N>(ring: &Ring<M>, index: u32, what: &Written<N>) {
    let end = match what {
        Written { failed: true, .. } => rx::EOP | rx::IXSM | rx::RXE,
        Written { last: true, .. } => rx::EOP | status(what.sums) | special(what.tag),
        Written { len: 0, .. } => 0,
        _ => rx::IXSM,
    };
    ring.memory.set_u64(index, 8, rx::DD | end | what.len as u64);
}

/// Publishes the head; returns the causes.
#[inline]
pub fn publish<M: Model>(
    ring: &mut Ring<M>,
    chip: &Intel<M>,
    filter: &Filter,
    (look, at): (Look, u32),
    lost: bool,
) -> u32 {
    let mut causes = 0;
    if at != look.head {
        causes |= ring.written();
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
