//! Which receive queue a frame goes to.

use crate::headers::{ETHERTYPE_IPV4, TCP, UDP, be16};
use crate::{HEAD, Headers};

/// A number that is the same for all frames of a flow, in both directions, and spreads flows well:
/// of the IP addresses and TCP or UDP ports, else of the MAC addresses. Fragments hash without
/// ports, so that they stay in order with each other.
///
/// It is not a keyed hash: a guest can aim its flows at one queue of a receiver, as it can by
/// sending one flow.
#[inline]
pub fn flow_hash(head: &[u8], len: usize) -> u32 {
    let head = head.get(..len).unwrap_or(head);
    usual_flow_hash(head).unwrap_or_else(|| any_flow_hash(head, len))
}

/// Which of `places` has the flows with that hash, if they are shared out evenly; 0 without any.
/// It is decided by the upper bits: what is shared out once more goes by others.
#[inline]
pub fn place_of(hash: u32, places: usize) -> usize {
    // The upper half of a product, instead of a division's rest.
    usize::try_from((u64::from(hash) * places as u64) >> 32).unwrap_or(0)
}

/// [`flow_hash`] of TCP or UDP in IPv4 without tags, options and fragments: the same number,
/// sooner.
#[inline]
fn usual_flow_hash(head: &[u8]) -> Option<u32> {
    const PORTS: usize = 14 + 20;
    let h = head.first_chunk::<42>()?;
    let [protocol, version] = [*h.get(23)?, *h.get(14)?];
    let fragment = be16(h, 20)? & 0x3fff;
    if be16(h, 12)? != ETHERTYPE_IPV4 || version != 0x45 || fragment != 0 {
        return None;
    }
    let whole = match protocol {
        UDP => true,
        TCP => {
            let size = usize::from(*head.get(PORTS + 12)? >> 4) * 4;
            size >= 20 && PORTS + size <= head.len().min(HEAD)
        }
        _ => false,
    };
    let port = |at| be16(h, at).map(u64::from);
    let word = |at| Some(port(at)? << 16 | port(at + 2)?);
    let both = |a, b| scramble(a).wrapping_add(scramble(b));
    let (addresses, ports) = (both(word(26)?, word(30)?), both(port(PORTS)?, port(PORTS + 2)?));
    whole.then(|| mix(addresses ^ ports.rotate_left(32) ^ u64::from(protocol)))
}

/// [`flow_hash`] of any frame.
#[inline(never)]
fn any_flow_hash(head: &[u8], len: usize) -> u32 {
    let h = Headers::parse(head, len);
    let Some((source, destination)) = h.addresses(head) else {
        return mix(both(head.get(6..12), head.get(..6)));
    };
    let addresses = both(Some(source), Some(destination));
    if h.header_len == 0 || h.fragment {
        return mix(addresses);
    }
    let ports = both(head.get(h.l4..h.l4 + 2), head.get(h.l4 + 2..h.l4 + 4));
    mix(addresses ^ ports.rotate_left(32) ^ u64::from(h.protocol))
}

/// What a hash of a frame is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFields {
    /// The source IP address, or the source MAC address of what is not IP.
    pub src: bool,
    /// The destination IP address, or the destination MAC address of what is not IP.
    pub dst: bool,
    /// Protocol and ports of TCP and UDP. Fragments have none, as for [`flow_hash`].
    pub ports: bool,
}

/// A number that is the same for all frames of a flow, in one direction, as far as `fields` tell
/// flows apart. Like [`flow_hash`] it spreads well and is not keyed. `h` is what the parser found
/// in the same snapshot.
pub fn fields_hash(fields: FlowFields, h: &Headers, head: &[u8]) -> u32 {
    let macs = || (head.get(6..12).unwrap_or_default(), head.get(..6).unwrap_or_default());
    let (source, destination) = h.addresses(head).unwrap_or_else(macs);
    let mut key = 0;
    if fields.src {
        key = scramble(word(source));
    }
    if fields.dst {
        key = scramble(key.rotate_left(1) ^ word(destination));
    }
    if let Some((from, to)) = h.ports(head).filter(|_| fields.ports && !h.fragment) {
        let ports = u64::from(from) << 24 | u64::from(to) << 8 | u64::from(h.protocol);
        key = scramble(key.rotate_left(1) ^ ports);
    }
    mix(key)
}

/// Joins two keys so that their order does not matter.
fn both(a: Option<&[u8]>, b: Option<&[u8]>) -> u64 {
    let (a, b) = (word(a.unwrap_or_default()), word(b.unwrap_or_default()));
    scramble(a).wrapping_add(scramble(b))
}

fn word(bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len() <= HEAD);
    bytes.iter().fold(0, |w: u64, b| w.rotate_left(8) ^ u64::from(*b) ^ (w >> 56 << 4))
}

/// Spreads a key over all bits (the multiplier is 2^64 divided by the golden ratio).
fn scramble(key: u64) -> u64 {
    let key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key ^ (key >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn mix(key: u64) -> u32 {
    let [.., a, b, c, d] = (scramble(key) >> 32).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Frames that nearly are, or are, of the usual kind.
        #[test]
        fn the_quick_way_gives_the_thorough_ones_number(
            mut head in proptest::collection::vec(any::<u8>(), 30..HEAD),
            first in prop_oneof![4 => Just(0x45u8), 1 => any::<u8>()],
            fragment in prop_oneof![
                4 => Just([0u8, 0]),
                1 => Just([0x40, 0]),
                1 => any::<[u8; 2]>(),
            ],
            protocol in prop_oneof![3 => Just(TCP), 3 => Just(UDP), 1 => any::<u8>()],
            offset in prop_oneof![3 => Just(0x50u8), 1 => any::<u8>()],
            len in 0..200usize,
        ) {
            head[12..15].copy_from_slice(&[8, 0, first]);
            head[20..22].copy_from_slice(&fragment);
            head[23] = protocol;
            if let Some(place) = head.get_mut(46) {
                *place = offset;
            }
            let snapshot = head.get(..len).unwrap_or(&head);
            prop_assert_eq!(flow_hash(&head, len), any_flow_hash(snapshot, len));
        }
    }
}
