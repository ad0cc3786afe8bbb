//! Packets that come in parts (RFC 791, RFC 8200), put together; and those that are cut since they
//! are longer than the LAN's.

use std::collections::HashMap;
use std::net::IpAddr;

use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpProtocol, Ipv4Packet};

use super::ETHERNET;
use crate::counters::Reason;
use crate::lan::PortNo;

/// Packets of one port that wait for their parts, and parts of one packet.
const WAITING: (usize, usize) = (8, 64);
/// How long they wait (RFC 791, 3.2).
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest packet, its header included.
const LONGEST: usize = 65_535;
/// Bytes of the header of a fragment of IPv6.
const HEADER6: usize = 8;
/// What is said of how far a packet may go that was put together. Neighbour discovery that came in
/// parts is none (RFC 6980), and so is not taken for it.
const HOPS: u8 = 64;

/// A part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment<'f> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: IpProtocol,
    pub(crate) id: u32,
    /// Where it begins, in bytes.
    pub(crate) at: usize,
    pub(crate) is_last: bool,
    pub(crate) data: &'f [u8],
}

/// Reads what is behind the header of an IPv6 packet that says that a fragment follows.
pub(super) fn fragment6(from: IpAddr, to: IpAddr, bytes: &[u8]) -> Option<Fragment<'_>> {
    let (header, data) = bytes.split_first_chunk::<HEADER6>()?;
    let [next, _, high, low, id @ ..] = *header;
    let place = u16::from_be_bytes([high, low]);
    let (at, is_last) = (usize::from(place & !7), place & 1 == 0);
    Some(Fragment {
        from,
        to,
        protocol: next.into(),
        id: u32::from_be_bytes(id),
        at,
        is_last,
        data,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    mac: EthernetAddress,
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    id: u32,
}

#[derive(Debug)]
struct Partial {
    port: PortNo,
    data: Vec<u8>,
    /// First byte and end of each part that came.
    parts: Vec<(usize, usize)>,
    end: Option<usize>,
    until: Instant,
}

impl Partial {
    /// Adds a part. Parts that overlap are an attack (RFC 5722), as is a part behind the end.
    fn add(&mut self, part: &Fragment<'_>) -> Option<()> {
        let end = part.at + part.data.len();
        let overlaps = self.parts.iter().any(|(from, to)| part.at < *to && *from < end);
        let wrong_end = match self.end {
            Some(known) => end > known || part.is_last && end != known,
            None => part.is_last && self.parts.iter().any(|(_, to)| *to > end),
        };
        if overlaps || wrong_end || self.parts.len() >= WAITING.1 {
            return None;
        }
        self.parts.push((part.at, end));
        if part.is_last {
            self.end = Some(end);
        }
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data.get_mut(part.at..end)?.copy_from_slice(part.data);
        Some(())
    }

    fn is_whole(&self) -> bool {
        let got: usize = self.parts.iter().map(|(from, to)| to - from).sum();
        self.end == Some(got)
    }
}

/// Packets that wait for their parts.
#[derive(Debug, Default)]
pub(crate) struct Fragments(HashMap<Key, Partial>);

impl Fragments {
    /// A part came from a NIC behind `port`. The packet, once it is whole.
    ///
    /// # Errors
    /// It contradicts others, and none of them is used.
    pub(crate) fn add(
        &mut self,
        mac: EthernetAddress,
        port: PortNo,
        part: &Fragment<'_>,
        now: Instant,
    ) -> Result<Option<Vec<u8>>, Reason> {
        let Fragment { from, to, protocol, id, .. } = *part;
        let header = if from.is_ipv4() { 20 } else { 40 };
        let odd = !part.is_last && !part.data.len().is_multiple_of(8);
        if odd || part.data.is_empty() || part.at + part.data.len() + header > LONGEST {
            return Err(Reason::Malformed);
        }
        let key = Key { mac, from, to, protocol, id };
        if !self.0.contains_key(&key) {
            self.make_room(port, now);
        }
        let new = || Partial {
            port,
            data: Vec::new(),
            parts: Vec::new(),
            end: None,
            until: now + PATIENCE,
        };
        let partial = self.0.entry(key).or_insert_with(new);
        if partial.add(part).is_none() {
            self.0.remove(&key);
            return Err(Reason::Fragment);
        }
        if !partial.is_whole() {
            return Ok(None);
        }
        Ok(self.0.remove(&key).and_then(|partial| whole(part, &partial.data)))
    }

    /// Those go that have waited for long, and of a port that has many the oldest.
    fn make_room(&mut self, port: PortNo, now: Instant) {
        self.0.retain(|_, partial| now < partial.until);
        let own = self.0.iter().filter(|(_, partial)| partial.port == port);
        if own.clone().count() >= WAITING.0
            && let Some((key, _)) = own.min_by_key(|(_, partial)| partial.until)
        {
            let key = *key;
            self.0.remove(&key);
        }
    }

    /// Bytes that wait.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.values().map(|partial| partial.data.len()).sum()
    }
}

/// The packet of which `part` is one, with all its data.
fn whole(part: &Fragment<'_>, data: &[u8]) -> Option<Vec<u8>> {
    let next = u8::from(part.protocol);
    let mut packet;
    match (part.from, part.to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(20 + data.len()).ok()?.to_be_bytes();
            packet = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, HOPS, next, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            Ipv4Packet::new_unchecked(packet.as_mut_slice()).fill_checksum();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(data.len()).ok()?.to_be_bytes();
            packet = vec![0x60, 0, 0, 0, len[0], len[1], next, HOPS];
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        _ => return None,
    }
    packet.extend(data);
    Some(packet)
}

/// Cuts a frame with an IP packet that is longer than `mtu`; `id` tells its parts from others'.
pub(crate) fn cut(frame: &[u8], mtu: u16, id: u32) -> Vec<Vec<u8>> {
    let packet = frame.get(ETHERNET..).unwrap_or_default();
    let long = packet.first().is_some_and(|first| first >> 4 == 6);
    let (header, between) = if long { (40, HEADER6) } else { (20, 0) };
    let Some((head, data)) = packet.split_at_checked(header) else { return Vec::new() };
    let room = usize::from(mtu).saturating_sub(header + between) / 8 * 8;
    let mut frames = Vec::new();
    for (n, part) in data.chunks(room.max(8)).enumerate() {
        let at = n * room.max(8);
        let more = at + part.len() < data.len();
        let mut out = frame.get(..ETHERNET).unwrap_or_default().to_vec();
        out.extend(head);
        let own = out.get_mut(ETHERNET..).unwrap_or_default();
        let place = u16::try_from(at).unwrap_or(0);
        let [a, b, c, d] = id.to_be_bytes();
        if long {
            let len = u16::try_from(between + part.len()).unwrap_or(0).to_be_bytes();
            let next = own.get(6).copied().unwrap_or(59);
            own.get_mut(4..6).into_iter().for_each(|bytes| bytes.copy_from_slice(&len));
            own.get_mut(6).into_iter().for_each(|byte| *byte = IpProtocol::Ipv6Frag.into());
            let [high, low] = (place | u16::from(more)).to_be_bytes();
            out.extend([next, 0, high, low, a, b, c, d]);
        } else {
            let mut view = Ipv4Packet::new_unchecked(own);
            view.set_total_len(u16::try_from(header + part.len()).unwrap_or(0));
            view.set_ident(u16::from_be_bytes([c, d]));
            view.set_dont_frag(false);
            view.set_more_frags(more);
            view.set_frag_offset(place);
            view.fill_checksum();
        }
        out.extend(part);
        frames.push(out);
    }
    frames
}
