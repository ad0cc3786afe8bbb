//! Receive descriptors: legacy, extended, and those with several buffers.
//!
//! Extended ones are written back whole, the word with DD last. Those with several buffers are 32
//! bytes, two units of the ring; a frame fills the buffers in order, and goes on in the next
//! descriptor if it must.

use std::sync::atomic::Ordering;

use vmlan_frame::FrameView;
use vmlan_frame::headers::UDP;

use super::model::I82574;
use crate::intel::ring::{Format, Ring, Sizes};
use crate::intel::{Filter, rx};
use crate::ring::spread::Hash;
use crate::ring::{At, Look, Receive, Shape, Verdict, Written};

use super::E1000e;

/// In the number of a descriptor: which of its buffers.
const PART_SHIFT: u32 = 28;
const INDEX: u32 = (1 << PART_SHIFT) - 1;
const PARTS: u32 = 4;

/// Status and errors, in the second quadword.
mod status {
    pub const DD: u64 = 1; // Descriptor Done.
    pub const EOP: u64 = 1 << 1; // End Of Packet.
    pub const IXSM: u64 = 1 << 2; // Ignore Checksum Indication.
    pub const VP: u64 = 1 << 3; // The packet was 802.1Q; its tag is in the descriptor.
    pub const UDPCS: u64 = 1 << 4; // UDP checksum calculated.
    pub const TCPCS: u64 = 1 << 5; // TCP or UDP checksum calculated.
    pub const IPCS: u64 = 1 << 6; // IP checksum calculated.
    pub const IPE: u64 = 1 << 30; // IP checksum error.
    pub const RXE: u64 = 1 << 31; // Receive data error.
    pub const LEN_SHIFT: u32 = 32;
    pub const TAG_SHIFT: u32 = 48;
}

/// What they mean.
pub struct Rx;

impl Receive for Rx {
    type Ring = Ring<I82574>;
    type Filter = Filter;
    type Note = Hash;

    /// A null address takes no data; with several buffers it is an address as any other.
    #[inline]
    fn buffer(ring: &Self::Ring, number: u32, shape: &Shape) -> (u64, usize) {
        let index = number & INDEX;
        if let Format::Split(sizes) = ring.format {
            let part = number >> PART_SHIFT;
            let unit = 2 * index + part / 2;
            let address = match part % 2 {
                0 => ring.memory.first(unit, Ordering::Relaxed),
                _ => ring.memory.second(unit, Ordering::Relaxed),
            };
            return (address, size(sizes, part));
        }
        let address = ring.memory.first(index, Ordering::Relaxed);
        (address, if address == 0 { 0 } else { shape.buffer })
    }

    /// The next buffer of the descriptor before `at`, or the first of the next. `others`: the
    /// buffer from which on that descriptor has some.
    #[inline]
    fn next(ring: &Self::Ring, at: At, _: u32) -> Option<(u32, At)> {
        let Format::Split(sizes) = ring.format else {
            return at.ahead().map(|number| (number, at.after()));
        };
        if at.others > 0
            && let Some(part) = (at.others..PARTS).find(|part| size(sizes, *part) > 0)
        {
            let index = if at.at == 0 { at.size - 1 } else { at.at - 1 };
            return Some((index | part << PART_SHIFT, At { others: part + 1, ..at }));
        }
        at.ahead().map(|number| (number, At { others: 1, ..at.after() }))
    }

    #[inline]
    fn note(filter: &Filter, frame: &FrameView<'_, '_>) -> Hash {
        filter.spread().map_or(Hash::default(), |spread| spread.hash(frame.head, frame.len))
    }

    #[inline]
    fn write_back(ring: &Self::Ring, _: &Filter, number: u32, what: &Written<Hash>) {
        match ring.format {
            Format::Legacy => rx::write_back(ring, number, what),
            Format::Extended => {
                let (first, second) = words(ring, what);
                let len = (what.len as u64) << status::LEN_SHIFT;
                ring.memory.set(number, (first, second | len));
            }
            Format::Split(sizes) => write_split(ring, sizes, number, what),
        }
    }

    #[inline]
    fn publish(
        ring: &mut Self::Ring,
        chip: &E1000e,
        filter: &Filter,
        moved: (Look, u32),
        lost: bool,
    ) -> u32 {
        rx::publish(ring, chip, filter, moved, lost)
    }
}

/// Bytes of a descriptor's buffer.
#[inline]
fn size(Sizes(sizes): Sizes, part: u32) -> usize {
    sizes.get(part as usize).copied().unwrap_or(0).into()
}

/// Hash and queue; status, errors and tag.
#[inline]
fn words(ring: &Ring<I82574>, what: &Written<Hash>) -> (u64, u64) {
    let said = match what {
        Written { failed: true, .. } => status::EOP | status::IXSM | status::RXE,
        Written { last: true, .. } => {
            let tag = what.tag.map_or(0, |tci| status::VP | u64::from(tci) << status::TAG_SHIFT);
            status::EOP | sums(what.sums) | tag
        }
        Written { len: 0, .. } => 0,
        _ => status::IXSM,
    };
    // No hash, TCP/IPv4, IPv4, TCP/IPv6, IPv6.
    let kind: u64 = match what.note.kind {
        0 => 0,
        1 => 2,
        2 => 1,
        3 => 5,
        _ => 3,
    };
    let queue = if kind == 0 { 0 } else { u64::from(ring.queue()) << 8 };
    (kind | queue | u64::from(what.note.value) << 32, status::DD | said)
}

#[inline]
fn sums(sums: Verdict) -> u64 {
    let ip = match sums.ip {
        None => 0,
        Some(true) => status::IPCS,
        Some(false) => status::IPCS | status::IPE,
    };
    let upper = match sums.upper {
        None => 0,
        Some(UDP) => status::UDPCS | status::TCPCS,
        Some(_) => status::TCPCS,
    };
    if ip | upper == 0 { status::IXSM } else { ip | upper }
}

/// One buffer more of a descriptor is filled; the last one's writes it back.
#[inline]
fn write_split(ring: &Ring<I82574>, sizes: Sizes, number: u32, what: &Written<Hash>) {
    let (index, part) = (number & INDEX, number >> PART_SHIFT);
    if what.failed && part > 0 {
        return;
    }
    let mut lengths = if part == 0 { [0; PARTS as usize] } else { ring.lengths.get() };
    if let Some(length) = lengths.get_mut(part as usize) {
        *length = u16::try_from(what.len).unwrap_or(u16::MAX);
    }
    ring.lengths.set(lengths);
    let more = (part + 1..PARTS).any(|part| size(sizes, part) > 0);
    if more && !what.last && what.len > 0 {
        return;
    }
    let [first, rest @ ..] = lengths.map(u64::from);
    let upper = rest.iter().rev().fold(0, |word, length| word << 16 | length) << 16;
    ring.memory.set(2 * index + 1, (upper, 0));
    let (hash, said) = words(ring, what);
    ring.memory.set(2 * index, (hash, said | first << status::LEN_SHIFT));
}
